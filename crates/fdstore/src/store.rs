//! The descriptors of a keeper.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// The limits of a keeper.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Descriptors.
    pub descriptors: usize,
    /// Bytes of all names together with a colon each: they become one variable of the
    /// environment, of which the kernel takes 128 KiB (`MAX_ARG_STRLEN`).
    pub names_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            descriptors: 8192,
            names_bytes: 120 << 10,
        }
    }
}

/// Descriptors with names, which need not be different.
#[derive(Debug, Default)]
pub(crate) struct Store {
    kept: Vec<(String, OwnedFd)>,
    names_bytes: usize,
    limits: Limits,
}

impl Store {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Stores a descriptor, or returns it if there is no space for it.
    pub(crate) fn put(&mut self, name: &str, descriptor: OwnedFd) -> Result<(), OwnedFd> {
        let names_bytes = self.names_bytes + name.len() + 1;
        if self.kept.len() == self.limits.descriptors || names_bytes > self.limits.names_bytes {
            return Err(descriptor);
        }
        self.names_bytes = names_bytes;
        self.kept.push((name.to_owned(), descriptor));
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.kept.retain(|(its_name, _)| its_name != name);
        self.names_bytes = self.kept.iter().map(|(name, _)| name.len() + 1).sum();
    }

    /// Returns all of them, in the order in which they came.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        let kept = self.kept.iter();
        kept.map(|(name, descriptor)| (name.as_str(), descriptor.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(store: &Store) -> String {
        let names: Vec<_> = store.kept().map(|(name, _)| name).collect();
        names.join(":")
    }

    fn descriptor() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn names_need_not_be_different_and_go_together() {
        let mut store = Store::default();
        for name in ["a", "b", "a"] {
            store.put(name, descriptor()).unwrap();
        }
        assert_eq!(names(&store), "a:b:a");
        store.remove("a");
        store.remove("c");
        assert_eq!(names(&store), "b");
    }

    #[test]
    fn what_exceeds_a_limit_is_given_back_and_nothing_is_lost() {
        let mut store = Store::new(Limits {
            descriptors: 2,
            names_bytes: 10,
        });
        store.put("12345678", descriptor()).unwrap();
        store.put("12", descriptor()).unwrap_err();
        store.put("", descriptor()).unwrap();
        store.put("", descriptor()).unwrap_err();
        assert_eq!(names(&store), "12345678:");
        store.remove("12345678");
        store.put("123456789", descriptor()).unwrap_err();
        store.put("12345678", descriptor()).unwrap();
    }
}
