//! Children that a Zygote has forked in advance: each waits for what it is to run.
//!
//! The fork of an interpreter takes the kernel most of the time of a start, as it copies the table of its pages. So one is
//! made after each start, for the next one. It has the rights of its Zygote until then.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rawio::pidfd::PidFd;

use super::protocol::{Control, ForkRequest};
use super::{Zygote, read_ready};
use crate::cgroup::{Group, Pool};
use crate::error::{Result, step};
use crate::stdio::null_stdio;

/// How many wait, for each Zygote: starts that come at once have the others forked as they come.
const SPARES_MAX: usize = 1;

/// Those of a Zygote; `None` after its end.
#[derive(Debug)]
pub(crate) struct Spares(Mutex<Option<Vec<Spare>>>);

/// A child that waits, in a group of its own.
#[derive(Debug)]
pub(crate) struct Spare {
    group: Group,
    waiting: Waiting,
}

/// The child, and the socket by which it is told what to run.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// As the kernel says; of whom, is not known yet.
    pid: u32,
    pub(super) process: PidFd,
    pub(super) control: Control,
}

impl Default for Spares {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Spares {
    /// Returns how many wait.
    pub(super) fn count(&self) -> usize {
        self.0.lock().as_ref().map_or(0, Vec::len)
    }

    /// Returns the bytes of memory of those that wait, of which a page that several processes share counts in parts.
    pub(super) fn unshared_bytes(&self) -> u64 {
        let pids = self.pids();
        pids.into_iter().map(crate::process::unshared_bytes).sum()
    }

    /// Returns the numbers of those that wait.
    pub(super) fn pids(&self) -> Vec<u32> {
        let spares = self.0.lock();
        let all = spares.iter().flatten();
        all.map(|spare| spare.waiting.pid).collect()
    }

    fn are_wanted(&self) -> bool {
        let spares = self.0.lock();
        spares
            .as_ref()
            .is_some_and(|spares| spares.len() < SPARES_MAX)
    }

    fn put(&self, spare: Spare) -> Option<Spare> {
        match &mut *self.0.lock() {
            Some(spares) => {
                spares.push(spare);
                None
            }
            None => Some(spare),
        }
    }
}

impl Spare {
    /// Returns its group, and the child that waits in it.
    pub(crate) fn into_parts(self) -> (Group, Waiting) {
        (self.group, self.waiting)
    }

    /// Ends one that is not needed any more.
    fn end(self, zygote: &Zygote, pool: &Pool) {
        // Whose process it is, is known when it has given up its rights only.
        if let Err(error) = self.group.kill() {
            log::warn!("a child of the Zygote {} runs on: {error}", zygote.id);
        }
        crate::process::exit_status(&self.waiting.process, 0);
        zygote.lent.put_back(self.group, pool);
    }
}

impl Zygote {
    /// Has a child forked for the next request, unless one waits already.
    pub(crate) fn prepare(&self, pool: &Pool) -> Result<()> {
        if !self.spares.are_wanted() {
            return Ok(());
        }
        let group = self.take_group(pool)?;
        match self.fork_spare(&group) {
            Ok(waiting) => {
                let spare = Spare { group, waiting };
                if let Some(spare) = self.spares.put(spare) {
                    spare.end(self, pool);
                }
                Ok(())
            }
            Err(error) => {
                self.lent.put_back(group, pool);
                Err(error)
            }
        }
    }

    fn fork_spare(&self, group: &Group) -> Result<Waiting> {
        let (ready, theirs) = io::pipe().map_err(step("making a pipe"))?;
        let (control, own) = Control::pair().map_err(step("making a socket"))?;
        let stdio = null_stdio()?;
        let groups = group.legacy();
        let mut descriptors: Vec<BorrowedFd<'_>> = stdio.iter().map(|fd| fd.as_fd()).collect();
        descriptors.extend([theirs.as_fd(), group.lent_birth()?]);
        descriptors.extend(&groups);
        descriptors.push(own.as_fd());
        let fork = ForkRequest {
            dir: "/tmp",
            groups: groups.len(),
            spare: true,
            ..ForkRequest::default()
        };
        let process = self.ask(fork, &descriptors)?;
        drop(theirs);
        match read_ready(ready) {
            Ok(said) if said == [0] => Ok(Waiting {
                pid: process.number().ok().flatten().unwrap_or(0),
                process,
                control,
            }),
            said => Err(self.fault(format!("has a child that does not wait: {said:?}"))),
        }
    }

    /// Takes a child that waits.
    pub(crate) fn take_spare(&self, pool: &Pool) -> Option<Spare> {
        loop {
            let spare = self.spares.0.lock().as_mut()?.pop()?;
            match spare.waiting.process.ended_within(Duration::ZERO) {
                Ok(false) => return Some(spare),
                _ => spare.end(self, pool),
            }
        }
    }

    /// Ends those that wait. There are no more from now on.
    pub(crate) fn end_spares(&self, pool: &Pool) {
        let spares = self.spares.0.lock().take();
        for spare in spares.into_iter().flatten() {
            spare.end(self, pool);
        }
    }
}
