//! Some harm of each kind, a second or so of it: `scripts/soak.sh` does more, and longer.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use e2e::{Base, Bench, SCENARIOS};
use parking_lot::Mutex;

/// What all tests share, as long as one of them goes on.
fn base() -> Arc<Base> {
    static SHARED: Mutex<Weak<Base>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock();
    shared.upgrade().unwrap_or_else(|| {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test mounts file systems: run it as root"
        );
        build_programs();
        let base = Arc::new(Base::new(1).unwrap());
        *shared = Arc::downgrade(&base);
        base
    })
}

/// Builds the programs under test, unless told where they are: Cargo does so by itself only for
/// tests of their own package.
fn build_programs() {
    if std::env::var_os("YOLOFS_PROGRAMS").is_some() {
        return;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "cli", "--bins"])
        .args(["--features", "privileged", "--manifest-path"])
        .arg(manifest)
        .status()
        .unwrap();
    assert!(status.success(), "building the programs: {status}");
}

/// Runs some scenarios, with the same seeds every time.
fn run(names: &[&str]) {
    let base = base();
    for (seed, name) in (100..).zip(names) {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == *name);
        let finding = Bench::run(scenario.unwrap(), &base, seed, Duration::from_secs(1)).unwrap();
        if let Some(fault) = finding.fault {
            panic!("{name}, seed {seed}: {fault:#}\n{}", finding.tally);
        }
    }
}

#[test]
fn privileged_faults_of_daemons_hurt_nobody_else() {
    run(&[
        "undisturbed",
        "daemon-killed",
        "image-damaged",
        "memory-short",
    ]);
}

#[test]
fn privileged_faults_of_the_source_are_told_as_they_are() {
    run(&["source-fails", "source-slow", "source-changes"]);
}

#[test]
fn privileged_faults_of_the_node_are_felt_by_nobody() {
    run(&["anything"]);
}
