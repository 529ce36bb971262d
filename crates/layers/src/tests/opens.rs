//! What binding a layer costs: the same for each, however many layers the store knows.

use std::ops::Range;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::*;

/// Layers that are bound before more are.
const FEW: u8 = 10;
/// Layers that are bound then.
const MANY: u8 = 100;
/// Blocks that a boot reads of a layer.
const BLOCKS: u64 = 16;

/// Files that are opened in the store for a layer: the hint, its segment, the hint again to note its use, and the new image;
/// the lock, the marker of the store, and the temporary file.
const OPENS: usize = 7;
/// Bytes that are written for a layer: the header twice, the footer and the metadata of one file.
const WRITTEN: u64 = 4 * 4096;
/// Bytes that are read for a layer: its blocks here and in the store, the metadata of two images, and the first byte of each
/// file once more.
const READ: u64 = 2 * BLOCKS * 4096 + 12 * 4096;

/// Counts what is opened in a store, by the kernel: no way of opening is missed.
struct Opens(Inotify);

impl Opens {
    fn of(store: &Store) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
        for part in ["images", "segments", "names", "tmp", "stacks", "pins", ""] {
            let dir = store.dir().join(part);
            inotify.add_watch(&dir, AddWatchFlags::IN_OPEN).unwrap();
        }
        Self(inotify)
    }

    /// Returns how many files and how many directories were opened since it was called last.
    fn take(&self) -> (usize, usize) {
        let mut opens = (0, 0);
        loop {
            let events = match self.0.read_events() {
                Err(Errno::EAGAIN) => return opens,
                events => events.unwrap(),
            };
            for event in events {
                assert!(!event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW));
                if event.mask.contains(AddWatchFlags::IN_ISDIR) {
                    opens.1 += 1;
                } else {
                    opens.0 += 1;
                }
            }
        }
    }
}

/// Bytes that this thread has had from read(2) and given to write(2) and the like.
#[derive(Clone, Copy, Debug)]
struct Moved {
    read: u64,
    written: u64,
}

impl Moved {
    fn so_far() -> Self {
        let text = fs::read_to_string("/proc/thread-self/io").unwrap();
        let number = |name: &str| {
            let mut lines = text.lines();
            let number = lines.find_map(|line| line.strip_prefix(name)).unwrap();
            number.trim().parse().unwrap()
        };
        Self {
            read: number("rchar:"),
            written: number("wchar:"),
        }
    }
}

/// Blocks that no other layer has.
fn own_blocks(number: u8) -> Vec<u8> {
    let block = |at: u8| {
        let mut block = vec![number; 4096];
        block[0] = at;
        block
    };
    (0..u8::try_from(BLOCKS).unwrap()).flat_map(block).collect()
}

fn unpack(node: &Node, place: &str, number: u8) -> Source {
    let dir = node.dir.path().join(format!("{place}-{number}"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("only"), own_blocks(number)).unwrap();
    Source::open(&dir).unwrap()
}

const fn layer(number: u8) -> Digest {
    Digest([number; 32])
}

/// What binding layers took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    files: usize,
    directories: usize,
    moved: Moved,
}

fn bind_all(node: &Node, opens: &Opens, here: &[Source], numbers: Range<u8>) -> Cost {
    let before = Moved::so_far();
    for number in numbers.clone() {
        let source = &here[usize::from(number)];
        let image = bind(&node.store, source, &layer(number), &node.interrupt).unwrap();
        assert_eq!(image.unwrap().plan().block_count(), BLOCKS);
    }
    let after = Moved::so_far();
    let (files, directories) = opens.take();
    for number in numbers {
        let source = &here[usize::from(number)];
        let image = node.store.layer_at(&layer(number), source.root.id());
        let image = node.store.peek_image(&image.unwrap().unwrap()).unwrap();
        let served = served(&Arc::new(image), &source.tree, "only").unwrap();
        assert_eq!(served, own_blocks(number)[..served.len()]);
    }
    opens.take();
    Cost {
        files,
        directories,
        moved: Moved {
            read: after.read - before.read,
            written: after.written - before.written,
        },
    }
}

/// A directory is opened to list it, or to sync it: a layer that is bound needs neither.
#[test]
fn what_it_takes_to_bind_a_layer_does_not_grow_with_their_number() {
    let node = Node::new();
    let all = 0..FEW + MANY;
    // All at once: what was unpacked just now is read twice, for it may still change.
    let unpack_all = |place| -> Vec<_> { all.clone().map(|n| unpack(&node, place, n)).collect() };
    let (recorded, here) = (unpack_all("recorded"), unpack_all("here"));
    for (number, source) in all.clone().zip(recorded) {
        let recording = recording_of(&source, "only", BLOCKS * 4096);
        let kept = keep_layer(
            &node.store,
            &source,
            &layer(number),
            &recording,
            &About::default(),
            Earlier::United,
            &node.interrupt,
        );
        assert_eq!(kept.unwrap().unwrap().blocks, BLOCKS);
    }
    let opens = Opens::of(&node.store);
    for numbers in [0..FEW, FEW..FEW + MANY] {
        let layers = numbers.len();
        let cost = bind_all(&node, &opens, &here, numbers);
        assert_eq!(cost.files, OPENS * layers, "{cost:?}");
        assert_eq!(cost.directories, 0, "{cost:?}");
        let times = layers as u64;
        assert!(cost.moved.written <= WRITTEN * times, "{cost:?}");
        assert!(cost.moved.read <= READ * times, "{cost:?}");
    }
}
