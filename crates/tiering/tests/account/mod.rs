//! An account of what must be there, and of what may be because something ended in the middle.

use std::collections::BTreeSet;
use std::fmt::Display;

/// The account, of things with numbers.
#[derive(Debug, Default)]
pub(crate) struct Account<N> {
    pub(crate) kept: BTreeSet<N>,
    perhaps: BTreeSet<N>,
}

impl<N: Copy + Ord + Display> Account<N> {
    /// Begins with what is there.
    pub(crate) fn of(there: impl Iterator<Item = N>) -> Self {
        Self {
            kept: there.collect(),
            perhaps: BTreeSet::new(),
        }
    }

    /// Notes that one was added, or was to be, and returns whether it was.
    pub(crate) fn added<T, E>(&mut self, number: N, result: &Result<T, E>) -> bool {
        if result.is_ok() {
            self.perhaps.remove(&number);
            self.kept.insert(number);
        } else if !self.kept.contains(&number) {
            self.perhaps.insert(number);
        }
        result.is_ok()
    }

    /// Notes that one was removed, or was to be.
    pub(crate) fn removed<T, E>(&mut self, number: N, result: &Result<T, E>) {
        let was = self.kept.remove(&number);
        if result.is_ok() {
            self.perhaps.remove(&number);
        } else if was {
            self.perhaps.insert(number);
        }
    }

    /// Panics if one is gone that was kept, or is there that went.
    pub(crate) fn check(&self, number: N, is_there: bool, when: &str) {
        let kept = self.kept.contains(&number);
        assert!(is_there || !kept, "{when}: {number} is gone");
        let allowed = kept || self.perhaps.contains(&number);
        assert!(allowed || !is_there, "{when}: {number} came back");
    }
}
