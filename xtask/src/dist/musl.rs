//! An archive of programs that are linked with musl and need no library of the system.
//!
//! The C parts (zstd, lz4, ring, BLAKE3) are compiled from source: by musl-gcc for x86-64, and by Debian's cross
//! compiler for AArch64, where rust-lld links with the musl that comes with Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;

use super::{Version, call, layout};
use crate::cargo::cargo;

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Processor {
    /// Of Intel and AMD
    #[value(name = "x86_64")]
    X86,
    /// Of Arm servers and SmartNICs
    #[value(name = "aarch64")]
    Arm,
}

impl Processor {
    const fn as_str(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    /// Returns the program that takes out what only a debugger uses.
    pub(super) const fn strip(self) -> &'static str {
        match self {
            Self::X86 => "strip",
            Self::Arm => "aarch64-linux-gnu-strip",
        }
    }

    /// Returns what readelf calls it.
    const fn machine(self) -> &'static str {
        match self {
            Self::X86 => "Advanced Micro Devices X86-64",
            Self::Arm => "AArch64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.as_str())
    }

    /// Returns what compilers are told by variables of the environment.
    const fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::X86 => &[("CC_x86_64_unknown_linux_musl", "musl-gcc")],
            // Debian's headers are glibc's. Code that they lead to must not call what musl lacks: checked variants of
            // functions, and atomic operations of libgcc.
            Self::Arm => &[
                ("CC_aarch64_unknown_linux_musl", "aarch64-linux-gnu-gcc"),
                ("AR_aarch64_unknown_linux_musl", "aarch64-linux-gnu-ar"),
                (
                    "CFLAGS_aarch64_unknown_linux_musl",
                    "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0 -mno-outline-atomics",
                ),
                ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld"),
            ],
        }
    }
}

/// Builds the programs with a profile, and returns where they are.
pub(super) fn build(root: &Path, processor: Processor, profile: &str) -> anyhow::Result<PathBuf> {
    let target = processor.target();
    let mut cargo = cargo();
    cargo
        .args(["build", "--profile", profile, "--target", &target])
        .args(["-p", "cli", "-p", "sandbox-cli"])
        .current_dir(root);
    for name in layout::PROGRAMS {
        cargo.args(["--bin", name]);
    }
    cargo.envs(processor.variables().iter().copied());
    call(&mut cargo).with_context(|| {
        let arm = ", gcc-aarch64-linux-gnu and libc6-dev-arm64-cross";
        let more = if processor == Processor::Arm { arm } else { "" };
        format!("it takes 'rustup target add {target}', musl-tools{more}")
    })?;
    let built =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let profile = if profile == "dev" { "debug" } else { profile };
    Ok(built.join(target).join(profile))
}

/// Packs programs, each of which is checked to be for the processor, and to need no library and no loader.
pub(super) fn archive(
    programs: &Path,
    processor: Processor,
    version: &Version,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    for name in layout::PROGRAMS {
        check(&programs.join(name), processor)?;
    }
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let Version { version, release } = version;
    let name = format!("yolofs-{version}-{release}-{}-static", processor.as_str());
    let archive = out.join(format!("{name}.tar.zst"));
    let mut tar = Command::new("tar");
    tar.args(["--zstd", "--sort=name", "--owner=0", "--group=0"])
        .arg("--transform")
        .arg(format!("s,^,{name}/,"))
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(programs)
        .args(layout::PROGRAMS);
    call(&mut tar)?;
    Ok(archive)
}

/// Fails if a program is for another processor, or needs a loader or a library.
fn check(program: &Path, processor: Processor) -> anyhow::Result<()> {
    let shown = program.display();
    let mut readelf = Command::new("readelf");
    readelf.args(["--wide", "--file-header", "--program-headers", "--dynamic"]);
    let output = readelf.arg(program).output();
    let output = output.context("running readelf (binutils)")?;
    ensure!(output.status.success(), "readelf cannot read {shown}");
    let text = String::from_utf8_lossy(&output.stdout);
    let machine = machine(&text);
    ensure!(
        machine == Some(processor.machine()),
        "{shown} is for another processor than {}: {}",
        processor.as_str(),
        machine.unwrap_or("readelf names none")
    );
    if let Some(line) = needs(&text) {
        bail!("{shown} is not static: {line}");
    }
    Ok(())
}

/// Returns the processor in the output of readelf.
fn machine(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    lines.find_map(|line| Some(line.strip_prefix("Machine:")?.trim()))
}

/// Returns the line of readelf that names a loader or a library.
fn needs(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("INTERP") || line.contains("(NEEDED)"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const OWN: Processor = if cfg!(target_arch = "aarch64") {
        Processor::Arm
    } else {
        Processor::X86
    };
    const OTHER: Processor = if cfg!(target_arch = "aarch64") {
        Processor::X86
    } else {
        Processor::Arm
    };

    fn archive_of(program: &Path, processor: Processor) -> anyhow::Result<PathBuf> {
        let dir = tempfile::tempdir().unwrap();
        for name in layout::PROGRAMS {
            fs::copy(program, dir.path().join(name)).unwrap();
        }
        let (version, release) = ("1.2.3", 1);
        let version = Version { version, release };
        let out = dir.path().join("out");
        let made = archive(dir.path(), processor, &version, &out);
        assert!(made.is_ok() || !out.exists(), "an archive was made");
        made
    }

    #[test]
    fn no_archive_is_made_of_dynamic_programs() {
        // This program is linked dynamically.
        let own = std::env::current_exe().unwrap();
        let error = archive_of(&own, OWN).unwrap_err().to_string();
        assert!(error.contains("is not static: INTERP"), "{error}");
    }

    #[test]
    fn no_archive_is_made_for_another_processor() {
        let own = std::env::current_exe().unwrap();
        let error = archive_of(&own, OTHER).unwrap_err().to_string();
        assert!(error.contains("for another processor"), "{error}");
    }

    #[test]
    fn no_archive_is_made_of_scripts() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert!(archive_of(&script, OWN).is_err());
    }

    #[test]
    fn a_library_is_found_and_a_dynamic_section_alone_is_none() {
        let library = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]";
        assert_eq!(needs(library), Some(library.trim()));
        // Static programs that are loaded at a random address have a dynamic section.
        let own = "  DYNAMIC        0x0a 0x0b 0x0c\n 0x000000006ffffffb (FLAGS_1)   Flags: PIE\n";
        assert_eq!(needs(own), None);
    }

    #[test]
    fn each_processor_has_a_target_of_musl() {
        let targets = Processor::value_variants().iter().map(|one| one.target());
        let known = ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"];
        assert!(targets.eq(known));
    }

    /// Who adds a crate that needs a library of the system learns it here: no test builds the archive.
    #[test]
    fn programs_link_only_what_their_crates_compile() {
        const COMPILED: [&str; 3] = ["lz4-sys", "ring", "zstd-sys"];
        // Written in Rust: what it says keeps two versions of it apart.
        const RUST: &str = "prettyplease";
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--offline"])
            .args(["--filter-platform", &Processor::X86.target()])
            .current_dir(crate::workspace::root().unwrap())
            .output()
            .unwrap();
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let list = |value: &Value| value.as_array().cloned().unwrap();
        let packages = list(&metadata["packages"]);
        let named = |name: &str| packages.iter().find(|package| package["name"] == name);
        let mut todo: Vec<Value> = ["cli", "sandbox-cli"]
            .map(|name| named(name).unwrap()["id"].clone())
            .into();
        let mut used = BTreeSet::new();
        let nodes = list(&metadata["resolve"]["nodes"]);
        while let Some(id) = todo.pop() {
            if !used.insert(id.as_str().unwrap().to_owned()) {
                continue;
            }
            let node = nodes.iter().find(|node| node["id"] == id).unwrap();
            let built = |dependency: &Value| {
                let kinds = list(&dependency["dep_kinds"]);
                kinds.iter().any(|kind| kind["kind"] != "dev")
            };
            let dependencies = list(&node["deps"]).into_iter().filter(built);
            todo.extend(dependencies.map(|dependency| dependency["pkg"].clone()));
        }
        let of_programs = packages.iter().filter(|package| {
            let id = package["id"].as_str().unwrap();
            used.contains(id) && !package["links"].is_null() && package["name"] != RUST
        });
        let native: BTreeSet<_> = of_programs
            .map(|package| package["name"].as_str().unwrap())
            .collect();
        assert_eq!(native, COMPILED.into());
    }
}
