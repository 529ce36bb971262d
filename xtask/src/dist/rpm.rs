//! An `.rpm`, made by `rpmbuild`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::layout::Layout;
use super::{Version, call, scripts};

pub(super) fn make(
    layout: &Layout,
    version: &Version,
    scratch: &Path,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let out = std::path::absolute(out).context("finding the directory for packages")?;
    let scratch = std::path::absolute(scratch).context("finding the scratch directory")?;
    let (root, spec) = (scratch.join("rpm"), scratch.join("yolofs.spec"));
    layout.stage(&root)?;
    let text = spec_text(layout, version)?;
    fs::write(&spec, text).with_context(|| format!("writing {}", spec.display()))?;
    let define = |name: &str, dir: &Path| format!("{name} {}", dir.display());
    // rpmbuild works on a copy of its own and removes it.
    call(
        Command::new("rpmbuild")
            .args(["-bb", "--quiet", "--define"])
            .arg(define("_topdir", &scratch.join("rpmbuild")))
            .args(["--define", &define("_rpmdir", &scratch.join("rpms"))])
            .args(["--define", &define("staged", &root)])
            .arg(&spec),
    )?;
    let Version { version, release } = version;
    let arch = std::env::consts::ARCH;
    let name = format!("yolofs-{version}-{release}.{arch}.rpm");
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let (from, to) = (scratch.join("rpms").join(arch).join(&name), out.join(&name));
    fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
    Ok(to)
}

fn spec_text(layout: &Layout, version: &Version) -> anyhow::Result<String> {
    let files: String = layout
        .files
        .iter()
        .map(|file| {
            let kind = match &file.to {
                _ if file.is_configuration() => "%config(noreplace) ",
                to if to.starts_with("usr/share/doc/") => "%doc ",
                _ => "",
            };
            format!(
                "%attr({:o}, root, root) {kind}/{}\n",
                file.mode,
                file.packed()
            )
        })
        .collect();
    let functions = scripts::functions(&layout.packaging)?;
    let scriptlets: String = scripts::RED_HAT
        .iter()
        .map(|(name, cases)| format!("%{name}\n{functions}\n{cases}\n\n"))
        .collect();
    let Version { version, release } = version;
    Ok(format!(
        "Name: yolofs\nVersion: {version}\nRelease: {release}\n\
         Summary: Starts containers and virtual machines as fast as from memory\n\
         License: MIT OR Apache-2.0\nRequires: systemd\n\
         %global debug_package %{{nil}}\n%global __strip /bin/true\n%global _build_id_links none\n\
         %global __os_install_post %{{nil}}\n%global _binary_payload w3.zstdio\n\n\
         %description\nRecords once what a boot reads, and brings that into the page cache before the next boot.\n\n\
         %install\ncp -a %{{staged}}/. %{{buildroot}}/\n\n{scriptlets}%files\n{files}"
    ))
}
