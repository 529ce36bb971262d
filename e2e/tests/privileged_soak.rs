//! The program that does harm: how it is asked, and how it ends.

#![cfg(feature = "privileged")]

mod programs;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn soak(args: &[&str]) -> Command {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
    soak.args(args);
    soak
}

#[test]
fn what_is_asked_for_by_name_alone_is_said_to_be() {
    let listed = soak(&["--list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let asked = listed
        .lines()
        .filter(|line| line.ends_with("(only if named)"));
    assert!(asked.count() >= 2, "{listed}");
    let unknown = soak(&["--only", "mayhem"]).output().unwrap();
    let why = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(1), "{why}");
    assert!(why.contains("--list"), "{why}");
}

#[test]
fn privileged_an_interrupted_soak_leaves_nothing() {
    programs::build();
    let place = tempfile::tempdir().unwrap();
    let args = ["--only", "undisturbed", "--runs", "1000", "--length", "1"];
    let mut child = soak(&args)
        .env("TMPDIR", place.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let said: Vec<_> = lines.by_ref().take(2).collect();
    assert!(said[0].starts_with("seed "), "{said:?}");
    assert!(said[1].starts_with("ok "), "{said:?}");
    // A run that goes on is brought to its end.
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let said: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said:?}");
    assert_eq!(said.last().unwrap(), "0 runs failed");
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
