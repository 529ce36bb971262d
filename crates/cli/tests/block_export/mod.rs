//! `yolofs block export` as a process of a test.

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
