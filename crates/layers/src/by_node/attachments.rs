//! The layers that this process has attached, by place.
//!
//! Whether they still exist is read from the mount table, which takes a while: no lock is held meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use blocks::{Digest, SourceId};
use bootimg::ImageId;
use parking_lot::Mutex;

/// A layer that this process has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) layer: Digest,
    /// The directory of the layer.
    pub(super) source: SourceId,
    pub(super) image: ImageId,
}

/// All of them, by the place where they are mounted.
#[derive(Debug, Default)]
pub(super) struct Attachments(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    by_target: BTreeMap<PathBuf, (Serial, Attachment)>,
    next: Serial,
    lost: u64,
}

/// Tells a layer that is attached from one that was attached before at the same place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Serial(u64);

/// The attachments at one moment.
#[derive(Debug)]
pub(super) struct Moment(Vec<(PathBuf, Serial)>);

impl Attachments {
    /// Adds a layer that is mounted now.
    pub(super) fn insert(&self, target: &Path, attachment: Attachment) {
        let mut state = self.0.lock();
        let serial = state.next;
        state.next = Serial(serial.0 + 1);
        let entry = (serial, attachment);
        state.by_target.insert(target.to_owned(), entry);
    }

    /// Forgets a layer that this process has detached.
    pub(super) fn remove(&self, target: &Path) {
        self.0.lock().by_target.remove(target);
    }

    /// Returns whether a layer is attached at a place.
    pub(super) fn contains(&self, target: &Path) -> bool {
        self.0.lock().by_target.contains_key(target)
    }

    /// Returns the attachments, by place.
    pub(super) fn all(&self) -> BTreeMap<PathBuf, Attachment> {
        let state = self.0.lock();
        let all = state.by_target.iter();
        all.map(|(target, (_, attachment))| (target.clone(), *attachment))
            .collect()
    }

    /// Returns the present attachments, to be compared with a mount table that is read afterwards.
    pub(super) fn moment(&self) -> Moment {
        let state = self.0.lock();
        let all = state.by_target.iter();
        Moment(
            all.map(|(target, (serial, _))| (target.clone(), *serial))
                .collect(),
        )
    }

    /// Removes attachments of a moment that are missing in the mount table that was read after it: another process
    /// has unmounted them. Attachments made since are not compared.
    pub(super) fn retain(&self, moment: Moment, mounted: &BTreeSet<PathBuf>) {
        let mut state = self.0.lock();
        for (target, serial) in moment.0 {
            let is_same = state
                .by_target
                .get(&target)
                .is_some_and(|(now, _)| *now == serial);
            if is_same && !mounted.contains(&target) {
                state.by_target.remove(&target);
                state.lost += 1;
            }
        }
    }

    /// Returns how many were removed because another process had unmounted them.
    pub(super) fn lost(&self) -> u64 {
        self.0.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> Attachment {
        Attachment {
            layer: Digest([1; 32]),
            source: SourceId::default(),
            image: ImageId(blocks::ContentId::of(b"image")),
        }
    }

    #[test]
    fn what_somebody_else_unmounted_is_forgotten_and_counted() {
        let attachments = Attachments::default();
        let [a, b] = ["/a", "/b"].map(Path::new);
        attachments.insert(a, attachment());
        attachments.insert(b, attachment());
        let moment = attachments.moment();
        attachments.retain(moment, &BTreeSet::from([b.to_owned()]));
        assert!(!attachments.contains(a) && attachments.contains(b));
        assert_eq!(attachments.lost(), 1);
        attachments.remove(b);
        assert!(attachments.all().is_empty());
        assert_eq!(attachments.lost(), 1, "detached by this process");
    }

    #[test]
    fn what_is_attached_while_the_mount_table_is_read_is_not_missed_in_it() {
        let attachments = Attachments::default();
        let [a, b] = ["/a", "/b"].map(Path::new);
        attachments.insert(a, attachment());
        let moment = attachments.moment();
        let table = BTreeSet::new();
        attachments.remove(a);
        attachments.insert(a, attachment());
        attachments.insert(b, attachment());
        attachments.retain(moment, &table);
        assert!(attachments.contains(a) && attachments.contains(b));
        assert_eq!(attachments.lost(), 0);
    }
}
