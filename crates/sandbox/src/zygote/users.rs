//! The ranges of users of Zygotes.
//!
//! A Zygote is root of a user namespace, and the namespace of a Zygote that was forked from it is below
//! its own. So the users of one are a part of the users of the other. A range is divided into units of one user for
//! each sandbox, and root: the first unit is the Zygote's own and its children's, the others are ranges of Zygotes
//! below it. No two Zygotes share a unit, and so none can signal or trace processes of another.

use std::ops::Range;

/// Zygotes that can be forked from one.
pub(crate) const BRANCHES: u32 = 7;

/// How many Zygotes can descend from each other.
pub(crate) const LEVELS: u32 = 3;

/// A range of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    /// The user outside that is root inside; the others follow.
    pub(crate) first: u32,
    /// Users of a unit.
    unit: u32,
    /// How many levels of Zygotes the range has room for, this one included.
    levels: u32,
}

impl Users {
    /// The range of a Zygote with no parent: `block` counts from 0.
    pub(crate) fn root(first_of_all: u32, unit: u32, block: u32) -> Self {
        let none = Self {
            first: 0,
            unit,
            levels: LEVELS,
        };
        let first = first_of_all + block * none.count();
        Self { first, ..none }
    }

    /// How many users are in it.
    pub(crate) fn count(self) -> u32 {
        self.unit * (BRANCHES + 1).pow(self.levels - 1)
    }

    /// Its users, and those of all ranges below it.
    pub(crate) fn all(self) -> Range<u32> {
        self.first..self.first + self.count()
    }

    /// The range of a Zygote below, if there can be one.
    pub(crate) fn branch(self, number: u32) -> Option<Self> {
        if self.levels < 2 || number >= BRANCHES {
            return None;
        }
        let below = Self {
            levels: self.levels - 1,
            ..self
        };
        let first = self.first + (number + 1) * below.count();
        Some(Self { first, ..below })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the units of a range and all below it, each as its first user and the one behind its last.
    fn units(of: Users, all: &mut Vec<(u32, u32)>) {
        all.push((of.first, of.first + of.unit));
        for branch in (0..).map_while(|number| of.branch(number)) {
            assert!(
                branch.first > of.first && branch.first + branch.count() <= of.first + of.count()
            );
            units(branch, all);
        }
    }

    #[test]
    fn no_two_zygotes_have_a_user_in_common() {
        let mut all = Vec::new();
        for block in 0..3 {
            units(Users::root(1000, 5, block), &mut all);
        }
        assert_eq!(all.len(), 3 * (1 + 7 + 49));
        all.sort_unstable();
        for pair in all.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{pair:?}");
        }
    }
}
