//! Data of a process from `/proc`: when it started, and how it ended.

use std::fs::{self, File};
use std::io::Read as _;
use std::time::{Duration, Instant};

use nix::libc;
use rawio::pidfd::PidFd;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitStatus {
    /// It returned this.
    Code(i32),
    /// A signal with this number ended it.
    Signal(i32),
    /// Unknown: the process that started it ended before it did, and this kernel keeps no status of such
    /// processes (Linux before 6.15).
    Unknown,
}

impl ExitStatus {
    /// Reads what `wait(2)` returns.
    fn of_wait(status: i32) -> Self {
        match libc::WIFSIGNALED(status) {
            true => Self::Signal(libc::WTERMSIG(status)),
            false => Self::Code(libc::WEXITSTATUS(status)),
        }
    }
}

/// A line of `/proc/PID/stat`, in part.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    ended: bool,
    /// In clock ticks since the machine started.
    started: u64,
    exit_code: i32,
}

impl Stat {
    fn read(line: &str) -> Option<Self> {
        // Behind the name, which may have anything in it.
        let (_, rest) = line.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            ended: matches!(*fields.first()?, "Z" | "X"),
            started: fields.get(19)?.parse().ok()?,
            exit_code: fields
                .get(49)
                .and_then(|code| code.parse().ok())
                .unwrap_or(0),
        })
    }

    fn of(pid: u32) -> Option<Self> {
        // In one call: the kernel does not say how long it is, so it would be read in small pieces.
        let mut line = [0; 2048];
        let len = File::open(format!("/proc/{pid}/stat"))
            .and_then(|mut file| file.read(&mut line))
            .ok()?;
        Self::read(&String::from_utf8_lossy(&line[..len]))
    }
}

/// Returns when a process started, in clock ticks since the machine did, or nothing if it has ended.
pub(crate) fn started(pid: u32) -> Option<u64> {
    let stat = Stat::of(pid)?;
    (!stat.ended).then_some(stat.started)
}

/// Returns whether a process has ended and was not reaped.
pub(crate) fn has_ended(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.ended)
}

/// Returns the bytes of a process's memory, where a shared page counts in part. 0 if it
/// has ended.
pub(crate) fn unshared_bytes(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Opens the process that has this number and started then.
pub(crate) fn open(pid: u32, started_at: u64) -> Option<PidFd> {
    let process = PidFd::open(pid).ok()?;
    // Looked at after it was opened: the number cannot have gone to another since.
    (started(pid) == Some(started_at)).then_some(process)
}

/// Reaps a process that has ended, or asks the kernel how it ended if it is another process's child.
pub(crate) fn exit_status(process: &PidFd, pid: u32) -> ExitStatus {
    use std::os::fd::AsFd as _;

    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let reap = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    match waitid(Id::PIDFd(process.as_fd()), reap) {
        Ok(WaitStatus::Exited(_, code)) => return ExitStatus::Code(code),
        Ok(WaitStatus::Signaled(_, signal, _)) => return ExitStatus::Signal(signal as i32),
        _ => {}
    }
    // One of a former process of ours: its parent reaps it, sooner or later.
    let unreaped = Stat::of(pid).filter(|stat| stat.ended);
    let status = match process.exit_status() {
        Ok(Some(status)) => Some(status),
        _ if matches!(process.number(), Ok(Some(_))) => unreaped.map(|stat| stat.exit_code),
        // It was reaped between the two questions.
        _ => process.exit_status().ok().flatten(),
    };
    status.map_or(ExitStatus::Unknown, ExitStatus::of_wait)
}

/// How long a process that was killed may take to end: one that waits for a disk cannot die before the disk answers.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

/// Kills a child of ours that nobody else reaps, and reaps it, where no more descriptors can be opened.
pub(crate) fn end_child(pid: u32) {
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
    let _gone = kill(pid, Signal::SIGKILL);
    let deadline = Instant::now() + DEATH_PATIENCE;
    while waitpid(pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
        if Instant::now() > deadline {
            log::error!("the process {pid} was killed and has not ended");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a process, and returns whether it has ended in time. It is not reaped.
pub(crate) fn killed(process: &PidFd) -> bool {
    let _gone = process.signal(nix::sys::signal::Signal::SIGKILL);
    matches!(process.ended_within(DEATH_PATIENCE), Ok(true))
}

/// Kills a child of ours, and reaps it.
pub(crate) fn end(process: &PidFd) {
    if killed(process) {
        exit_status(process, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_line_is_read_behind_any_name() {
        let line = "7 (a) Z) Z 1 7 7 0 -1 4228364 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 \
                    0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 768";
        let expected = Stat {
            ended: true,
            started: 4711,
            exit_code: 768,
        };
        assert_eq!(Stat::read(line), Some(expected));
        assert_eq!(Stat::read("7 (a Z 1"), None);
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let pid = std::process::id();
        let at = started(pid).unwrap();
        assert!(open(pid, at).is_some());
        assert!(open(pid, at + 1).is_none());
    }

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping it is what is tested")]
    fn the_end_of_a_child_is_read_once_it_has_ended() {
        for (script, expected) in [
            ("exit 3", ExitStatus::Code(3)),
            ("kill -9 $$", ExitStatus::Signal(9)),
        ] {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let process = PidFd::open(child.id()).unwrap();
            assert!(process.ended_within(Duration::from_secs(60)).unwrap());
            assert_eq!(exit_status(&process, child.id()), expected);
        }
    }
}
