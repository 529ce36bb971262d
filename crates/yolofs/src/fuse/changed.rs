//! Files that have changed: how long the kernel knows their attributes, and who finds out that they change again.

use std::sync::Arc;
use std::time::Duration;

use blocks::FileId;

use super::convert::lifetime;
use crate::fs::FileSystem;

/// Returns how long the kernel may go on with what it is told of a file. It asks for the attributes of one that has
/// changed again and again; then somebody who may wait for the source looks at it, and this answer does not wait for
/// that.
pub(super) fn known_for(fs: &Arc<FileSystem>, file: FileId) -> Duration {
    if fs.begin_look(file) {
        match fs.waiter() {
            None => fs.look_again(file),
            Some(waiter) => {
                let (work, late) = (Arc::clone(fs), Arc::clone(fs));
                waiter.wait_for(
                    Box::new(move || work.look_again(file)),
                    Box::new(move |_error| late.end_look(file)),
                );
            }
        }
    }
    lifetime(fs.lifetime_of(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::prompt::Waiter;
    use blocks::testing::{MemAttrs, MemSource, Node, tree};
    use blocks::{Caller, FileKey, SourceError, SourceErrorKind, Timestamp, Version};
    use parking_lot::Mutex;

    use crate::fs::{CachePath, Config};

    const FILE: FileId = FileId(1);
    const MOMENT: Duration = Duration::from_secs(1);

    type Work = Box<dyn FnOnce() + Send>;
    type Late = Box<dyn FnOnce(SourceError) + Send>;

    /// Keeps what somebody is to wait for.
    #[derive(Default)]
    struct Kept(Mutex<Vec<(Work, Late)>>);

    impl Waiter for Kept {
        fn wait_for(&self, work: Work, late: Late) {
            self.0.lock().push((work, late));
        }
    }

    impl Kept {
        fn take(&self) -> (Work, Late) {
            let mut kept = self.0.lock();
            assert_eq!(kept.len(), 1, "one looks at a time");
            kept.remove(0)
        }
    }

    /// The kernel answers reads behind the end that it knows: no read tells of more.
    #[test]
    fn a_file_that_was_cut_and_is_written_again_is_seen_whole_by_its_attributes_alone() {
        let names = Arc::new(tree(&[Node::dir(&[("file", 1)]), Node::file(10_000)]).unwrap());
        let key = names.key(FILE).unwrap();
        let written = |size, secs| Version {
            size,
            ctime: Timestamp { secs, nanos: 0 },
            ..key.version
        };
        let mut source = MemSource::default();
        let version = written(0, 2);
        source.insert(FileKey { version, ..key }, Vec::new());
        let attrs = Arc::new(MemAttrs::of(&names));
        attrs.set_version(FILE, version);
        let waiter = Arc::new(Kept::default());
        let fs = FileSystem::new(names, Arc::new(source), Config::default())
            .with_attrs(Arc::clone(&attrs) as _)
            .with_waiter(waiter.clone());
        let fs = Arc::new(fs);
        // What has not changed is known for ever, and nobody looks.
        assert!(known_for(&fs, FILE) > MOMENT && known_for(&fs, FileId::ROOT) > MOMENT);
        let read = fs.read(Caller { pid: 1 }, FILE, 0, &mut [0; 10], CachePath::Through);
        assert_eq!(read.unwrap(), 0);
        attrs.set_version(FILE, written(7, 3));
        // One looks at a time, and no answer waits for that.
        assert_eq!([known_for(&fs, FILE), known_for(&fs, FILE)], [MOMENT; 2]);
        assert_eq!(fs.getattr(FILE).unwrap().size, 0);
        let (look, late) = waiter.take();
        // Another tries if it takes too long.
        late(SourceError::new(SourceErrorKind::Io, "part of the test"));
        assert_eq!(known_for(&fs, FILE), MOMENT);
        drop(waiter.take());
        look();
        assert_eq!(fs.getattr(FILE).unwrap().size, 7);
        // What fewer may read is not shown, and what was known is.
        attrs.change(FILE, |all| all.attr.perm = 0);
        known_for(&fs, FILE);
        waiter.take().0();
        assert_eq!(fs.getattr(FILE).unwrap().size, 7);
        assert!(known_for(&fs, FileId::ROOT) > MOMENT);
    }
}
