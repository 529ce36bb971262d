//! Flags that would do nothing are refused: whoever gives one believes that it does something.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

const BOOTIMG: &str = env!("CARGO_BIN_EXE_bootimg");
const YOLOFS: &str = env!("CARGO_BIN_EXE_yolofs");

/// Runs a command in a directory of its own, which must fail with this exit code, and say this.
#[track_caller]
fn refused(dir: &Path, code: i32, program: &str, line: &str, why: &str) {
    let output = Command::new(program)
        .current_dir(dir)
        .args(line.split(' '))
        .env("YOLOFS_STORE", dir.join("store"))
        .env("YOLOFS_RUN_DIR", dir.join("run"))
        .env("YOLOFS_CONFIG", "/dev/null")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    assert!(said.contains(why), "{line}: {said}");
}

#[test]
fn a_mount_without_a_boot_image_is_told_nothing_of_one() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--wait-prewarm", "--budget 1M", "--lock", "--auto"] {
        let line = format!("mount --boot none {flag} . .");
        refused(dir.path(), 1, YOLOFS, &line, "--boot none");
    }
    let line = "mount --no-inject --budget 1M . .";
    refused(dir.path(), 2, YOLOFS, line, "cannot be used with");
}

#[test]
fn who_fetches_nothing_is_told_of_no_registry() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--plain-http", "--ca ca.pem", "--token-host a.test"] {
        let prewarm = format!("prewarm --all {flag}");
        refused(dir.path(), 1, BOOTIMG, &prewarm, "add --pull");
        let attach = format!("block attach {flag} disk.raw name");
        refused(dir.path(), 1, YOLOFS, &attach, "--cache");
        let verify = format!("block verify {flag} disk.raw");
        refused(dir.path(), 1, YOLOFS, &verify, "--cache");
    }
    for flag in ["--background plan", "--no-plan"] {
        let attach = format!("block attach {flag} disk.raw name");
        refused(dir.path(), 2, YOLOFS, &attach, "--cache");
    }
    let export = "block export --background plan --nbd s disk.raw";
    refused(dir.path(), 2, YOLOFS, export, "--cache");
    let all = "prewarm --all --pull";
    refused(dir.path(), 2, BOOTIMG, all, "cannot be used with");
}

#[test]
fn what_is_taken_back_is_what_was_written_down() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["--runtime-class", "--containerd-config f"] {
        let undo = format!("setup --undo --record r {flag}");
        refused(dir.path(), 2, YOLOFS, &undo, "cannot be used with");
    }
    let nothing = "setup --runtime-class";
    refused(dir.path(), 2, YOLOFS, nothing, "required");
}
