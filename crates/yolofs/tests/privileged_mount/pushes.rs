//! Pages that are pushed while their file changes: the kernel is left with none of the old version.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Scope;

use blocks::testing::{MemAttrs, MemCache, Node, tree};
use blocks::{
    BlockCache, BlockIndex, BlockRange, BlockSource, Extent, FileId, FileKey, Lookup, Namespace,
    ReplayPlan, SourceError, Timestamp, Tree,
};
use nix::unistd::gettid;
use yolofs::{Config, FileSystem, PrewarmOptions, PrewarmReport};

use crate::live::LiveNames;
use crate::rig::{ChangingSource, Mounted, eventually, pattern};

/// Blocks in one message to the kernel; the file has one more, which is never pushed.
const PUSHED: u64 = 128;
const SIZE: usize = 129 * 4096;

/// A place that one thread at a time is held up at, when it is closed.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum GateState {
    #[default]
    Open,
    Closed,
    /// Somebody stands there.
    Reached,
}

impl Gate {
    fn set(&self, state: GateState) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    /// Goes through, when it is open.
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        if *state == GateState::Closed {
            *state = GateState::Reached;
            self.changed.notify_all();
        }
        let reached = |state: &mut GateState| *state == GateState::Reached;
        drop(self.changed.wait_while(state, reached).unwrap());
    }

    fn until_reached(&self) {
        let state = self.state.lock().unwrap();
        let closed = |state: &mut GateState| *state == GateState::Closed;
        drop(self.changed.wait_while(state, closed).unwrap());
    }
}

/// Opens a gate whatever becomes of the test: a failed one must not hang.
struct Opened<'a>(&'a Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.set(GateState::Open);
    }
}

/// A boot image that gives its blocks late.
#[derive(Debug, Default)]
struct LateCache {
    blocks: MemCache,
    gate: Gate,
}

impl BlockCache for LateCache {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        let found = self.blocks.get(file, range, out);
        self.gate.pass();
        found
    }

    fn put(&self, file: &FileKey, range: BlockRange, data: &[u8]) {
        self.blocks.put(file, range, data);
    }
}

/// A source that answers late what begins at the first block.
#[derive(Debug, Default)]
struct LateSource {
    files: ChangingSource,
    gate: Gate,
}

impl BlockSource for LateSource {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let read = self.files.read_at(file, offset, buf);
        if offset == 0 {
            self.gate.pass();
        }
        read
    }
}

/// Who knows the names of a source with one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    /// They do not change: a read finds out that the file did.
    Fixed,
    /// They are asked again each time, as with `--revalidate`.
    Live,
}

/// A mount of a file that changes, with a boot image of all of it but the last block.
struct Changing {
    mounted: Mounted,
    source: Arc<LateSource>,
    attrs: Arc<MemAttrs>,
    live: Arc<LiveNames>,
    names: Names,
    image: LateCache,
    plan: ReplayPlan,
}

/// The tree with the file in a version of this number, which is never the same twice.
fn version(number: u32) -> Tree {
    let mut file = Node::file(SIZE as u64);
    let changed = Timestamp {
        secs: number.into(),
        nanos: 0,
    };
    (file.attr.mtime, file.attr.ctime) = (changed, changed);
    tree(&[Node::dir(&[("file", 1)]), file]).unwrap()
}

impl Changing {
    fn new(names: Names) -> Self {
        let (source, image) = (Arc::new(LateSource::default()), LateCache::default());
        let live = Arc::new(LiveNames::new(version(0)));
        let shown: Arc<dyn Namespace> = match names {
            Names::Fixed => Arc::new(version(0)),
            Names::Live => live.clone(),
        };
        let attrs = Arc::new(MemAttrs::of(&version(0)));
        let fs = FileSystem::new(shown, source.clone(), Config::default())
            .with_attrs(Arc::clone(&attrs) as _);
        let range = BlockRange::with_len(BlockIndex(0), PUSHED);
        let bytes = pattern(0, SIZE);
        let key = version(0).key(FileId(1)).unwrap();
        image.put(&key, range, &bytes[..bytes.len() - 4096]);
        let extent = Extent {
            file: FileId(1),
            range,
            bin: 0,
            seen: 1,
        };
        let plan = ReplayPlan {
            runs: 1,
            extents: vec![extent],
            ..ReplayPlan::default()
        };
        let changing = Self {
            mounted: Mounted::without_readahead(fs),
            source,
            attrs,
            live,
            names,
            image,
            plan,
        };
        changing.change(0);
        changing
    }

    /// Gives the file another content.
    fn change(&self, number: u32) {
        let tree = version(number);
        let key = tree.key(FileId(1)).unwrap();
        self.attrs.set_version(key.file, key.version);
        let mut files = self.source.files.0.write().unwrap();
        files.insert(key, pattern(number.into(), SIZE));
        drop(files);
        *self.live.0.write().unwrap() = tree;
    }

    /// Has somebody find out that the file changed: the kernel, or who serves a read.
    fn notice(&self) {
        match self.names {
            Names::Live => drop(fs::metadata(self.path()).unwrap()),
            Names::Fixed => {
                let mut last = [0; 4096];
                let file = File::open(self.path()).unwrap();
                file.read_exact_at(&mut last, PUSHED * 4096).unwrap();
            }
        }
    }

    fn path(&self) -> std::path::PathBuf {
        self.mounted.path("file")
    }

    fn is(&self, number: u32) -> bool {
        fs::read(self.path()).unwrap() == pattern(number.into(), SIZE)
    }

    fn prewarm(&self) -> PrewarmReport {
        let options = PrewarmOptions::default();
        let mount = self.mounted.mount();
        mount.prewarm(&self.plan, &self.image, &options).unwrap()
    }
}

/// Blocks that the boot image gives after the change was noticed are not pushed, not even for a
/// moment.
fn blocks_that_come_late(names: Names) {
    for _ in 0..20 {
        let changing = Changing::new(names);
        let over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            let gate = &changing.image.gate;
            let opened = Opened(gate);
            gate.set(GateState::Closed);
            let prewarm = scope.spawn(|| changing.prewarm());
            gate.until_reached();
            changing.change(1);
            changing.notice();
            eventually("the kernel has the new version", || changing.is(1));
            let reader = scope.spawn(|| {
                // What is pushed first would be there for the longest time.
                let (file, mut first) = (File::open(changing.path()).unwrap(), [0; 4096]);
                while !over.load(SeqCst) {
                    file.read_exact_at(&mut first, 0).unwrap();
                    assert!(first == pattern(1, 4096)[..], "the old version was over");
                }
            });
            drop(opened);
            let report = prewarm.join().unwrap();
            over.store(true, SeqCst);
            reader.join().unwrap();
            report
        });
        assert_eq!(report.injected_bytes, 0, "{report:?}");
        assert_eq!(report.diverted_bytes, PUSHED * 4096, "{report:?}");
        assert!(changing.is(1), "the old version was over");
    }
}

#[test]
fn blocks_that_come_after_a_change_are_not_pushed() {
    blocks_that_come_late(Names::Fixed);
}

#[test]
fn blocks_that_come_after_a_change_of_a_live_source_are_not_pushed() {
    blocks_that_come_late(Names::Live);
}

/// Has a thread do something, and waits until it waits in the kernel for a page.
fn waits<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, T> {
    let (tell, told) = std::sync::mpsc::channel();
    let thread = scope.spawn(move || {
        tell.send(gettid()).unwrap();
        work()
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    eventually("it waits in the kernel", || {
        let stat = fs::read_to_string(&stat).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('D')
    });
    thread
}

/// The kernel is held up in the middle of a push, by a reader who has a page that it wants; the file
/// changes; and when the reader has its page, whatever the kernel was told since and the rest of
/// the push are in a race, which the push must not win.
fn a_push_that_is_held_up(names: Names) {
    for _ in 0..30 {
        let changing = Changing::new(names);
        std::thread::scope(|scope| {
            let gate = &changing.source.gate;
            let opened = Opened(gate);
            gate.set(GateState::Closed);
            let reader = scope.spawn(|| {
                let mut first = [0; 4096];
                let file = File::open(changing.path()).unwrap();
                file.read_exact_at(&mut first, 0).unwrap();
            });
            gate.until_reached();
            let prewarm = waits(scope, || changing.prewarm());
            changing.change(1);
            match names {
                // The kernel forgets by itself, and waits for the page.
                Names::Live => drop(waits(scope, || changing.notice())),
                Names::Fixed => changing.notice(),
            }
            drop(opened);
            reader.join().unwrap();
            prewarm.join().unwrap();
        });
        eventually("the old version is gone", || changing.is(1));
    }
}

#[test]
fn a_push_that_is_held_up_is_over_before_the_kernel_forgets() {
    a_push_that_is_held_up(Names::Fixed);
}

#[test]
fn a_push_that_is_held_up_leaves_nothing_in_a_live_source() {
    a_push_that_is_held_up(Names::Live);
}
