//! Which crate may import which, and that none escapes the workspace's lints.
//!
//! Cargo refuses cycles but not a short cut: a library of one level that imports its neighbour
//! builds without a word. This table is the only place that says what may.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::workspace::Package;

/// One crate's place.
struct Rung {
    name: &'static str,
    /// The crates of this workspace it may import.
    may_import: &'static [&'static str],
}

const fn rung(name: &'static str, may_import: &'static [&'static str]) -> Rung {
    Rung { name, may_import }
}

/// The ladder of docs/architecture.md, lowest first: a crate imports only from above its line.
const LADDER: &[Rung] = &[
    // L0: shared types, and the kernel.
    rung("blocks", &[]),
    rung("rawio", &[]),
    rung("testkit", &[]),
    rung("distribution", &["blocks", "testkit"]),
    rung("serving", &["rawio", "testkit"]),
    rung("link-emulator", &[]),
    rung("fetch", &[]),
    // L1: libraries; these never import each other.
    rung("localfs", &["blocks", "rawio"]),
    rung("bootimg", &["blocks", "rawio"]),
    rung("tracer", &["blocks"]),
    rung("tiering", &["blocks", "rawio"]),
    rung("oci", &["blocks", "distribution", "rawio", "testkit"]),
    rung("chunks", &["blocks", "rawio"]),
    rung("ranges", &["distribution", "fetch", "testkit"]),
    rung("engine", &["blocks", "distribution"]),
    rung("snapshotter", &["blocks", "rawio", "serving"]),
    rung("lsmt", &["blocks", "rawio"]),
    rung("erofs", &["blocks"]),
    rung("ext4", &["blocks"]),
    rung("fdstore", &["rawio", "testkit"]),
    rung("report", &[]),
    rung("confine", &[]),
    rung("nri", &["rawio"]),
    // L2: the file system knows the seams, not who implements them; the servers, what they serve.
    rung("yolofs", &["blocks", "rawio", "testkit"]),
    rung(
        "blockservice",
        &[
            "blocks",
            "bootimg",
            "chunks",
            "fetch",
            "link-emulator",
            "rawio",
            "serving",
            "testkit",
        ],
    ),
    rung(
        "mirror",
        &[
            "blocks",
            "chunks",
            "distribution",
            "ranges",
            "rawio",
            "serving",
            "testkit",
        ],
    ),
    rung("blockexport", &["blocks", "rawio", "testkit"]),
    rung("sandbox", &["confine", "rawio", "testkit"]),
    rung(
        "blockimages",
        &[
            "blocks",
            "erofs",
            "ext4",
            "link-emulator",
            "lsmt",
            "oci",
            "ranges",
            "rawio",
            "testkit",
        ],
    ),
    // L3: the runtime of a host: each imports only from above its line.
    rung("host", &["blocks", "rawio"]),
    rung("node-api", &["blocks", "host", "serving"]),
    rung("node-records", &["host", "node-api", "yolofs"]),
    rung("pinning", &["blocks", "fdstore", "host", "rawio", "tracer"]),
    rung(
        "bootstore",
        &[
            "blocks", "bootimg", "host", "localfs", "node-api", "rawio", "tiering", "yolofs",
        ],
    ),
    rung(
        "mounting",
        &[
            "blockimages",
            "blocks",
            "blockservice",
            "bootimg",
            "bootstore",
            "chunks",
            "confine",
            "host",
            "localfs",
            "node-api",
            "rawio",
            "serving",
            "tracer",
            "yolofs",
        ],
    ),
    rung(
        "layers",
        &[
            "blocks",
            "bootimg",
            "bootstore",
            "host",
            "localfs",
            "mounting",
            "node-api",
            "node-records",
            "rawio",
            "tiering",
            "tracer",
            "yolofs",
        ],
    ),
    rung(
        "artifacts",
        &[
            "blockimages",
            "blocks",
            "bootimg",
            "bootstore",
            "host",
            "mounting",
            "oci",
            "rawio",
        ],
    ),
    rung(
        "devices",
        &[
            "artifacts",
            "blockexport",
            "blockimages",
            "blocks",
            "bootstore",
            "node-api",
            "oci",
        ],
    ),
    rung(
        "recording",
        &[
            "blocks",
            "bootimg",
            "bootstore",
            "engine",
            "host",
            "layers",
            "localfs",
            "mounting",
            "node-api",
            "oci",
            "rawio",
            "tracer",
            "yolofs",
        ],
    ),
    rung("diagnosis", &["host", "node-api", "rawio"]),
    // L4: services.
    rung(
        "node-service",
        &[
            "blockexport",
            "blockimages",
            "blocks",
            "bootimg",
            "bootstore",
            "chunks",
            "confine",
            "devices",
            "fdstore",
            "host",
            "localfs",
            "mounting",
            "node-api",
            "node-records",
            "pinning",
            "rawio",
            "serving",
            "tracer",
            "yolofs",
        ],
    ),
    rung(
        "docker-service",
        &[
            "blocks",
            "bootimg",
            "bootstore",
            "engine",
            "host",
            "layers",
            "mounting",
            "node-records",
            "oci",
            "rawio",
            "yolofs",
        ],
    ),
    rung(
        "containerd-service",
        &[
            "blockimages",
            "blocks",
            "bootimg",
            "bootstore",
            "engine",
            "host",
            "layers",
            "mounting",
            "node-api",
            "node-records",
            "nri",
            "oci",
            "rawio",
            "recording",
            "snapshotter",
            "tiering",
            "tracer",
            "yolofs",
        ],
    ),
    rung(
        "nicfetch",
        &[
            "blocks",
            "blockservice",
            "chunks",
            "distribution",
            "host",
            "mirror",
            "mounting",
            "oci",
            "rawio",
            "serving",
        ],
    ),
    rung("sandbox-oci", &["rawio"]),
    rung("sandbox-packages", &["sandbox"]),
    rung("sandbox-handlers", &["sandbox", "sandbox-packages"]),
    rung(
        "sandbox-service",
        &[
            "host",
            "rawio",
            "sandbox",
            "sandbox-handlers",
            "sandbox-packages",
            "serving",
        ],
    ),
    // L5: programs, and what tries them.
    rung(
        "sandbox-cli",
        &[
            "host",
            "sandbox",
            "sandbox-handlers",
            "sandbox-packages",
            "sandbox-service",
        ],
    ),
    rung("lab", &["blocks", "localfs", "rawio"]),
    rung(
        "cli",
        &[
            "artifacts",
            "blockexport",
            "blockimages",
            "blocks",
            "blockservice",
            "bootimg",
            "bootstore",
            "chunks",
            "confine",
            "containerd-service",
            "devices",
            "diagnosis",
            "distribution",
            "docker-service",
            "engine",
            "host",
            "lab",
            "layers",
            "link-emulator",
            "localfs",
            "mirror",
            "mounting",
            "nicfetch",
            "node-api",
            "node-service",
            "oci",
            "pinning",
            "rawio",
            "recording",
            "report",
            "sandbox", // in tests
            "serving",
            "testkit",
            "tiering",
            "tracer",
            "yolofs",
        ],
    ),
    rung(
        "benches",
        &[
            "blocks",
            "blockservice",
            "bootimg",
            "chunks",
            "link-emulator",
            "localfs",
            "lsmt",
            "mirror",
            "oci",
            "rawio",
            "sandbox",
            "serving",
            "tracer",
            "yolofs",
        ],
    ),
    rung("e2e", &["blocks", "localfs", "rawio", "yolofs"]),
    rung("pages", &["cli", "sandbox-cli"]),
    rung("xtask", &[]),
];

/// Foreign crates with one owner each.
const OWNED: &[(&str, &str)] = &[
    // A second user of the FUSE protocol would be a second file system.
    ("fuser", "yolofs"),
    // Raw kernel structures and mappings need unsafe code, which lives in one crate.
    ("libc", "rawio"),
    ("memmap2", "rawio"),
    ("io-uring", "rawio"),
];

/// The only library with unsafe code.
const UNSAFE_LIBRARY: &str = "rawio";

/// Fails, and names every fault, unless all packages keep their place.
pub(crate) fn check(packages: &[Package]) -> anyhow::Result<()> {
    let mut faults = import_faults(packages);
    for package in packages {
        let manifest = read(&package.manifest)?;
        let library = package.library.as_deref().map(read).transpose()?;
        faults.extend(lint_faults(&package.name, &manifest, library.as_deref()));
    }
    if faults.is_empty() {
        println!("layers: {} packages keep their place", packages.len());
        return Ok(());
    }
    bail!(
        "{}\nthe ladder is in xtask/src/ladder.rs and docs/architecture.md",
        faults.join("\n")
    )
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn import_faults(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for Package {
        name, dependencies, ..
    } in packages
    {
        let Some(rung) = LADDER.iter().find(|rung| rung.name == *name) else {
            faults.push(format!("{name} has no place on the ladder: give it one"));
            continue;
        };
        for dependency in dependencies {
            let ours = packages.iter().any(|package| package.name == *dependency);
            // A crate turns on its own `testing` feature by depending on itself.
            if ours && dependency != name && !rung.may_import.contains(&dependency.as_str()) {
                faults.push(format!("{name} must not import {dependency}"));
            }
            if let Some((_, owner)) = OWNED.iter().find(|(owned, _)| owned == dependency)
                && owner != name
            {
                faults.push(format!(
                    "{name} must not import {dependency}: only {owner} may"
                ));
            }
        }
    }
    faults
}

/// Cargo does not mind a package that forgets the workspace's lints, so this does.
fn lint_faults(name: &str, manifest: &str, library: Option<&str>) -> Vec<String> {
    let mut faults = Vec::new();
    let lints = manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[lints]")
        .nth(1);
    if lints != Some("workspace = true") {
        faults.push(format!(
            "{name} does not take the workspace's lints: [lints] workspace = true"
        ));
    }
    let forbids = |text: &str| {
        text.lines()
            .any(|line| line.trim() == "#![forbid(unsafe_code)]")
    };
    if name != UNSAFE_LIBRARY && library.is_some_and(|text| !forbids(text)) {
        faults.push(format!(
            "{name} lacks #![forbid(unsafe_code)] at the top of its library"
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(|&name| name.to_owned()).collect(),
            ..Package::default()
        }
    }

    /// The workspace with one package's dependencies replaced.
    fn faults_with(name: &str, dependencies: &[&str]) -> Vec<String> {
        let packages: Vec<_> = LADDER
            .iter()
            .map(|rung| match rung.name == name {
                true => package(name, dependencies),
                false => package(rung.name, rung.may_import),
            })
            .collect();
        import_faults(&packages)
    }

    #[test]
    fn takes_what_the_ladder_allows() {
        assert_eq!(faults_with("blocks", &["blocks", "thiserror"]), [""; 0]);
        assert_eq!(
            faults_with("yolofs", &["blocks", "rawio", "fuser"]),
            [""; 0]
        );
        assert_eq!(faults_with("rawio", &["libc", "memmap2"]), [""; 0]);
    }

    #[test]
    fn names_every_import_that_goes_up_or_sideways() {
        assert_eq!(
            faults_with("blocks", &["rawio"]),
            ["blocks must not import rawio"]
        );
        assert_eq!(
            faults_with("bootimg", &["tracer"]),
            ["bootimg must not import tracer"]
        );
        assert_eq!(
            faults_with("yolofs", &["bootimg"]),
            ["yolofs must not import bootimg"]
        );
        assert_eq!(
            faults_with("tracer", &["cli", "yolofs"]),
            [
                "tracer must not import cli",
                "tracer must not import yolofs"
            ]
        );
    }

    #[test]
    fn foreign_crates_have_one_owner() {
        assert_eq!(
            faults_with("cli", &["fuser"]),
            ["cli must not import fuser: only yolofs may"]
        );
        assert_eq!(
            faults_with("blocks", &["libc"]),
            ["blocks must not import libc: only rawio may"]
        );
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        let faults = import_faults(&[package("newcomer", &[])]);
        assert_eq!(faults, ["newcomer has no place on the ladder: give it one"]);
    }

    #[test]
    fn every_rung_imports_only_from_above_its_line() {
        for (place, rung) in LADDER.iter().enumerate() {
            for import in rung.may_import {
                let found = LADDER.iter().position(|other| other.name == *import);
                assert!(
                    found.is_some_and(|found| found < place),
                    "{} and {import}",
                    rung.name
                );
            }
        }
    }

    #[test]
    fn lints_and_the_ban_on_unsafe_are_not_optional() {
        let good = "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n";
        let safe = "//! A crate.\n\n#![forbid(unsafe_code)]\n";
        assert_eq!(lint_faults("blocks", good, Some(safe)), [""; 0]);
        assert_eq!(lint_faults("xtask", good, None), [""; 0]);
        assert_eq!(lint_faults("rawio", good, Some("")), [""; 0]);
        assert_eq!(
            lint_faults("blocks", good, Some("// #![forbid(unsafe_code)]")).len(),
            1
        );
        assert_eq!(
            lint_faults("blocks", "[package]\nworkspace = true\n", Some(safe)).len(),
            1
        );
        assert_eq!(
            lint_faults("blocks", "[lints]\nclippy = \"x\"\n", Some("")).len(),
            2
        );
    }
}
