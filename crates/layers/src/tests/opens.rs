//! What is looked at in the store while a layer is bound: the same, however many layers it knows.

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::*;

/// Layers that are bound before, and after, what is opened is counted.
const LAYERS: u8 = 10;

/// Counts what is opened in a store, by the kernel: no way of opening is missed.
struct Opens(Inotify);

impl Opens {
    fn of(store: &Store) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).unwrap();
        for part in ["images", "segments", "names"] {
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

/// Unpacks a layer that has blocks which no other one has.
fn unpack(node: &Node, place: &str, number: u8) -> Source {
    let dir = node.dir.path().join(format!("{place}-{number}"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("only"), content(number)).unwrap();
    Source::open(&dir).unwrap()
}

/// A directory is opened to list it, or to sync it: a layer that is bound needs neither.
#[test]
fn what_is_opened_to_bind_a_layer_does_not_grow_with_the_store() {
    let node = Node::new();
    let layer = |number| Digest([number; 32]);
    for number in 0..2 * LAYERS {
        let source = unpack(&node, "recorded", number);
        let recording = recording(&source, "only");
        let about = About::default();
        let layer = layer(number);
        let (store, interrupt) = (&node.store, &node.interrupt);
        let earlier = Earlier::United;
        keep_layer(
            store, &source, &layer, &recording, &about, earlier, interrupt,
        )
        .unwrap();
    }
    let opens = Opens::of(&node.store);
    let bind_all = |numbers: std::ops::Range<u8>| {
        for number in numbers {
            let source = unpack(&node, "here", number);
            let image = bind(&node.store, &source, &layer(number), &node.interrupt).unwrap();
            let served = served(&image.unwrap(), &source.tree, "only");
            assert_eq!(served, Some(content(number)));
        }
        opens.take()
    };
    let (files, directories) = bind_all(0..LAYERS);
    assert!(files <= 10 * usize::from(LAYERS), "{files}");
    assert_eq!(directories, 0);
    assert_eq!(bind_all(LAYERS..2 * LAYERS), (files, 0));
}
