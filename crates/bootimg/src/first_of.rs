//! The first of what may be many.

/// Most entries that are kept: the list is for people, and programs use the count.
const KEPT_MAX: usize = 1000;

/// Bytes of the paths in a list, all together.
pub(crate) const PATHS_BUDGET: usize = 1 << 20;

/// The first thousand items, and the number of all: a file may have millions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstOf<T> {
    kept: Vec<T>,
    count: u64,
}

impl<T> Default for FirstOf<T> {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            count: 0,
        }
    }
}

impl<T> FirstOf<T> {
    /// Counts one, and keeps it if there is room.
    pub(crate) fn add(&mut self, one: impl FnOnce() -> T) {
        self.count += 1;
        if self.kept.len() < KEPT_MAX {
            self.kept.push(one());
        }
    }

    /// Returns one of those that are kept.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.kept.get_mut(index)
    }

    /// Returns those that are kept: the first thousand, in the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.kept.iter()
    }

    /// Returns the first item.
    #[must_use]
    pub fn first(&self) -> Option<&T> {
        self.kept.first()
    }

    /// Returns how many were found.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns how many were found that are not kept.
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.count - self.kept.len() as u64
    }
}

impl<'a, T> IntoIterator for &'a FirstOf<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_are_kept_and_all_are_counted() {
        let mut found = FirstOf::default();
        assert!(found.is_empty() && found.first().is_none());
        for number in 0..1003 {
            found.add(|| number);
        }
        assert_eq!((found.len(), found.more()), (1003, 3));
        assert_eq!(
            found.iter().copied().collect::<Vec<_>>(),
            (0..1000).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_is_not_kept_is_not_made() {
        let mut found = FirstOf::default();
        for _ in 0..1000 {
            found.add(|| ());
        }
        found.add(|| unreachable!("no room for it"));
    }
}
