//! `yolofs block export` as a process of a test.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

pub(crate) fn yolofs() -> Command {
    Command::new(env!("CARGO_BIN_EXE_yolofs"))
}

/// A process that dies with the test, whatever becomes of it.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts an export and waits until it is served.
pub(crate) fn export(args: &[&str]) -> Process {
    export_of(yolofs(), args)
}

/// Starts an export by a program with its environment, and waits until it is served.
pub(crate) fn export_of(mut yolofs: Command, args: &[&str]) -> Process {
    let mut child = yolofs
        .args(["block", "export", "--json"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let served = lines.any(|line| line.unwrap() == "}");
    let server = Process(child);
    assert!(served, "it ended before it served");
    server
}

pub(crate) fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    output
}

pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a file of so many MiB in which no two blocks are the same.
pub(crate) fn filled(path: &Path, mib: u64) {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    let len = usize::try_from(mib << 20).unwrap();
    let bytes: Vec<u8> = words.flatten().take(len).collect();
    fs::write(path, bytes).unwrap();
}
