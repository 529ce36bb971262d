//! Where and of what a measurement was taken.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::process::run_ok;

/// What a report says of its origin. What cannot be found out is empty.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Commit of the measured sources, with `+` if they were changed.
    pub commit: String,
    /// Seconds since 1970 when the run began.
    pub began_unix_s: u64,
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub processor: String,
    /// Processors the rig may use.
    pub processors: usize,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// Average number of running processes in the minute before: what else the machine did.
    pub load: f64,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, key: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(key))
                .unwrap_or_default();
            line.split_once(':')
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal");
        Self {
            commit: commit(),
            began_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: after(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(1, Into::into),
            memory_kib: memory
                .split(' ')
                .next()
                .and_then(|kib| kib.parse().ok())
                .unwrap_or(0),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(args);
        run_ok(command, Duration::from_secs(30)).map(|done| done.output.trim().to_owned())
    };
    let Ok(mut commit) = git(&["rev-parse", "HEAD"]) else {
        return String::new();
    };
    if git(&["status", "--porcelain", "--untracked-files=no"])
        .is_ok_and(|changes| !changes.is_empty())
    {
        commit.push('+');
    }
    commit
}
