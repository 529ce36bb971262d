//! A source that fails: a file system of ours that does what it is told.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::Context as _;
use blocks::{BlockSource, FileKey, SourceError, SourceErrorKind};
use localfs::{DirSource, SourceRoot, scan};
use yolofs::{Busy, Config, FileSystem, Mount, MountOptions};

use crate::commands::PATIENCE;

/// A directory shown at another place, with faults.
#[derive(Debug)]
pub(crate) struct FaultySource {
    mount: Mount,
    faults: Arc<Faults>,
}

/// How reads go wrong. Both are 0 when none does.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// One in so many fails with `EIO`.
    pub(crate) failing: AtomicU64,
    /// One in so many takes [`DELAY`] longer.
    pub(crate) slow: AtomicU64,
    reads: AtomicU64,
    /// Reads that failed on purpose.
    pub(crate) failed: AtomicU64,
    /// Reads that were held up on purpose.
    pub(crate) delayed: AtomicU64,
}

/// How long a slow read takes: a disk that is very busy.
const DELAY: Duration = Duration::from_millis(150);

impl FaultySource {
    /// Shows `dir` at `target`.
    pub(crate) fn mount(dir: &Path, target: &Path) -> anyhow::Result<Self> {
        let root = Arc::new(SourceRoot::open(dir).context("opening the source")?);
        let tree = Arc::new(scan(&root, |_| ()).context("scanning the source")?.tree);
        let faults = Arc::new(Faults::default());
        let source = Erratic {
            inner: DirSource::new(root, Arc::clone(&tree) as _),
            faults: Arc::clone(&faults),
        };
        let fs = FileSystem::new(tree, Arc::new(source), Config::default());
        let options = MountOptions::new(target, "faulty");
        let mount = Mount::start(Arc::new(fs), &options).context("mounting the faulty source")?;
        Ok(Self { mount, faults })
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Unmounts it.
    pub(crate) fn unmount(self) -> anyhow::Result<()> {
        self.mount
            .unmount(Busy::Wait, PATIENCE)
            .context("unmounting the faulty source")
    }
}

struct Erratic {
    inner: DirSource,
    faults: Arc<Faults>,
}

impl BlockSource for Erratic {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let read = self.faults.reads.fetch_add(1, Relaxed);
        let hit = |every: &AtomicU64| read.checked_rem(every.load(Relaxed)) == Some(0);
        if hit(&self.faults.slow) {
            self.faults.delayed.fetch_add(1, Relaxed);
            std::thread::sleep(DELAY);
        }
        if hit(&self.faults.failing) {
            self.faults.failed.fetch_add(1, Relaxed);
            let error = SourceError::new(SourceErrorKind::Io, "failing on purpose");
            return Err(error.about(file.file));
        }
        self.inner.read_at(file, offset, buf)
    }
}
