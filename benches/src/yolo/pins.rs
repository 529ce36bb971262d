//! What QEMU touches of the host's files, held by `yolofs pin serve`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::process::{Guard, run_ok, wait_for};
use crate::programs::{DEADLINE, Programs};

/// Seconds of QEMU that are recorded: its start is over by then.
const RECORDED: &str = "3";

/// Recorded pages, which can be held.
#[derive(Debug)]
pub(super) struct Pins {
    dir: PathBuf,
}

impl Pins {
    /// Records what a machine with these arguments touches, into a directory.
    pub(super) fn record(
        programs: &Programs,
        machine: &[String],
        dir: PathBuf,
    ) -> anyhow::Result<Self> {
        let pins = Self { dir };
        let mut record = pins.pin(programs);
        record
            .args(["record", "--name", "qemu", "--for", RECORDED, "--"])
            .arg("qemu-system-x86_64")
            .args(machine)
            .args(["-serial", "null", "-monitor", "none"]);
        run_ok(record, DEADLINE).context("recording what QEMU touches")?;
        Ok(pins)
    }

    fn pin(&self, programs: &Programs) -> Command {
        let mut command = programs.yolofs();
        command.arg("pin").env("YOLOFS_PINS", &self.dir);
        command
    }

    /// Holds them until what is returned is dropped.
    pub(super) fn hold(&self, programs: &Programs) -> anyhow::Result<Guard> {
        let mut serve = self.pin(programs);
        serve
            .arg("serve")
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut holder = Guard::spawn(&mut serve)?;
        wait_for("the pins", DEADLINE, || {
            if let Some(status) = holder.ended()? {
                bail!("yolofs pin serve ended ({status})");
            }
            let mut status = self.pin(programs);
            status.args(["status", "--json"]);
            let said: Value = serde_json::from_str(&run_ok(status, DEADLINE)?.output)?;
            Ok(said["pid"].is_u64().then_some(()))
        })?;
        let mut apply = self.pin(programs);
        apply.args(["apply", "qemu"]);
        run_ok(apply, DEADLINE).context("applying the pins")?;
        Ok(holder)
    }
}
