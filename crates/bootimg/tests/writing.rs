//! Writing under difficulties: files that change meanwhile, sources that fail, plans that cannot
//! be.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use blocks::testing::{Fault, Faulty, MemSource};
use blocks::{BlockSource, FileId, FileKey, SourceError, SourceErrorKind, Timestamp, Version};
use bootimg::{DropReason, Image, Variant, WriteError, WriteReport, WriteRequest, unwatched};
use sample::{APP, CONF, LIB, PLANNED, Sample, extent, nodes};

fn request<'a>(sample: &'a Sample, blocks: &'a dyn BlockSource) -> WriteRequest<'a> {
    WriteRequest {
        tree: &sample.tree,
        info: &sample.info,
        plan: &sample.plan,
        blocks,
        variant: Variant::Mapped,
    }
}

fn write(
    sample: &Sample,
    source: &dyn BlockSource,
    path: &Path,
) -> Result<WriteReport, WriteError> {
    bootimg::write_image(path, &request(sample, source), &mut unwatched)
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

/// A source in which one file becomes another version after so many reads of it.
struct Changing {
    inner: MemSource,
    file: FileId,
    reads: AtomicU64,
    kind: SourceErrorKind,
}

impl BlockSource for Changing {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        if file.file == self.file {
            let left = self
                .reads
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            if left.is_err() {
                buf.fill(0xEE);
                return Err(SourceError::new(self.kind, "reading on purpose in vain"));
            }
        }
        self.inner.read_at(file, offset, buf)
    }
}

#[test]
fn a_file_that_changes_at_any_read_is_left_out_whole() {
    let sample = Sample::new();
    let now = Version::default();
    let kinds = [
        (SourceErrorKind::Stale { now }, DropReason::Changed),
        (SourceErrorKind::NotFound, DropReason::Gone),
        (SourceErrorKind::Io, DropReason::Unreadable),
    ];
    let mut clean = 0;
    for ((kind, reason), reads) in kinds.into_iter().flat_map(|k| (0..8).map(move |n| (k, n))) {
        let source = Changing {
            inner: sample.source(),
            file: LIB,
            reads: AtomicU64::new(reads),
            kind,
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.bimg");
        let report = write(&sample, &source, &path).unwrap();
        let image = std::sync::Arc::new(Image::open(&path).unwrap());
        assert!(image.verify(&mut unwatched).unwrap().is_sound());
        if report.dropped.is_empty() {
            clean += 1;
            assert_eq!(sample.read_all(image), PLANNED);
            continue;
        }
        assert_eq!(report.dropped.len(), 1);
        assert_eq!(report.dropped.first().unwrap().path, b"lib/lib.so");
        assert_eq!(
            (
                report.dropped.first().unwrap().reason,
                report.dropped.first().unwrap().blocks
            ),
            (reason, 38)
        );
        assert!(image.dump().all(|row| row.file != LIB));
        // Nothing of it takes space either.
        assert_eq!(image.info().data_blocks, PLANNED - 38);
        assert_eq!(sample.read_all(image), PLANNED - 38);
    }
    assert!(clean < 12, "most of the reads are needed");
}

#[test]
fn a_source_that_fails_altogether_gives_an_image_without_content() {
    let sample = Sample::new();
    let source = Faulty::new(sample.source(), Fault::Busy, 0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.bimg");
    let report = write(&sample, &source, &path).unwrap();
    assert_eq!((report.blocks, report.dropped.len()), (0, 3));
    let image = Image::open(&path).unwrap();
    assert_eq!(**image.tree(), sample.tree);
    assert!(image.plan().extents.is_empty());
}

/// A source that changes a file's content under the same version: an edit within the tick of
/// the clock.
struct Sneaky {
    before: BTreeMap<FileId, Vec<u8>>,
    after: Vec<u8>,
    reads: AtomicU64,
    sneak_after: u64,
}

impl BlockSource for Sneaky {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let changed = file.file == CONF
            && buf.len() > 1
            && self.reads.fetch_add(1, Relaxed) >= self.sneak_after;
        let bytes = if changed {
            &self.after
        } else {
            &self.before[&file.file]
        };
        let start = usize::try_from(offset).unwrap();
        let len = buf.len().min(bytes.len() - start);
        buf[..len].copy_from_slice(&bytes[start..start + len]);
        Ok(len)
    }
}

#[test]
fn a_file_edited_within_the_tick_of_its_last_change_is_noticed() {
    let now = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Timestamp {
            secs: i64::try_from(now.as_secs()).unwrap(),
            nanos: now.subsec_nanos(),
        }
    };
    let drops = |ctime: Option<Timestamp>| {
        let mut nodes = nodes();
        if let Some(ctime) = ctime {
            nodes[4].attr.ctime = ctime;
        }
        let mut sample = Sample::with_nodes(&nodes);
        sample.plan.extents.retain(|extent| extent.file == CONF);
        let mut after = sample.content[&CONF].clone();
        after[50] ^= 1;
        let source = Sneaky {
            before: sample.content.clone(),
            after,
            reads: AtomicU64::new(0),
            sneak_after: 1,
        };
        let dir = tempfile::tempdir().unwrap();
        let report = write(&sample, &source, &dir.path().join("image.bimg")).unwrap();
        report.dropped.len()
    };
    assert_eq!(drops(None), 0, "an old file is not read twice");
    // A machine that is busy may take longer than a tick from here to the read: try again.
    assert!((0..1000).any(|_| drops(Some(now())) == 1));
    // Times that are whole seconds may be FAT's: two changes within two seconds have the same.
    for ago in 0..2 {
        let coarse = || Timestamp {
            secs: now().secs - ago,
            nanos: 0,
        };
        assert!((0..10).any(|_| drops(Some(coarse())) == 1), "{ago} s ago");
    }
}

#[test]
fn plans_that_cannot_be_are_refused_and_leave_nothing() {
    let bad = [
        extent(FileId(0), 0, 1, 0, 1),
        extent(FileId(4_000_000), 0, 1, 0, 1),
        extent(APP, 17, 0, 0, 1),
        extent(APP, 4, 1, 0, 4),
        extent(APP, 4, 1, 0, 0),
        extent(APP, 4, 2, 0, 1),
    ];
    for extent in bad {
        let mut sample = Sample::new();
        sample.plan.extents.push(extent);
        let dir = tempfile::tempdir().unwrap();
        let source = sample.source();
        let result = write(&sample, &source, &dir.path().join("image.bimg"));
        assert!(
            matches!(result, Err(WriteError::Plan { .. })),
            "{extent:?}: {result:?}"
        );
        assert!(is_empty(dir.path()));
    }
}

#[test]
fn cancelling_at_any_moment_leaves_nothing() {
    let sample = Sample::new();
    let source = sample.source();
    for count in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.bimg");
        let mut left = count;
        let result = bootimg::write_image(&path, &request(&sample, &source), &mut |progress| {
            assert!(progress.done <= progress.total);
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            ControlFlow::Continue(())
        });
        match result {
            Ok(_) => {
                assert!(count > 3);
                return;
            }
            Err(error) => assert!(matches!(error, WriteError::Cancelled)),
        }
        assert!(is_empty(dir.path()));
    }
}

#[test]
fn an_image_that_is_there_stays_whole_until_the_new_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.bimg");
    let old = Sample::other(1);
    old.write(&path, Variant::Mapped);
    let open = Image::open(&path).unwrap();
    Sample::other(2).write(&path, Variant::Mapped);
    assert_eq!(old.read_all(std::sync::Arc::new(open)), PLANNED);
    let new = Image::open(&path).unwrap();
    assert_eq!(Sample::other(2).read_all(std::sync::Arc::new(new)), PLANNED);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_directory_that_is_not_there_is_an_error_with_the_path() {
    let sample = Sample::new();
    let result = write(&sample, &sample.source(), Path::new("/nowhere/at/all.bimg"));
    let text = result.unwrap_err().to_string();
    assert!(text.contains("/nowhere/at/all.bimg"), "{text}");
}
