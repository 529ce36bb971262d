//! Processes that a package in a Zygote has made children of ours, and told nobody.
//!
//! A Zygote makes its children ours (`CLONE_PARENT`), and so can its packages, as often as they like. One that has ended stays as a
//! zombie, with a number that no other process gets, until we reap it. Those that nobody here waits for are found by their
//! user namespace: it is that of a Zygote.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::process;

/// Starts by Zygotes after which strays are looked for. A look reads the list of all children.
const STARTS: u64 = 16;

/// When to look, and whether somebody may have a child that is not written down yet.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    begun: AtomicU64,
    done: AtomicU64,
    due: AtomicBool,
    /// Held by who reaps: two could take the same number, and the second one that of another process.
    reaping: Mutex<()>,
}

/// A start by a Zygote, until its process is known.
#[derive(Debug)]
pub(crate) struct Underway<'a>(&'a Strays);

impl Strays {
    /// To be held while a Zygote starts a process, until that can be found among the sandboxes, the Zygotes and those that wait.
    pub(crate) fn underway(&self) -> Underway<'_> {
        if self.begun.fetch_add(1, SeqCst) % STARTS == STARTS - 1 {
            self.due.store(true, SeqCst);
        }
        Underway(self)
    }

    /// Returns whether there may be some.
    pub(crate) fn are_due(&self) -> bool {
        self.due.load(SeqCst)
    }

    /// Has them be looked for at the next occasion.
    pub(crate) fn expect(&self) {
        self.due.store(true, SeqCst);
    }

    /// Reaps children of ours that a Zygote with these users has made and that nobody waits for, which are those that `known`
    /// does not name. It is due again if some have not ended, or a start is underway: then nothing is done.
    pub(crate) fn reap(&self, users: &Range<u32>, known: impl FnOnce() -> HashSet<u32>) {
        self.due.store(false, SeqCst);
        let Some(_alone) = self.reaping.try_lock() else {
            self.expect();
            return;
        };
        let found = self.while_quiet(|| {
            // Before the others: one that is known now may be reaped, and its number be another's, by then.
            let known = known();
            let mut children = children(users);
            children.retain(|pid| !known.contains(pid));
            children
        });
        let Some(found) = found else {
            self.expect();
            return;
        };
        for pid in found {
            if !process::has_ended(pid) {
                self.expect();
                continue;
            }
            // It keeps its number until we reap it, and nobody else does.
            let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
            let reaped = waitpid(Pid::from_raw(pid.cast_signed()), Some(flags));
            log::debug!("a package in a Zygote has left the process {pid}: {reaped:?}");
        }
    }

    /// Runs `find` and returns what it has found, unless a start was underway at any time of that.
    fn while_quiet<T>(&self, find: impl FnOnce() -> T) -> Option<T> {
        let begun = self.begun.load(SeqCst);
        if self.done.load(SeqCst) != begun {
            return None;
        }
        let found = find();
        (self.begun.load(SeqCst) == begun).then_some(found)
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.0.done.fetch_add(1, SeqCst);
    }
}

/// Children of this process that are in a user namespace of a Zygote, or were when they ended.
fn children(users: &Range<u32>) -> BTreeSet<u32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = tasks.filter_map(|task| {
        // A thread may have ended meanwhile; its children are another's then.
        fs::read_to_string(task.ok()?.path().join("children")).ok()
    });
    let numbers = lists.flat_map(|list| {
        let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
        numbers.collect::<Vec<u32>>()
    });
    numbers.filter(|&pid| is_of(pid, users)).collect()
}

/// Whether a process is in a user namespace with these users, or in one below that has none.
fn is_of(pid: u32, users: &Range<u32>) -> bool {
    let Ok(map) = fs::read_to_string(format!("/proc/{pid}/uid_map")) else {
        return false;
    };
    let outside = map.split_whitespace().nth(1).map(str::parse);
    outside.is_none_or(|first| first.is_ok_and(|first| users.contains(&first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_found_while_a_start_is_underway() {
        let strays = Strays::default();
        assert_eq!(strays.while_quiet(|| 1), Some(1));
        let first = strays.underway();
        assert_eq!(strays.while_quiet(|| 1), None);
        let second = strays.underway();
        drop(first);
        assert_eq!(strays.while_quiet(|| 1), None);
        drop(second);
        assert_eq!(strays.while_quiet(|| 1), Some(1));
        // One that begins and is done meanwhile.
        assert_eq!(strays.while_quiet(|| drop(strays.underway())), None);
    }

    #[test]
    fn some_starts_make_a_look_due() {
        let strays = Strays::default();
        (1..STARTS).for_each(|_| drop(strays.underway()));
        assert!(!strays.are_due());
        drop(strays.underway());
        assert!(strays.are_due());
    }

    #[test]
    fn a_process_of_the_machine_is_no_stray() {
        assert!(!is_of(std::process::id(), &(0x7000_0000..0x7fff_ffff)));
    }
}
