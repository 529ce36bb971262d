//! As much of QEMU's control protocol as asks for the disk's counters, and saves and restores a machine: a JSON object a
//! line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// QEMU answers at once, or not at all.
const DEADLINE: Duration = Duration::from_secs(20);
/// The longest line taken; the answers we ask for have 3 KB.
const LINE_MAX: u64 = 1 << 20;
/// How many events may come before an answer.
const EVENTS_MAX: usize = 100;

/// What the guest's disks have read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskReads {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// How long the guest waited for them, added up.
    pub(crate) time: Duration,
}

/// A connection to QEMU's monitor.
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets QEMU.
    pub(crate) fn new(stream: UnixStream) -> anyhow::Result<Self> {
        stream
            .set_read_timeout(Some(DEADLINE))
            .context("setting a timeout")?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        qmp.line()?; // QEMU's greeting
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Returns what the guest's disks have read.
    pub(crate) fn disk_reads(&mut self) -> anyhow::Result<DiskReads> {
        let answer = self.execute("query-blockstats", &json!({}))?;
        let disks = answer.as_array().context("QEMU lists no disks")?;
        let sum = |key: &str| {
            disks
                .iter()
                .filter_map(|disk| disk["stats"][key].as_u64())
                .sum()
        };
        Ok(DiskReads {
            requests: sum("rd_operations"),
            bytes: sum("rd_bytes"),
            time: Duration::from_nanos(sum("rd_total_time_ns")),
        })
    }

    /// Has a command done, and returns what it answers.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}").context("asking QEMU")?;
        for _ in 0..EVENTS_MAX {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command}: {error}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
        bail!("QEMU does not answer {command}")
    }

    fn line(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.stream
            .by_ref()
            .take(LINE_MAX)
            .read_line(&mut line)
            .context("hearing from QEMU")?;
        serde_json::from_str(&line).context("QEMU speaks no JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that says these lines whatever it is asked.
    fn qemu_says(lines: &'static str) -> (UnixStream, UnixStream) {
        let (mut qemu, rig) = UnixStream::pair().unwrap();
        qemu.write_all(lines.as_bytes()).unwrap();
        (qemu, rig)
    }

    #[test]
    fn adds_up_the_disks_and_passes_over_events() {
        let (_qemu, rig) = qemu_says(
            "{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"RESUME\"}\n\
             {\"return\": [{\"stats\": {\"rd_operations\": 3, \"rd_bytes\": 4096, \"rd_total_time_ns\": 9}}, \
             {\"stats\": {\"rd_operations\": 4, \"rd_bytes\": 512}}]}\n",
        );
        let expected = DiskReads {
            requests: 7,
            bytes: 4608,
            time: Duration::from_nanos(9),
        };
        assert_eq!(Qmp::new(rig).unwrap().disk_reads().unwrap(), expected);
    }

    #[test]
    fn a_refusal_is_an_error() {
        let (_qemu, rig) = qemu_says("{\"QMP\": {}}\n{\"error\": {\"desc\": \"no\"}}\n");
        assert!(Qmp::new(rig).is_err());
        let (_qemu, rig) = qemu_says("garbage\n");
        assert!(Qmp::new(rig).is_err());
    }
}
