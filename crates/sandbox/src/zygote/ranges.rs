//! Which range of users a new Zygote gets: one that nobody has any more.
//!
//! A Zygote is root over its range, and may become each of the users in it. Its children outlive it, and so may a
//! start that is under way when it is evicted. So a range is free when the last process with one of its users has
//! ended, and not when its Zygote has.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::users::Users;

/// Ranges of Zygotes without a parent. Most are for former ones, whose children still run.
const BLOCKS_MAX: u32 = 64;

/// All ranges of a program.
#[derive(Debug)]
pub(crate) struct Ranges {
    first: u32,
    /// Users of a unit.
    unit: u32,
    /// Those that a Zygote has, or a start that it began.
    taken: Mutex<Vec<Weak<Users>>>,
}

impl Ranges {
    /// With users from `first` on, of which a Zygote has `unit` for itself and its children.
    pub(crate) fn new(first: u32, unit: u32) -> Self {
        Self {
            first,
            unit,
            taken: Mutex::default(),
        }
    }

    fn blocks(&self) -> u32 {
        let one = Users::root(self.first, self.unit, 0).count();
        BLOCKS_MAX.min((u32::MAX - self.first) / one)
    }

    /// All users that there can be.
    pub(crate) fn all(&self) -> Range<u32> {
        let one = Users::root(self.first, self.unit, 0).count();
        self.first..self.first + one * self.blocks()
    }

    /// Takes a range for a Zygote, below that of its parent if it has one; `None` if all are in use. `of_sandboxes`
    /// returns the users of the sandboxes that run.
    pub(crate) fn take(
        &self,
        parent: Option<Users>,
        of_sandboxes: impl FnOnce() -> BTreeSet<u32>,
    ) -> Option<Arc<Users>> {
        let mut taken = self.taken.lock();
        taken.retain(|users| users.strong_count() > 0);
        let mut used: BTreeSet<u32> = taken
            .iter()
            .filter_map(|users| users.upgrade().map(|users| users.first))
            .collect();
        // Behind the others: a start holds its range until its sandbox is among those that run.
        used.extend(of_sandboxes());
        let is_free = |users: &Users| used.range(users.all()).next().is_none();
        let mut ranges: Box<dyn Iterator<Item = Users>> = match parent {
            Some(parent) => Box::new((0..).map_while(move |number| parent.branch(number))),
            None => {
                Box::new((0..self.blocks()).map(|block| Users::root(self.first, self.unit, block)))
            }
        };
        let users = Arc::new(ranges.find(is_free)?);
        taken.push(Arc::downgrade(&users));
        Some(users)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_free_when_nobody_has_one_of_its_users() {
        let ranges = Ranges::new(1000, 5);
        let none = BTreeSet::new;
        let first = ranges.take(None, none).unwrap();
        let second = ranges.take(None, none).unwrap();
        assert_ne!(first, second);
        let below = ranges.take(Some(*first), none).unwrap();
        let beside = ranges.take(Some(*first), none).unwrap();
        assert_ne!(below, beside);
        // The Zygote has ended, and one that was forked from it, or a child of either, has not.
        let (of_first, of_below) = (*first, *below);
        drop((first, beside));
        assert_ne!(*ranges.take(None, none).unwrap(), of_first);
        drop(below);
        for user in [of_first.first + 1, of_below.first + 4] {
            let took = ranges.take(None, || BTreeSet::from([user])).unwrap();
            assert_ne!(*took, of_first);
        }
        assert_eq!(*ranges.take(None, none).unwrap(), of_first);
    }

    #[test]
    fn there_are_no_users_beyond_the_last() {
        let ranges = Ranges::new(u32::MAX - 700, 5);
        assert_eq!(ranges.blocks(), 2);
        assert!(ranges.all().end > ranges.all().start);
        let held: Vec<_> = (0..2)
            .map(|_| ranges.take(None, BTreeSet::new).unwrap())
            .collect();
        assert!(ranges.take(None, BTreeSet::new).is_none());
        drop(held);
    }
}
