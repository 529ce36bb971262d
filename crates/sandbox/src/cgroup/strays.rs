//! Who is still in a group of version 1 whose user has ended.
//!
//! A Zygote may start processes in all groups of version 2 that it was given. In those of version 1 a process stays where its parent
//! was until it moves itself. So one that a package has started in the group of a sandbox, or in an earlier one of the pool, is in
//! the Zygote's own group of version 1, and there it is found.

use std::fs;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use rawio::pidfd::PidFd;

use super::PATIENCE;
use crate::error::{Result, SandboxError, at};

/// Kills all processes in a group of version 1, which has no file for that, and waits until none is left.
pub(super) fn end_all_in(dir: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let opened: Vec<_> = processes(dir)?
            .into_iter()
            .filter_map(|pid| Some((pid, PidFd::open(pid).ok()?)))
            .collect();
        // Who had a number when it was read may have ended before it was opened.
        let still = processes(dir)?;
        if still.is_empty() {
            return Ok(());
        }
        let left = || deadline.saturating_duration_since(Instant::now());
        for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
            let _gone = process.signal(Signal::SIGKILL);
        }
        for (_, process) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
            let ended = process.ended_within(left());
            ended.map_err(at("waiting for who is in", dir))?;
        }
        if left().is_zero() {
            let (doing, patience) = ("ending who stays in a control group", PATIENCE);
            return Err(SandboxError::Late { doing, patience });
        }
    }
}

fn processes(dir: &Path) -> Result<Vec<u32>> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(at("reading", path)(error)),
    }
}
