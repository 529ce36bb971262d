//! What the tests that mount have in common: a tree in memory, mounted in a directory of its own.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use blocks::testing::{MemCache, MemSource, Node, tree};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockRange, BlockSource, Caller, Event, Extent, FileId, FileKey,
    RangeSet, ReplayPlan, SourceError, Tree,
};
use tempfile::TempDir;
use yolofs::{Busy, Config, FileSystem, Mode, Mount, MountOptions, Privileges, Readahead};

/// Longer than anything here takes, however busy the machine is; nothing is timed by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A tree and its content.
pub(crate) struct Files {
    pub(crate) tree: Arc<Tree>,
    pub(crate) source: Arc<MemSource>,
}

impl Files {
    /// Makes a tree of nodes, each with the content at the same place in `contents`; the size of
    /// a file becomes that of its content.
    pub(crate) fn new(mut nodes: Vec<Node>, contents: &[(u32, Vec<u8>)]) -> Self {
        for (index, content) in contents {
            nodes[*index as usize].attr.size = content.len() as u64;
        }
        let tree = tree(&nodes).unwrap();
        let mut source = MemSource::default();
        for (index, content) in contents {
            source.insert(tree.key(FileId(*index)).unwrap(), content.clone());
        }
        Self {
            tree: Arc::new(tree),
            source: Arc::new(source),
        }
    }

    pub(crate) fn file_system(&self, mode: Mode) -> FileSystem {
        let source: Arc<dyn BlockSource> = self.source.clone();
        let boot_files = HashSet::new();
        FileSystem::new(self.tree.clone(), source, Config { mode, boot_files })
    }

    pub(crate) fn key(&self, file: u32) -> FileKey {
        self.tree.key(FileId(file)).unwrap()
    }
}

/// A source whose files change while it is read.
#[derive(Debug, Default)]
pub(crate) struct ChangingSource(pub(crate) RwLock<MemSource>);

impl BlockSource for ChangingSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.0.read().unwrap().read_at(file, offset, buf)
    }
}

/// Waits until something comes true that nobody announces.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// Whether the mount table lists anything at a path.
pub(crate) fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = path.to_str().unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path))
}

/// Runs a program that must succeed.
#[track_caller]
pub(crate) fn run(program: &str, args: &[&OsStr]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

/// A file system mounted in a directory of its own. Dropping it unmounts, and fails the test if
/// that leaves anything behind.
pub(crate) struct Mounted {
    mount: Option<Arc<Mount>>,
    _dir: TempDir,
}

impl Mounted {
    pub(crate) fn new(fs: FileSystem) -> Self {
        let dir = TempDir::new().unwrap();
        let target = dir.path().join("mnt");
        std::fs::create_dir(&target).unwrap();
        Self::at(fs, dir, &target)
    }

    pub(crate) fn at(fs: FileSystem, dir: TempDir, target: &Path) -> Self {
        Self::with(fs, dir, &MountOptions::new(target, "rig"))
    }

    /// Mounts without readahead, so that the kernel has only what was asked for.
    pub(crate) fn without_readahead(fs: FileSystem) -> Self {
        let dir = TempDir::new().unwrap();
        let options = MountOptions {
            readahead: Readahead::Kib(0),
            ..MountOptions::new(dir.path().canonicalize().unwrap(), "rig")
        };
        Self::with(fs, dir, &options)
    }

    pub(crate) fn honouring_privileges(fs: FileSystem) -> Self {
        let dir = TempDir::new().unwrap();
        let options = MountOptions {
            privileges: Privileges::Honoured,
            ..MountOptions::new(dir.path().canonicalize().unwrap(), "rig")
        };
        Self::with(fs, dir, &options)
    }

    fn with(fs: FileSystem, dir: TempDir, options: &MountOptions) -> Self {
        let mount = Mount::start(Arc::new(fs), options).unwrap();
        Self {
            mount: Some(Arc::new(mount)),
            _dir: dir,
        }
    }

    /// Takes the mount out, for tests that end it in a way of their own.
    pub(crate) fn into_mount(mut self) -> (Arc<Mount>, TempDir) {
        let dir = std::mem::replace(&mut self._dir, TempDir::new().unwrap());
        (self.mount.take().unwrap(), dir)
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        self.mount.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.mount().target().join(name)
    }

    /// How many requests were answered while `work` ran.
    pub(crate) fn requests_of<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let before = self.mount().counters().answered();
        let result = work();
        (result, self.mount().counters().answered() - before)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mount) = self.mount.take() else {
            return;
        };
        if std::thread::panicking() {
            return; // the mount unmounts by itself, and one failure is enough
        }
        mount.unmount(Busy::Wait, PATIENCE).unwrap();
        assert!(
            mount.wait_for_users(PATIENCE),
            "the session outlives the mount"
        );
    }
}

/// Bytes that differ from block to block and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// What a recording comes to: every block once, in the order of first use.
pub(crate) fn plan_of(events: Vec<(Caller, Event)>) -> ReplayPlan {
    let mut plan = ReplayPlan {
        runs: 1,
        bin_ms: 100,
        ..ReplayPlan::default()
    };
    let mut seen: HashMap<FileId, RangeSet> = HashMap::new();
    for (_, event) in events {
        match event {
            Event::Touch(touch) => plan.touches.push(touch),
            Event::Read(access) => {
                let set = seen.entry(access.file).or_default();
                for range in set.gaps(BlockRange::covering(access.offset, access.len)) {
                    set.insert(range);
                    plan.extents.push(Extent {
                        file: access.file,
                        range,
                        bin: 0,
                        seen: 1,
                    });
                }
            }
        }
    }
    plan
}

/// A boot image in memory: the blocks of a plan.
pub(crate) fn memory_image(files: &Files, plan: &ReplayPlan) -> MemCache {
    let cache = MemCache::default();
    for extent in &plan.extents {
        let key = files.key(extent.file.0);
        let whole = BlockRange::covering(0, key.version.size);
        let range = extent.range.intersect(whole);
        let mut data = vec![0; usize::try_from(range.len()).unwrap() * BLOCK_SIZE];
        files
            .source
            .read_at(&key, range.bytes().start, &mut data)
            .unwrap();
        cache.put(&key, range, &data);
    }
    cache
}
