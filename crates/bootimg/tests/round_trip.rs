//! What is written is read back: content, metadata, plan, in every variant.

mod sample;

use std::sync::Arc;

use blocks::{BLOCK_SIZE, BlockCache, BlockRange, FileId, Lookup};
use bootimg::{Image, OpenError, Variant, unwatched};
use sample::{APP, LIB, PLANNED, Sample};

#[test]
fn every_variant_gives_the_same_image() {
    let sample = Sample::new();
    let mapped = Image::from_bytes(sample.bytes(Variant::Mapped)).unwrap();
    let packed = Image::from_bytes(sample.bytes(Variant::Packed)).unwrap();
    assert_eq!(mapped.info().id, packed.info().id);
    for image in [mapped, packed] {
        assert_eq!(**image.tree(), sample.tree);
        assert_eq!(image.info().source, sample.info);
        assert_eq!(image.plan().touches, sample.plan.touches);
        assert_eq!((image.plan().runs, image.plan().bin_ms), (3, 100));
        assert_eq!(image.plan().block_count(), PLANNED);
        assert!(image.verify(&mut unwatched).unwrap().is_sound());
        assert_eq!(sample.read_all(Arc::new(image)), PLANNED);
    }
}

#[test]
fn zeros_and_repetitions_take_no_space() {
    let sample = Sample::new();
    let image = Image::from_bytes(sample.bytes(Variant::Mapped)).unwrap();
    let info = image.info();
    assert_eq!(info.zero_blocks, 20);
    // Three blocks of the library repeat two others.
    assert_eq!(info.data_blocks, PLANNED - 20 - 3);
    assert!(image.plan().extents.iter().all(|e| e.range.len() <= 20));
}

#[test]
fn extents_keep_the_order_the_bin_and_the_stability_of_the_plan() {
    let sample = Sample::new();
    let image = Image::from_bytes(sample.bytes(Variant::Mapped)).unwrap();
    let mut stored = image.plan().extents.iter();
    for wanted in &sample.plan.extents {
        let size = sample.tree.inode(wanted.file).unwrap().attr.size;
        let wanted_blocks = wanted.range.intersect(BlockRange::covering(0, size));
        let mut next = wanted_blocks.start();
        while next < wanted_blocks.end() {
            let got = stored.next().unwrap();
            assert_eq!(
                (got.file, got.bin, got.seen),
                (wanted.file, wanted.bin, wanted.seen)
            );
            assert_eq!(got.range.start(), next);
            next = got.range.end();
        }
    }
    assert_eq!(stored.next(), None);
}

#[test]
fn a_read_across_extents_and_zeros_is_one_hit_up_to_the_first_gap() {
    let sample = Sample::new();
    let image = Arc::new(Image::from_bytes(sample.bytes(Variant::Mapped)).unwrap());
    let attached = image.attach(&sample.tree);
    let key = sample.tree.key(LIB).unwrap();
    let range = BlockRange::covering(0, 40 * BLOCK_SIZE as u64);
    let mut out = vec![0xAA; 40 * BLOCK_SIZE];
    assert_eq!(
        attached.get(&key, range, &mut out),
        Lookup::Hit { blocks: 2 }
    );
    let (_, gap) = range.split_first(2);
    assert_eq!(
        attached.get(&key, gap, &mut out),
        Lookup::Miss { blocks: 2 }
    );
    let (_, rest) = range.split_first(4);
    assert_eq!(
        attached.get(&key, rest, &mut out),
        Lookup::Hit { blocks: 36 }
    );
    assert!(out[..36 * BLOCK_SIZE] == sample.content[&LIB][4 * BLOCK_SIZE..]);
    assert_eq!(attached.counts().damaged_reads, 0);
    assert_eq!(attached.counts().zero_blocks, 20);
}

#[test]
fn other_files_and_other_versions_miss() {
    let sample = Sample::new();
    let image = Arc::new(Image::from_bytes(sample.bytes(Variant::Mapped)).unwrap());
    let attached = image.attach(&sample.tree);
    let range = BlockRange::covering(0, 1);
    let mut out = [0; BLOCK_SIZE];
    let mut key = sample.tree.key(APP).unwrap();
    assert_eq!(
        attached.get(&key, range, &mut out),
        Lookup::Hit { blocks: 1 }
    );
    key.version.ctime.nanos += 1;
    assert_eq!(
        attached.get(&key, range, &mut out),
        Lookup::Miss { blocks: 1 }
    );
    key.file = FileId(4_000_000_000);
    assert_eq!(
        attached.get(&key, range, &mut out),
        Lookup::Miss { blocks: 1 }
    );
}

#[test]
fn packed_to_mapped_and_back_is_byte_identical() {
    let sample = Sample::new();
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    sample.write(&path("m"), Variant::Mapped);
    sample.write(&path("p"), Variant::Packed);
    let convert = |from, to, variant| {
        let image = Image::open(path(from)).unwrap();
        image.write_to(path(to), variant, &mut unwatched).unwrap();
    };
    convert("p", "m2", Variant::Mapped);
    convert("m", "p2", Variant::Packed);
    let read = |name| std::fs::read(path(name)).unwrap();
    assert!(read("m") == read("m2"));
    assert!(read("p") == read("p2"));
    assert!(read("p").len() < read("m").len());
}

#[test]
fn a_missing_file_and_a_text_are_errors_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    assert!(matches!(Image::open(&path), Err(OpenError::Io { .. })));
    std::fs::write(&path, "text".repeat(4000)).unwrap();
    let error = Image::open(&path).unwrap_err();
    assert!(error.to_string().contains("text"), "{error}");
    assert!(matches!(error, OpenError::Format { .. }));
}
