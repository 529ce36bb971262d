//! Random reads by fio.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::process::run_ok;

/// How long a sample reads.
const SECONDS: u64 = 2;
const DEADLINE: Duration = Duration::from_secs(60);

/// What is read.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A file, past the page cache.
    File(&'a Path),
    /// The export of a unix socket of an NBD server.
    Nbd(&'a Path),
}

/// Reads 4 KiB at random places with so many reads in flight, and returns the reads of a second.
///
/// # Errors
/// If fio is not installed, or fails.
pub fn random_reads(target: Target<'_>, depth: u32, bytes: u64) -> anyhow::Result<f64> {
    let mut fio = Command::new("fio");
    match target {
        Target::File(file) => {
            fio.args(["--ioengine=libaio", "--direct=1", "--filename"])
                .arg(file);
        }
        Target::Nbd(socket) => {
            let uri = format!("nbd+unix:///disk?socket={}", socket.display());
            // fio takes what is behind a colon for another file.
            fio.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
        }
    }
    fio.args(["--name=reads", "--rw=randread", "--bs=4k", "--readonly"])
        .args(["--time_based=1", "--norandommap=1", "--output-format=json"])
        .arg(format!("--runtime={SECONDS}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--size={bytes}"));
    let output = run_ok(fio, DEADLINE)?.output;
    // Warnings may stand before it.
    let json = output.find('{').map_or("", |at| &output[at..]);
    let report: Value = serde_json::from_str(json).context("reading what fio said")?;
    report["jobs"][0]["read"]["iops"]
        .as_f64()
        .context("fio does not say how often it read")
}
