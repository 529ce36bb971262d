//! `yolofs tier probe`: what directories are as tiers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn probe(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_yolofs"));
    command.args(["tier", "probe"]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_directory_and_memory_are_told_apart_measured_and_left_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    let output = probe(&[at, "/dev/shm", "--bytes", "1M", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let probed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(probed.as_array().unwrap().len(), 2);
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(
        probed[0]["dir"].as_str().map(Path::new),
        Some(real.as_path())
    );
    for tier in probed.as_array().unwrap() {
        assert!(tier["capacity_bytes"].as_u64() >= tier["free_bytes"].as_u64());
        let measured = &tier["measured"];
        assert_eq!(measured["bytes"], 1 << 20);
        for rate in ["write_bytes_per_second", "read_bytes_per_second"] {
            assert!(measured[rate].as_u64() > Some(0), "{tier}");
        }
    }
    assert_eq!(probed[1]["kind"], "memory");
    assert_eq!(probed[1]["sync"], "none");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

    let output = probe(&[at, "--bytes", "0"]);
    let table = text(&output.stdout);
    assert!(
        output.status.success() && table.starts_with("DIRECTORY"),
        "{output:?}"
    );
    assert_eq!(table.lines().count(), 2);
}

#[test]
fn what_cannot_be_probed_is_said_with_what_to_try() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let output = probe(&[missing.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("a tier must be a writable directory"),
        "{said}"
    );
    assert!(said.contains(missing.to_str().unwrap()), "{said}");

    let output = probe(&[dir.path().to_str().unwrap(), "--bytes", "1000000T"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("use a smaller --bytes"), "{said}");
}
