//! Programs with a deadline.

use std::fs;
use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::poll::{PollFd, PollFlags, poll};

use crate::interrupt;

/// How often a wait looks whether the rig was interrupted; no wait is delayed by it.
const INTERRUPT_CHECK_MS: u16 = 100;
/// How often a condition is looked at that nothing announces.
const CONDITION_CHECK: Duration = Duration::from_millis(2);
/// A process that closed its output ends at once: this is how exactly its end is timed.
const EXIT_CHECK: Duration = Duration::from_micros(100);

/// What a program did.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub output: String,
    /// What it wrote to standard error.
    pub errors: String,
    /// From just before it was started until it was gone.
    pub elapsed: Duration,
}

/// Runs a program to its end.
///
/// # Errors
/// If it cannot be started, is not done within `deadline` (it is killed), or the rig is
/// interrupted. A program that fails is not an error.
pub fn run(command: Command, deadline: Duration) -> anyhow::Result<Finished> {
    run_heard(command, deadline, &mut |_| Ok(()))
}

/// As [`run`]; `hear` is told all that was written to standard error, whenever it is more.
///
/// # Errors
/// As [`run`], and those of `hear`.
pub fn run_heard(
    mut command: Command,
    deadline: Duration,
    hear: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Finished> {
    let name = format!("{:?}", command.get_program());
    let (output, stdout) = std::io::pipe().context("making a pipe")?;
    let (errors, stderr) = std::io::pipe().context("making a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .process_group(0);
    let started = Instant::now();
    let mut child = Guard::spawn(&mut command)?;
    drop(command); // with its ends of the pipes, so that the child's are the last
    let ([output, errors], status) = read_to_end([output, errors], started + deadline, hear)
        .and_then(|texts| Ok((texts, child.wait_until(started + deadline)?)))
        .with_context(|| format!("waiting for {name}"))?;
    Ok(Finished {
        status,
        output,
        errors,
        elapsed: started.elapsed(),
    })
}

/// Runs a program that must succeed, and returns what it did.
///
/// # Errors
/// As [`run`], and if the program fails: with what it wrote.
pub fn run_ok(command: Command, deadline: Duration) -> anyhow::Result<Finished> {
    let shown = format!("{command:?}");
    let finished = run(command, deadline)?;
    let (status, errors) = (finished.status, finished.errors.trim());
    ensure!(status.success(), "{shown} failed ({status}): {errors}");
    Ok(finished)
}

/// Reads both until their writers are gone; `hear` hears of the second.
fn read_to_end(
    mut pipes: [PipeReader; 2],
    deadline: Instant,
    hear: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<[String; 2]> {
    let mut texts = [Vec::new(), Vec::new()];
    let mut open = [true, true];
    let mut chunk = [0; 4096];
    while open.contains(&true) {
        interrupt::check()?;
        ensure!(Instant::now() < deadline, "it takes too long");
        for index in readable(&pipes, open)? {
            match pipes[index].read(&mut chunk).context("reading output")? {
                0 => open[index] = false,
                len => texts[index].extend_from_slice(&chunk[..len]),
            }
            if index == 1 {
                hear(&String::from_utf8_lossy(&texts[1]))?;
            }
        }
    }
    Ok(texts.map(|text| String::from_utf8_lossy(&text).into_owned()))
}

/// Waits a while until some of the open pipes can be read without waiting, and returns which.
fn readable(pipes: &[PipeReader; 2], open: [bool; 2]) -> anyhow::Result<Vec<usize>> {
    let waiting: Vec<usize> = (0..pipes.len()).filter(|&index| open[index]).collect();
    let mut events: Vec<_> = waiting
        .iter()
        .map(|&index| PollFd::new(pipes[index].as_fd(), PollFlags::POLLIN))
        .collect();
    poll(&mut events, INTERRUPT_CHECK_MS).context("waiting for output")?;
    let ready = waiting
        .iter()
        .zip(&events)
        .filter(|(_, event)| event.any().unwrap_or(true));
    Ok(ready.map(|(&index, _)| index).collect())
}

/// Waits until `condition` gives something.
///
/// # Errors
/// If it fails, gives nothing within `deadline`, or the rig is interrupted.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        interrupt::check()?;
        if let Some(value) = condition().with_context(|| format!("waiting for {what}"))? {
            return Ok(value);
        }
        if started.elapsed() > deadline {
            bail!("no {what} after {} s", deadline.as_secs());
        }
        thread::sleep(CONDITION_CHECK);
    }
}

/// A running program that dies with its owner.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Starts a program.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn().with_context(|| {
            format!("starting {} (installed?)", command.get_program().display())
        })?;
        Ok(Self { child })
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, or nothing while it runs.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .context("looking after a child process")
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// If it does not by `deadline`, or the rig is interrupted.
    pub fn wait_until(&mut self, deadline: Instant) -> anyhow::Result<ExitStatus> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            interrupt::check()?;
            ensure!(Instant::now() < deadline, "it takes too long");
            thread::sleep(EXIT_CHECK);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only if it is gone already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns how many bytes a process has read from disks, by the kernel's own count.
///
/// # Errors
/// If the process is gone.
pub fn disk_bytes_read(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/io");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    value
        .and_then(|value| value.parse().ok())
        .with_context(|| format!("{path} has no read_bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_and_status_come_back() {
        let finished = run(shell("echo out; echo err >&2; exit 3"), LONG).unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!(
            (finished.output.as_str(), finished.errors.as_str()),
            ("out\n", "err\n")
        );
    }

    #[test]
    fn what_is_said_is_heard_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        let script = "echo ready >&2; until [ -e \"$0\" ]; do sleep 0.01; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&go);
        // It ends only because it was heard.
        let mut hear = |said: &str| {
            if said.contains("ready") {
                fs::write(&go, "")?;
            }
            Ok(())
        };
        let finished = run_heard(command, LONG, &mut hear).unwrap();
        assert!(finished.status.success());
    }

    #[test]
    fn a_failure_is_told_with_what_was_written() {
        let error = run_ok(shell("echo no such luck >&2; false"), LONG)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such luck"), "{error}");
        let error = run_ok(Command::new("/nonexistent"), LONG)
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nonexistent"), "{error}");
    }

    #[test]
    fn what_takes_too_long_is_killed() {
        let error = run(shell("exec sleep 1000"), Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("too long"), "{error:#}");
        // A program that closes its output does not escape.
        let hidden = shell("exec >&- 2>&-; exec sleep 1000");
        assert!(run(hidden, Duration::from_millis(50)).is_err());
    }

    #[test]
    fn a_guard_kills() {
        let guard = Guard::spawn(&mut shell("exec sleep 1000")).unwrap();
        let pid = guard.pid();
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        drop(guard);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_condition_is_waited_for_or_named() {
        let mut looks = 0;
        let seen = wait_for("third look", LONG, || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(seen.unwrap(), 3);
        let never = wait_for("rain", Duration::from_millis(5), || Ok(None::<()>)).unwrap_err();
        assert!(never.to_string().contains("no rain"));
    }
}
