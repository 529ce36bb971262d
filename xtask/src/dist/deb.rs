//! A `.deb`, made by `dpkg-deb`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::layout::Layout;
use super::{Version, call, scripts};

/// What the programs are linked with, in the version of the oldest release that they are for, and what they need to
/// mount; systemd makes the users and directories.
const DEPENDS: &str = "libc6 (>= 2.36), libgcc-s1, systemd";

pub(super) fn make(
    layout: &Layout,
    version: &Version,
    scratch: &Path,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let root = scratch.join("deb");
    layout.stage(&root)?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control).with_context(|| format!("making {}", control.display()))?;
    let bytes: u64 = layout
        .files
        .iter()
        .map(|file| fs::metadata(&file.from).map(|metadata| metadata.len()))
        .sum::<Result<_, _>>()
        .context("measuring the files")?;
    let Version { version, release } = version;
    let arch = architecture();
    let text = format!(
        "Package: yolofs\nVersion: {version}-{release}\nArchitecture: {arch}\nSection: admin\n\
         Priority: optional\nMaintainer: yolofs developers <yolofs@example.invalid>\n\
         Depends: {DEPENDS}\nInstalled-Size: {}\n\
         Description: starts containers and virtual machines as fast as from memory\n \
         Records once what a boot reads, and brings that into the page cache before the next\n \
         boot: it then needs neither the disk nor the network.\n",
        bytes / 1024
    );
    write(&control.join("control"), &text, 0o644)?;
    let configuration = layout.files.iter().filter(|file| file.is_configuration());
    let conffiles: String = configuration
        .map(|file| format!("/{}\n", file.to))
        .collect();
    write(&control.join("conffiles"), &conffiles, 0o644)?;
    let functions = scripts::functions(&layout.packaging)?;
    for (name, cases) in scripts::DEBIAN {
        write(
            &control.join(name),
            &scripts::debian(&functions, cases),
            0o755,
        )?;
    }
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let package = out.join(format!("yolofs_{version}-{release}_{arch}.deb"));
    let build = ["--root-owner-group", "-Zzstd", "--build"];
    call(
        Command::new("dpkg-deb")
            .args(build)
            .arg(&root)
            .arg(&package),
    )?;
    Ok(package)
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let writing = || format!("writing {}", path.display());
    fs::write(path, text).with_context(writing)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(writing)
}
