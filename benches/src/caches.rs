//! What "cold" means here.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::run_ok;

/// The procedure, in words, for the report.
pub const PROCEDURE: &str = "unmount what the last sample mounted; sync; echo 3 > \
/proc/sys/vm/drop_caches; read the files of the programs (chroot, fio, qemu, \
bootimg, yolofs and their libraries) again, so that of all that a boot reads only the tree under test is cold";

/// What the host runs to boot something, or to contend with it.
const PROGRAMS: [&str; 4] = ["chroot", "fio", "qemu-img", "qemu-system-x86_64"];
/// The firmware and the option ROMs that QEMU reads.
const FIRMWARE: [&str; 2] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/kvmvapic.bin",
];

/// The files of the programs that make a boot, or serve it.
#[derive(Clone, Debug)]
pub struct HostFiles {
    files: BTreeSet<PathBuf>,
}

impl HostFiles {
    /// Looks for them, and for our programs in `bin`. A program that is not there has none.
    #[must_use]
    pub fn find(bin: &Path) -> Self {
        let mut files: BTreeSet<PathBuf> = FIRMWARE.iter().map(PathBuf::from).collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let anywhere = |name: &&str| {
            let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
            places.find(|place| place.exists())
        };
        let ours = ["bootimg", "yolofs"].map(|name| bin.join(name));
        for program in PROGRAMS.iter().filter_map(anywhere).chain(ours) {
            let mut ldd = Command::new("ldd");
            ldd.arg(&program);
            // Without ldd the libraries stay cold, the same for every mode that drops caches.
            let libraries = run_ok(ldd, Duration::from_secs(30)).map(|done| done.output);
            files.extend(libraries.iter().flat_map(|text| libraries_in(text)));
            files.insert(program);
        }
        Self { files }
    }
}

/// Finds the paths in what ldd prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)`.
fn libraries_in(text: &str) -> impl Iterator<Item = PathBuf> + '_ {
    text.split_whitespace()
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
}

/// Drops the page cache and the caches of names and inodes. What is locked or in use stays.
///
/// # Errors
/// If the kernel refuses, as it does without root.
pub fn drop_everything() -> anyhow::Result<()> {
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches (are you root?)")
}

/// Drops the page cache and the caches of names and inodes, and reads the host's files again.
///
/// # Errors
/// If the kernel refuses, as it does without root.
pub fn drop_all(host: &HostFiles) -> anyhow::Result<()> {
    drop_everything()?;
    for file in &host.files {
        // A file that cannot be read was not part of any boot either.
        let _bytes_that_nobody_needs = fs::read(file).map(drop);
    }
    Ok(())
}

/// Returns how often anybody has dropped caches since this machine started.
///
/// # Errors
/// If the kernel does not say.
pub fn drops() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("reading /proc/vmstat")?;
    let value = |key: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line?.trim().parse().ok()
    };
    let (pages, slabs) = value("drop_pagecache ")
        .zip(value("drop_slab "))
        .context("/proc/vmstat does not count drops")?;
    Ok(pages + slabs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_however_ldd_names_them() {
        let text =
            "\tlinux-vdso.so.1 (0x7)\n\tlibc.so.6 => /lib/libc.so.6 (0x7)\n\t/lib64/ld.so (0x7)\n";
        let found: Vec<_> = libraries_in(text).collect();
        assert_eq!(
            found,
            [
                PathBuf::from("/lib/libc.so.6"),
                PathBuf::from("/lib64/ld.so")
            ]
        );
    }

    #[test]
    fn programs_bring_their_libraries() {
        let host = HostFiles::find(Path::new("/nonexistent"));
        assert!(
            host.files.iter().any(|file| file.ends_with("chroot")),
            "{host:?}"
        );
        assert!(
            host.files.iter().any(|file| file.ends_with("libc.so.6")),
            "{host:?}"
        );
    }
}
