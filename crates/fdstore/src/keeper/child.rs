//! The process that a keeper looks after.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};
use rawio::pidfd::PidFd;

use super::restarts::Cause;

/// A process, and the state that it has reported.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: u32,
    process: PidFd,
    relation: Relation,
    started: Instant,
    /// Whether it has reported that it is ready.
    pub(super) ready: bool,
    /// Whether it has reported that it ends on purpose.
    pub(super) stopping: bool,
}

/// How it died.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    /// Its exit code, if it had one and it is known.
    pub(super) code: Option<i32>,
    pub(super) cause: Cause,
}

/// Signals by which others end a process; the rest is what a process does to itself.
const BY_OTHERS: [Signal; 5] = [
    Signal::SIGKILL,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// How it is related to the keeper.
#[derive(Clone, Copy, Debug)]
enum Relation {
    /// The keeper has started it, and learns its exit code.
    Own,
    /// It has started the keeper.
    Parent,
}

/// Ends a child that nobody has reaped: so the number is its own.
fn end_unwatched(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed());
    let _ended = kill(pid, Signal::SIGKILL).and_then(|()| waitpid(pid, None));
}

impl Child {
    /// Takes a process that this one has just started. It is ended if it cannot be watched: nobody would end it later.
    pub(super) fn started(pid: u32) -> io::Result<Self> {
        Self::new(pid, Relation::Own).inspect_err(|_| end_unwatched(pid))
    }

    /// The process `pid` that has started this one, or `None` if it has ended since.
    pub(super) fn parent(pid: u32) -> io::Result<Option<Self>> {
        let still = || u32::try_from(getppid().as_raw()).is_ok_and(|parent| parent == pid);
        if !still() {
            return Ok(None);
        }
        match Self::new(pid, Relation::Parent) {
            // It may have ended before its descriptor was opened, and the number be another's now.
            Ok(child) if still() => Ok(Some(Self {
                ready: true,
                ..child
            })),
            Err(error) if still() => Err(error),
            _ => Ok(None),
        }
    }

    fn new(pid: u32, relation: Relation) -> io::Result<Self> {
        Ok(Self {
            pid,
            process: PidFd::open(pid)?,
            relation,
            started: Instant::now(),
            ready: false,
            stopping: false,
        })
    }

    /// What polls as readable when it has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    pub(super) fn lived(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        self.process.signal(signal)
    }

    /// Reaps it after its end, and returns how it died, if that is known.
    pub(super) fn reap(&self) -> io::Result<Death> {
        let killed = Death {
            code: None,
            cause: Cause::Killed,
        };
        Ok(match self.relation {
            Relation::Parent => killed,
            Relation::Own => {
                let pid = Pid::from_raw(i32::try_from(self.pid).map_err(io::Error::other)?);
                match waitpid(pid, None)? {
                    WaitStatus::Signaled(_, signal, _) if BY_OTHERS.contains(&signal) => killed,
                    WaitStatus::Exited(_, code) => Death {
                        code: Some(code),
                        cause: Cause::Failed,
                    },
                    _ => Death {
                        code: None,
                        cause: Cause::Failed,
                    },
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "what is tested waits for it")]
    fn a_child_that_cannot_be_watched_is_ended() {
        let mut sleep = std::process::Command::new("sleep");
        let sleep = sleep.arg("1000").spawn().unwrap();
        end_unwatched(sleep.id());
        let pid = Pid::from_raw(sleep.id().cast_signed());
        assert_eq!(waitpid(pid, None), Err(nix::errno::Errno::ECHILD));
    }
}
