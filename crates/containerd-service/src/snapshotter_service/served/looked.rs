//! What of the store was looked at, and what is to be looked at again.
//!
//! Each layer that is mounted for the first time names a boot image in the store. If that had all layers looked at, mounting
//! an image would look at each layer once for each of the others.

use std::time::SystemTime;

use bootimg::Store;

/// When the store changed last, as far as the system can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Its descriptions of container images.
    images: Option<SystemTime>,
    /// The names of its boot images.
    names: Option<SystemTime>,
}

impl Stamp {
    /// Two calls of stat(2).
    pub(super) fn of(store: &Store) -> Self {
        let images = std::fs::metadata(store.dir().join("stacks"));
        Self {
            images: images.and_then(|images| images.modified()).ok(),
            names: store.named_at(),
        }
    }
}

/// What is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Which layers container images have.
    pub(super) images: bool,
    /// Whether layers that are served have newer boot images, and others have any.
    pub(super) names: bool,
}

/// When the store had changed last before it was looked at.
#[derive(Debug, Default)]
pub(super) struct Looked {
    images: Option<Option<SystemTime>>,
    names: Option<Option<SystemTime>>,
}

impl Looked {
    /// Returns what is to be looked at in a store that changed last at `now`; `None` if that is nothing. Names that are new while
    /// layers are mounted can wait: most are those of these very layers.
    pub(super) fn due(&self, now: Stamp, is_mounting: bool) -> Option<Due> {
        let due = Due {
            images: self.images != Some(now.images),
            names: self.names != Some(now.names) && !is_mounting,
        };
        (due.images || due.names).then_some(due)
    }

    /// Notes that what was due is looked at, as it was at `now` or later.
    pub(super) fn note(&mut self, now: Stamp, due: Due) {
        if due.images {
            self.images = Some(now.images);
        }
        if due.names {
            self.names = Some(now.names);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(images: u64, names: u64) -> Stamp {
        let time = |secs| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
        Stamp {
            images: time(images),
            names: time(names),
        }
    }

    #[test]
    fn names_that_come_while_layers_are_mounted_are_looked_at_once() {
        let mut looked = Looked::default();
        let mut looks = 0;
        let mut look = |now, is_mounting| {
            let due = looked.due(now, is_mounting);
            if let Some(due) = due {
                looked.note(now, due);
                looks += usize::from(due.names);
            }
            due
        };
        let (images, names) = (true, true);
        assert_eq!(look(at(0, 0), false), Some(Due { images, names }));
        assert_eq!(look(at(0, 0), false), None);
        // A layer is mounted after the other.
        for number in 1..=100 {
            assert_eq!(look(at(0, number), true), None);
        }
        // An image that is new is known at once.
        let names = false;
        assert_eq!(look(at(1, 100), true), Some(Due { images, names }));
        let (images, names) = (false, true);
        assert_eq!(look(at(1, 100), false), Some(Due { images, names }));
        assert_eq!(look(at(1, 100), false), None);
        assert_eq!(looks, 2);
    }

    #[test]
    fn a_store_that_is_not_there_is_looked_at_once() {
        let mut looked = Looked::default();
        let nowhere = Stamp {
            images: None,
            names: None,
        };
        let due = looked.due(nowhere, false).unwrap();
        looked.note(nowhere, due);
        assert_eq!(looked.due(nowhere, false), None);
    }
}
