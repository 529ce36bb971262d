//! Neighbours that read the same disk, each with one request in flight.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::interrupt::unblocked;
use crate::process::{Guard, wait_for};
use crate::stage::{Reads, Stage};

/// fio starts within a second, and ends when the last request is answered.
const DEADLINE: Duration = Duration::from_secs(60);
/// Requests of each that are done before it counts as running.
const WARM_UP: u64 = 2;

/// A running fio, with a thread for each neighbour.
#[derive(Debug)]
pub(super) struct Neighbours {
    fio: Guard,
    report: PathBuf,
}

impl Neighbours {
    /// Starts so many; `None` for none.
    pub(super) fn start(
        stage: &Stage,
        number: u32,
        scratch: &Path,
    ) -> anyhow::Result<Option<Self>> {
        if number == 0 {
            return Ok(None);
        }
        let report = scratch.join("fio.json");
        let mut command = Command::new("fio");
        command
            .args(
                "--name=neighbours --rw=randread --bs=4k --iodepth=1 --ioengine=psync --direct=1"
                    .split(' '),
            )
            .args(
                "--readonly --time_based --runtime=1d --invalidate=0 --thread --group_reporting"
                    .split(' '),
            )
            .args(["--output-format=json", "--numjobs", &number.to_string()])
            .arg("--output")
            .arg(&report)
            .arg("--filename")
            .arg(stage.device())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let before = stage.reads()?;
        // It is ended by a signal, so that it says what it has read.
        let mut fio = unblocked(|| Guard::spawn(&mut command))??;
        wait_for("read by fio", DEADLINE, || {
            if let Some(status) = fio.ended()? {
                bail!("fio ended ({status})");
            }
            let done = stage.reads()?.since(before).requests;
            Ok((done >= WARM_UP * u64::from(number)).then_some(()))
        })?;
        Ok(Some(Self { fio, report }))
    }

    /// Ends them, and returns what they have read: all of it, since none of their requests is in flight any more.
    pub(super) fn end(mut self) -> anyhow::Result<Reads> {
        let pid = i32::try_from(self.fio.pid()).context("a process id")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("ending fio")?;
        self.fio.wait_until(Instant::now() + DEADLINE)?;
        let text = std::fs::read_to_string(&self.report).context("reading what fio says")?;
        // Before its JSON it says which signal it was.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let said: Value = serde_json::from_str(json).context("reading what fio says")?;
        let read = &said["jobs"][0]["read"];
        let number = |field: &str| read[field].as_u64().context("fio counts no reads");
        Ok(Reads {
            requests: number("total_ios")?,
            bytes: number("io_bytes")?,
        })
    }
}
