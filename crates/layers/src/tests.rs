//! Boot images of layers: kept where they were recorded, hints everywhere else.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{Access, BlockRange, Caller, Digest, Event, Observer as _, Tree, Warmth};
use bootimg::{Image, Store, StoreConfig, layer_name};
use tempfile::TempDir;
use tiering::pace::Unhurried;
use tracer::{Limits, MergeOptions, Merged, Recorder};

use super::bind::bind;
use super::keep::{About, Earlier, keep_layer};
use bootstore::tiers::Tiers;
use bootstore::tiers::mover::{Dropped, Mover, PATIENCE};
use host::interrupt::Interrupt;
use mounting::source::{Source, trace_info};

mod opens;

const LAYER: Digest = Digest([7; 32]);

/// A directory with a store and copies of one layer.
struct Node {
    dir: TempDir,
    store: Store,
    interrupt: Interrupt,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("store"), StoreConfig::default()).unwrap();
        let interrupt = Interrupt::unarmed().unwrap();
        Self {
            dir,
            store,
            interrupt,
        }
    }

    /// Unpacks the layer.
    fn copy(&self, name: &str) -> Source {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(dir.join("bin")).unwrap();
        for (file, byte) in [("bin/a", b'a'), ("bin/b", b'b'), ("bin/c", b'c')] {
            fs::write(dir.join(file), content(byte)).unwrap();
        }
        Source::open(&dir).unwrap()
    }

    fn keep(&self, source: &Source, path: &str, earlier: Earlier) -> u64 {
        let about = About::default();
        let recording = recording(source, path);
        let kept = keep_layer(
            &self.store,
            source,
            &LAYER,
            &recording,
            &about,
            earlier,
            &self.interrupt,
        );
        kept.unwrap().unwrap().blocks
    }

    fn bound(&self, source: &Source) -> Option<std::sync::Arc<Image>> {
        bind(&self.store, source, &LAYER, &self.interrupt).unwrap()
    }
}

/// Three blocks, all different.
fn content(byte: u8) -> Vec<u8> {
    (0..3u8).flat_map(|n| vec![byte ^ (n << 5); 4096]).collect()
}

/// A recording of a boot that read all of one file.
fn recording(source: &Source, path: &str) -> Merged {
    recording_of(source, path, 3 * 4096)
}

/// A recording of a boot that read the beginning of one file.
fn recording_of(source: &Source, path: &str, len: u64) -> Merged {
    let file = source.tree.resolve(path.as_bytes()).unwrap();
    let recorder = Recorder::new(Limits::default());
    let read = Access {
        file,
        offset: 0,
        len,
        warmth: Warmth::Cold,
    };
    recorder.note(Caller::default(), Event::Read(read), Duration::ZERO);
    let info = trace_info(&source.root, SystemTime::now());
    let trace = recorder.finish(info, &source.tree);
    tracer::merge(&[trace], &source.tree, &MergeOptions::default()).unwrap()
}

/// What an image has of a file, as it is served to `tree`.
fn served(image: &std::sync::Arc<Image>, tree: &Tree, path: &str) -> Option<Vec<u8>> {
    use blocks::{BlockCache as _, BlockIndex, Lookup};
    let attached = std::sync::Arc::clone(image).attach(tree);
    let key = tree.key(tree.resolve(path.as_bytes())?)?;
    let mut bytes = vec![0; 3 * 4096];
    let all = BlockRange::with_len(BlockIndex(0), 3);
    let found = attached.get(&key, all, &mut bytes);
    (found == Lookup::Hit { blocks: 3 }).then_some(bytes)
}

fn overwrite(dir: &Path, path: &str, byte: u8) {
    fs::write(dir.join(path), content(byte)).unwrap();
}

#[test]
fn a_layer_is_served_where_it_was_recorded() {
    let node = Node::new();
    let source = node.copy("here");
    assert!(node.bound(&source).is_none());
    assert_eq!(node.keep(&source, "bin/a", Earlier::United), 3);
    let image = node.bound(&source).unwrap();
    assert_eq!(Some(image.info().id), node.store.layer(&LAYER).unwrap());
    assert_eq!(served(&image, &source.tree, "bin/a"), Some(content(b'a')));
    assert_eq!(served(&image, &source.tree, "bin/b"), None);
}

#[test]
fn images_that_share_a_layer_share_its_boot_image() {
    let node = Node::new();
    let source = node.copy("here");
    node.keep(&source, "bin/a", Earlier::United);
    assert_eq!(node.keep(&source, "bin/b", Earlier::United), 6);
    let image = node.bound(&source).unwrap();
    for (path, byte) in [("bin/a", b'a'), ("bin/b", b'b')] {
        assert_eq!(served(&image, &source.tree, path), Some(content(byte)));
    }
    assert_eq!(node.keep(&source, "bin/c", Earlier::Forgotten), 3);
    assert_eq!(node.store.list().unwrap().len(), 1, "the old ones are gone");
}

#[test]
fn elsewhere_only_the_plan_counts_and_the_bytes_are_those_of_the_place() {
    let node = Node::new();
    let recorded = node.copy("recorded");
    node.keep(&recorded, "bin/a", Earlier::United);
    let hint = node.store.layer(&LAYER).unwrap();
    // The same length and another content: a forged hint, or a layer changed by hand.
    let copy = node.copy("copy");
    overwrite(copy.root.path(), "bin/a", b'z');
    let copy = Source::open(copy.root.path()).unwrap();
    let image = node.bound(&copy).unwrap();
    assert_eq!(served(&image, &copy.tree, "bin/a"), Some(content(b'z')));
    // Bound once, it stays, and what was recorded stays the hint for others.
    let again = node.bound(&copy).unwrap();
    assert_eq!(again.info().id, image.info().id);
    assert_eq!(node.store.layer(&LAYER).unwrap(), hint);
    let at = node.store.layer_at(&LAYER, copy.root.id()).unwrap();
    assert_eq!(at, Some(image.info().id));
}

#[test]
fn a_layer_that_was_removed_and_unpacked_again_is_bound_again() {
    let node = Node::new();
    let source = node.copy("here");
    node.keep(&source, "bin/a", Earlier::United);
    let first = node.bound(&source).unwrap().info().id;
    // Moved away and not deleted, so that no inode number comes back.
    fs::rename(source.root.path(), node.dir.path().join("gone")).unwrap();
    let source = node.copy("here");
    let image = node.bound(&source).unwrap();
    assert_ne!(image.info().id, first);
    assert_eq!(served(&image, &source.tree, "bin/a"), Some(content(b'a')));
}

#[test]
fn a_hint_that_cannot_be_used_costs_speed_only() {
    let node = Node::new();
    let recorded = node.copy("recorded");
    node.keep(&recorded, "bin/a", Earlier::United);
    let id = node.store.layer(&LAYER).unwrap().unwrap();
    let file = node.store.dir().join(format!("images/{id}.bimg"));
    fs::write(&file, b"not an image").unwrap();
    assert!(node.bound(&node.copy("copy")).is_none());
    // Nor does one that has nothing in common with the layer.
    node.keep(&recorded, "bin/a", Earlier::Forgotten);
    let other = node.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "x").unwrap();
    assert!(node.bound(&Source::open(&other).unwrap()).is_none());
    assert_eq!(layer_name(&LAYER), LAYER.to_string());
}

#[test]
fn a_layer_is_served_from_its_copy_on_a_tier() {
    let node = Node::new();
    let source = node.copy("here");
    node.keep(&source, "bin/a", Earlier::United);
    let own = node.bound(&source).unwrap();
    assert_eq!(own.tier(), None);

    let file = node.dir.path().join("tiers.toml");
    let dir = node.dir.path().join("nvm");
    fs::create_dir(&dir).unwrap();
    let text = format!("[[tier]]\nname = \"nvm\"\ndir = {dir:?}\nsize = \"1M\"\n");
    fs::write(&file, text).unwrap();
    let tiers = Tiers::read(Some(&file), node.store.dir()).unwrap();
    let mover = Mover::open(&tiers, PATIENCE).unwrap();
    let id = own.info().id;
    mover.bring(&node.store, &id, 0, &Unhurried).unwrap();
    let Node {
        dir,
        store,
        interrupt,
    } = node;
    let store = store.with_faster(Arc::new(tiers));
    let node = Node {
        dir,
        store,
        interrupt,
    };
    let copy = node.bound(&source).unwrap();
    assert_eq!(copy.tier(), Some("nvm"));
    assert_eq!(served(&copy, &source.tree, "bin/a"), Some(content(b'a')));
    // Where the layer is unpacked again it is a hint as the store's own is.
    let there = node.copy("there");
    let bound = node.bound(&there).unwrap();
    assert_eq!(bound.tier(), None);
    assert_eq!(served(&bound, &there.tree, "bin/a"), Some(content(b'a')));
    // It stays as long as it is served.
    let object = mover.places_of(object_of(&node, &id));
    assert_eq!(object, [0]);
    let dropped = mover.drop_from(object_of(&node, &id), 0).unwrap();
    assert_eq!(dropped, Dropped::Open);
    drop(copy);
    let dropped = mover.drop_from(object_of(&node, &id), 0).unwrap();
    assert_eq!(dropped, Dropped::Gone);
    assert_eq!(node.bound(&source).unwrap().tier(), None);
}

/// The object that a boot image is.
fn object_of(node: &Node, id: &bootimg::ImageId) -> blocks::ContentId {
    let file = node.dir.path().join("tiers.toml");
    let tiers = Tiers::read(Some(&file), node.store.dir()).unwrap();
    tiers.known().get(id.0).unwrap().object.unwrap()
}
