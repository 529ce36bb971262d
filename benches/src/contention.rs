//! Somebody else's reads on the same disk.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, ensure};

use crate::process::{Guard, disk_bytes_read, wait_for};
use crate::stage::{Reads, Stage};

/// One request of the contender.
const BLOCK_BYTES: u64 = 4096;
/// How many requests it keeps in flight unless told otherwise: what a busy neighbour does to a disk.
pub const DEPTH: u32 = 8;
/// How many of its requests must be done before it counts as running: more than are in flight.
const WARM_UP_REQUESTS: u64 = 16;
/// fio starts within a second; a device at 50 requests a second answers the first 16 in another.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running fio that reads the device at random.
#[derive(Debug)]
pub struct Contention {
    fio: Guard,
}

impl Contention {
    /// Starts it, and returns when the disk's own counter says that it reads.
    ///
    /// # Errors
    /// If fio is missing or does not get to read.
    pub fn start(stage: &Stage) -> anyhow::Result<Self> {
        Self::with_depth(stage, DEPTH)
    }

    /// As [`start`](Self::start), with so many requests in flight.
    ///
    /// # Errors
    /// If fio is missing or does not get to read.
    pub fn with_depth(stage: &Stage, depth: u32) -> anyhow::Result<Self> {
        let mut command = Command::new("fio");
        command.args([
            "--name=contention",
            "--rw=randread",
            "--bs=4k",
            "--iodepth",
            &depth.to_string(),
        ]);
        command.args([
            "--direct=1",
            "--readonly",
            "--ioengine=libaio",
            "--time_based",
            "--runtime=1d",
        ]);
        // It must not start by dropping the device's cached blocks: a warm file system's names and
        // inodes live there.
        command.arg("--invalidate=0");
        // One process, so that its counters are all there is to look at.
        command.args(["--thread", "--filename"]).arg(stage.device());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let before = stage.reads()?;
        let mut fio = Guard::spawn(&mut command)?;
        // Nobody else reads the stage now. Its own counter would not do here: it counts what it
        // reads of its libraries, too.
        wait_for("read by fio", START_DEADLINE, || {
            if let Some(status) = fio.ended()? {
                bail!("fio ended ({status}): is libaio there?");
            }
            let done = stage.reads()?.since(before).requests;
            Ok((done >= WARM_UP_REQUESTS).then_some(()))
        })?;
        Ok(Self { fio })
    }

    /// Returns what it has read since it started; up to its depth of requests are still in
    /// flight.
    ///
    /// # Errors
    /// If it has ended, which would make a sample worthless.
    pub fn reads(&mut self) -> anyhow::Result<Reads> {
        ensure!(
            self.fio.ended()?.is_none(),
            "fio ended while it should contend"
        );
        let bytes = disk_bytes_read(self.fio.pid())?;
        Ok(Reads {
            requests: bytes / BLOCK_BYTES,
            bytes,
        })
    }
}
