//! What a keeper holds.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// How much a keeper takes.
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

    /// Takes a descriptor, or gives it back if there is no room for it.
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

    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.kept.iter().map(|(_, fd)| fd.as_fd()).collect()
    }

    /// The names as `LISTEN_FDNAMES` has them.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        names.join(":")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn names_need_not_be_different_and_go_together() {
        let mut store = Store::default();
        for name in ["a", "b", "a"] {
            store.put(name, descriptor()).unwrap();
        }
        assert_eq!(store.names(), "a:b:a");
        store.remove("a");
        store.remove("c");
        assert_eq!(
            (store.names().as_str(), store.descriptors().len()),
            ("b", 1)
        );
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
        assert_eq!(store.names(), "12345678:");
        store.remove("12345678");
        store.put("123456789", descriptor()).unwrap_err();
        store.put("12345678", descriptor()).unwrap();
    }
}
