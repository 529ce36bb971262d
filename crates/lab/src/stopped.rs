//! Processes that are stopped for a while, as those that hang.

use std::fs;

use nix::sys::signal::Signal;
use rawio::pidfd::PidFd;

use super::until;

/// A process of which no thread runs. It goes on when this is dropped, whatever became of the test,
/// unless it was killed.
#[derive(Debug)]
pub struct Stopped(PidFd);

impl Stopped {
    /// Stops a process, and waits until all of it has stopped: one thread takes the signal, and
    /// stops the others when it comes to run, which may be late on a busy machine.
    pub fn stop(pid: u32) -> Self {
        let process = PidFd::open(pid).unwrap();
        process.signal(Signal::SIGSTOP).unwrap();
        let stopped = Self(process);
        until("all threads to stop", || stands_still(pid));
        stopped
    }

    /// Kills it.
    pub fn kill(self) {
        self.0.signal(Signal::SIGKILL).unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _gone = self.0.signal(Signal::SIGCONT);
    }
}

/// Whether one thread at least has stopped, which stops the others, and these have, too. One that
/// waits in the kernel where no signal reaches it (`D`) stops before it runs any more of its program.
fn stands_still(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true; // somebody killed it
    };
    // A thread may end meanwhile.
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let states: Vec<_> = stats
        .map(|stat| stat.rsplit_once(") ").unwrap().1.chars().next().unwrap())
        .collect();
    states.iter().all(|state| "ZX".contains(*state))
        || states.contains(&'T') && states.iter().all(|state| "TDZX".contains(*state))
}
