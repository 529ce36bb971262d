//! Running the command.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use host::interrupt::Interrupt;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use rawio::pidfd::PidFd;

/// How often it is looked whether the user gave up.
const LOOK: Duration = Duration::from_millis(100);
/// How long a command may take to end after the signal to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a command until it ends, or until `limit` has passed: then its start is over, and it is ended.
///
/// # Errors
/// If it cannot be started, fails, or the user cancels.
pub(super) fn run(
    command: &[OsString],
    limit: Option<Duration>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let (program, args) = command.split_first().context("no command was named")?;
    let started = Instant::now();
    let mut child = Group::start(program, args)?;
    let process = PidFd::open(child.0.id()).context("opening the command's process")?;
    while !process
        .ended_within(LOOK)
        .context("waiting for the command")?
    {
        if interrupt.asked() || limit.is_some_and(|limit| started.elapsed() > limit) {
            child.end(&process)?;
            return interrupt.check();
        }
    }
    let status = child.0.wait().context("waiting for the command")?;
    check(status)
}

fn check(status: ExitStatus) -> anyhow::Result<()> {
    if !status.success() {
        bail!("the command failed ({status}), so nothing was kept");
    }
    Ok(())
}

/// A command and all that it starts, unless that makes itself independent. Dropping it kills it.
struct Group(Child);

impl Group {
    fn start(program: &OsString, args: &[OsString]) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).process_group(0);
        // A child inherits which signals are blocked, and this one is to end when it is told to.
        let ours = SigSet::thread_get_mask().context("looking at the blocked signals")?;
        SigSet::empty()
            .thread_set_mask()
            .context("unblocking signals")?;
        let child = command.spawn();
        ours.thread_set_mask().context("blocking signals")?;
        let child = child.with_context(|| format!("starting {}", program.to_string_lossy()))?;
        Ok(Self(child))
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.0.id()) {
            // It may have ended by itself.
            let _sent = killpg(Pid::from_raw(pid), signal);
        }
    }

    fn end(&mut self, process: &PidFd) -> anyhow::Result<()> {
        self.signal(Signal::SIGTERM);
        process
            .ended_within(PATIENCE)
            .context("waiting for the command")?;
        // What it has started and not ended, too: until it is waited for, nobody else has its number.
        self.signal(Signal::SIGKILL);
        self.0.wait().context("waiting for the command").map(drop)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(Signal::SIGKILL);
            let _status = self.0.wait();
        }
    }
}
