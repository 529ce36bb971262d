//! Copies on faster memory: what they fail to give comes from the store's own file.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use blocks::ContentId;

use super::*;
use crate::layout::PAGE_BYTES;

/// Copies in files, the fastest first.
#[derive(Debug, Default)]
struct Copies {
    paths: Vec<PathBuf>,
    uses: AtomicU64,
}

impl FasterCopies for Copies {
    fn open(&self, _: &ImageId) -> Vec<FasterCopy> {
        let open = |path: &PathBuf| {
            Some(FasterCopy {
                file: File::open(path).ok()?,
                parts: parts_in(&path.with_extension("parts")),
                path: path.clone(),
                tier: path.file_name()?.to_str()?.to_owned(),
            })
        };
        self.paths.iter().filter_map(open).collect()
    }

    fn note_use(&self, _: &ImageId) {
        self.uses.fetch_add(1, SeqCst);
    }
}

/// The parts of an image that lie in a directory, if there is one.
fn parts_in(dir: &Path) -> Option<CopyParts> {
    let open = |entry: fs::DirEntry| Some((entry.file_name(), File::open(entry.path()).ok()?));
    let files = fs::read_dir(dir).ok()?.flatten().filter_map(open);
    let (image, segments): (Vec<_>, Vec<_>) = files.partition(|(name, _)| name == "image");
    Some(CopyParts {
        image: image.into_iter().next()?.1,
        segments: segments
            .into_iter()
            .filter_map(|(name, file)| Some((name.to_str()?.parse().ok()?, file)))
            .collect(),
    })
}

/// Copies the parts of an image to a directory, and nothing else of their files; returns how many
/// blocks those are.
fn copy_parts(store: &Store, id: &ImageId, dir: &Path) -> u64 {
    use std::os::unix::fs::FileExt as _;
    fs::create_dir_all(dir).unwrap();
    let made = store.parts(id, &mut unwatched).unwrap();
    let names: Vec<ContentId> = made.files().collect();
    for part in made.parts() {
        let mut bytes = vec![0; usize::try_from(part.blocks.byte_len()).unwrap()];
        made.read(part.file, part.blocks, &mut bytes).unwrap();
        assert_eq!(crate::layout::hash(&bytes), part.hash);
        let name = match part.file {
            0 => "image".to_owned(),
            file => names[file].to_string(),
        };
        let mut file = File::options();
        let file = file.write(true).create(true).truncate(false);
        let file = file.open(dir.join(name)).unwrap();
        file.write_all_at(&bytes, part.blocks.bytes().start)
            .unwrap();
    }
    let head = fs::read(dir.join("image")).unwrap();
    assert_eq!(ContentId::of(&head), names[0]);
    made.parts().iter().map(|part| part.blocks.len()).sum()
}

struct Tiered {
    _dir: TempDir,
    sample: Sample,
    id: ImageId,
    copies: Arc<Copies>,
    store: Store,
}

/// A store with a sample, and copies of it that are called so.
fn tiered(names: &[&str]) -> Tiered {
    let (dir, store) = fresh();
    let sample = Sample::new();
    let id = add(&store, &sample, "sample").id;
    let paths = names.iter().map(|name| dir.path().join(name));
    let copies = Arc::new(Copies {
        paths: paths.collect(),
        ..Copies::default()
    });
    for path in &copies.paths {
        let watch = &mut unwatched;
        store.export(&id, path, Variant::Mapped, watch).unwrap();
    }
    Tiered {
        _dir: dir,
        sample,
        id,
        store: store.with_faster(Arc::clone(&copies) as _),
        copies,
    }
}

fn damage(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    fs::write(path, bytes).unwrap();
}

#[test]
fn the_fastest_copy_that_can_be_used_is_taken() {
    let t = tiered(&["nvm", "ssd"]);
    let image = t.store.open_fastest(&t.id).unwrap();
    assert_eq!(image.tier(), Some("nvm"));
    assert_eq!(t.sample.read_all(Arc::new(image)), PLANNED);
    assert_eq!(t.store.open_image(&t.id).unwrap().tier(), None);

    damage(&t.copies.paths[0], 9); // its header
    let image = t.store.open_fastest(&t.id).unwrap();
    assert_eq!(image.tier(), Some("ssd"));

    // Another image is no copy, however sound.
    let other = t._dir.path().join("other");
    Sample::other(1).write(&other, Variant::Mapped);
    fs::rename(other, &t.copies.paths[1]).unwrap();
    let image = t.store.open_fastest(&t.id).unwrap();
    assert_eq!(image.tier(), None);
    assert_eq!(t.sample.read_all(Arc::new(image)), PLANNED);
}

#[test]
fn what_a_copy_fails_to_give_is_read_from_the_store_and_counted() {
    let t = tiered(&["nvm"]);
    let whole = Arc::new(t.store.open_fastest(&t.id).unwrap()).attach(&t.sample.tree);
    assert_eq!(t.sample.read_through(&whole), PLANNED);
    assert_eq!(whole.counts().copy_failures, 0);

    damage(&t.copies.paths[0], 5000); // the first block of the data
    let rotten = Arc::new(t.store.open_fastest(&t.id).unwrap()).attach(&t.sample.tree);
    assert_eq!(t.sample.read_through(&rotten), PLANNED);
    let counts = rotten.counts();
    assert!(counts.copy_failures > 0, "{counts:?}");
    assert_eq!((counts.damaged_reads, counts.failed_reads), (0, 0));

    // Cut off while it is open, all of it, as when a medium dies.
    let copy = File::options().write(true).open(&t.copies.paths[0]);
    copy.unwrap().set_len(0).unwrap();
    assert_eq!(t.sample.read_through(&rotten), PLANNED);
    assert_eq!(t.sample.read_through(&whole), PLANNED);
    assert!(whole.counts().copy_failures > counts.copy_failures);
}

#[test]
fn a_copy_serves_on_when_the_store_loses_the_image_and_then_misses_are_misses() {
    let t = tiered(&["nvm"]);
    let attached = Arc::new(t.store.open_fastest(&t.id).unwrap()).attach(&t.sample.tree);
    t.store.remove(&t.id).unwrap();
    assert_eq!(t.sample.read_through(&attached), PLANNED);
    let gone = t.store.open_fastest(&t.id);
    assert!(matches!(gone, Err(StoreError::NotFound { .. })), "{gone:?}");

    let copy = File::options().write(true).open(&t.copies.paths[0]);
    copy.unwrap().set_len(0).unwrap();
    let zeros = t.sample.read_through(&attached);
    assert!(zeros < PLANNED, "only what is zero needs no file: {zeros}");
}

#[test]
fn only_starts_are_uses() {
    let t = tiered(&["nvm"]);
    let _image = t.store.open_fastest(&t.id).unwrap();
    assert_eq!(t.copies.uses.load(SeqCst), 0);
    t.store.note_use(&t.id);
    assert_eq!(t.copies.uses.load(SeqCst), 1);
}

#[test]
fn a_copy_in_parts_serves_and_falls_through_like_any() {
    let t = tiered(&["nvm"]);
    // It shares a segment with another image, and has only its own blocks of it.
    let other = add(&t.store, &Sample::other(1), "other").id;
    let parts = t._dir.path().join("nvm.parts");
    for (id, sample) in [(other, Sample::other(1)), (t.id, t.sample)] {
        let _nothing = fs::remove_dir_all(&parts);
        let blocks = copy_parts(&t.store, &id, &parts);
        let image = t.store.open_fastest(&id).unwrap();
        assert_eq!(image.tier(), Some("nvm"));
        let own = image.info().data_blocks + image.info().file_bytes / PAGE_BYTES;
        assert_eq!(blocks, own, "each block once, and no other");
        let attached = Arc::new(image).attach(&sample.tree);
        assert_eq!(sample.read_through(&attached), PLANNED);
        assert_eq!(attached.counts().copy_failures, 0);
        assert!(attached.counts().verified_bytes > 0);

        let segments = fs::read_dir(&parts).unwrap().flatten();
        let segments: Vec<_> = segments
            .filter(|file| file.file_name() != "image")
            .collect();
        assert!(!segments.is_empty());
        for segment in segments {
            let path = segment.path();
            let len = segment.metadata().unwrap().len();
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(0)
                .unwrap();
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(len)
                .unwrap();
        }
        let lost = Arc::new(t.store.open_fastest(&id).unwrap()).attach(&sample.tree);
        assert_eq!(sample.read_through(&lost), PLANNED);
        assert!(lost.counts().copy_failures > 0);
        assert_eq!(sample.read_through(&attached), PLANNED, "what is open, too");
    }
    // One that lacks a segment cannot be opened.
    for entry in fs::read_dir(&parts).unwrap().flatten() {
        if entry.file_name() != "image" {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let image = t.store.open_fastest(&t.id).unwrap();
    assert_eq!(image.tier(), None);
}
