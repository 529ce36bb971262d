//! README's quick start, run as it is written.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, ok};

/// Gives the default places to this namespace alone, and runs the file that is named.
const ALONE: &str = "set -e
for place in /srv /mnt /run /var/lib; do mount -t tmpfs -o mode=755 tmpfs $place; done
exec sh -ex \"$0\"";

/// Returns the first block of shell of a section.
fn block(text: &str, heading: &str) -> String {
    let (_, section) = text.split_once(heading).unwrap();
    let (_, rest) = section.split_once("```sh\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// What is done once for all tests is not done again: packages are installed, the programs are built, and a root
/// of `mmdebstrap` is there.
fn stand_in(dir: &Path, name: &str, script: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\nset -e\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn privileged_the_quick_start_of_the_readme_runs_as_it_is_written() {
    let lab = Lab::new();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(repository.join("README.md")).unwrap();
    let script = lab.path("quick-start");
    fs::write(&script, block(&readme, "## Quick start")).unwrap();

    let images = std::env::var_os("YOLOFS_IMAGES").map(PathBuf::from);
    let root = images
        .unwrap_or_else(|| repository.join(".cache/images"))
        .join("root");
    assert!(
        root.join("usr/bin/python3").exists(),
        "run scripts/images/root.sh"
    );
    let bin = lab.make_dir("stand-ins");
    stand_in(&bin, "apt-get", "exit 0");
    stand_in(&bin, "cargo", "exit 0");
    let copy = format!(
        "for last; do :; done\ncp -a {:?} \"$last\"",
        root.canonicalize().unwrap()
    );
    stand_in(&bin, "mmdebstrap", &copy);
    let built = lab.make_dir("target/release");
    for (name, program) in [
        ("yolofs", env!("CARGO_BIN_EXE_yolofs")),
        ("bootimg", env!("CARGO_BIN_EXE_bootimg")),
    ] {
        symlink(program, built.join(name)).unwrap();
    }

    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
    let said = ok(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", ALONE])
        .arg(&script)
        .current_dir(lab.path(""))
        .env_clear()
        .env("PATH", path));
    let status = said.lines().find(|line| line.contains("/mnt/web"));
    let status = status.unwrap_or_else(|| panic!("yolofs status shows no mount: {said}"));
    assert!(status.starts_with("as recorded "), "{status}");
}
