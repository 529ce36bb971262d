//! Attaching an image to a source that changed: what is the same is served under its new id,
//! what is not is dropped and counted.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blocks::testing::{MemSource, Node};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockRange, CachedSource, FileId, Lookup, NodeKind, ReplayPlan,
    SourceId, Touch, Tree,
};
use bootimg::{
    AttachReport, DropReason, Image, SourceInfo, Variant, WriteError, WriteRequest, merge,
    unwatched,
};
use proptest::prelude::*;
use sample::{APP, CONF, LIB, PLANNED, Sample, extent, nodes};

fn attach(change: impl FnOnce(&mut Vec<Node>)) -> (bootimg::Attached, Tree) {
    let mut nodes = nodes();
    // The inode numbers stay when nodes are added before others.
    for (node, inode) in nodes.iter_mut().zip(1000..) {
        node.attr.source_inode = inode;
    }
    change(&mut nodes);
    let tree = blocks::testing::tree(&nodes).unwrap();
    (Arc::new(Sample::new().image()).attach(&tree), tree)
}

fn reasons(report: &AttachReport) -> Vec<(&str, DropReason, u64)> {
    let dropped = report.dropped.iter();
    dropped
        .map(|d| (std::str::from_utf8(&d.path).unwrap(), d.reason, d.blocks))
        .collect()
}

#[test]
fn an_unchanged_source_keeps_everything_whatever_was_read_meanwhile() {
    let (attached, _) = attach(|nodes| nodes.iter_mut().for_each(|n| n.attr.atime.secs += 100));
    assert!(attached.report().is_exact());
    assert_eq!(attached.report().blocks_kept, PLANNED);
    assert_eq!(attached.plan(), attached.image().plan());
    assert_eq!(Sample::new().read_through(&attached), PLANNED);
}

/// A copy of the source on another node: other inodes, other times of change.
fn copy(change: impl FnOnce(&mut Vec<Node>)) -> Tree {
    let mut nodes = nodes();
    for (node, inode) in nodes.iter_mut().zip(77_000..) {
        node.attr.source_inode = inode;
        node.attr.ctime.secs += 1_000;
    }
    change(&mut nodes);
    blocks::testing::tree(&nodes).unwrap()
}

#[test]
fn a_copy_of_the_source_gets_the_whole_plan_as_a_hint_and_no_content() {
    let copy = copy(|_| {});
    let image = Arc::new(Sample::new().image());
    let hint = image.hint_for(&copy);
    assert_eq!(&hint.plan, image.plan());
    assert!(hint.dropped.is_empty());
    // As content it would be stale: nobody knows that the copy is one.
    let attached = image.attach(&copy);
    assert_eq!(attached.report().blocks_kept, 0);
}

#[test]
fn a_hint_leaves_out_files_that_have_another_length_or_are_something_else() {
    let copy = copy(|nodes| {
        nodes[APP.index()].attr.size -= 1;
        nodes[CONF.index()].attr.kind = NodeKind::Fifo;
        nodes[CONF.index()].attr.size = 0;
        // The library gets another id, and its own goes to another file.
        let other = std::mem::replace(&mut nodes[LIB.index()], Node::file(9));
        nodes[0].names.insert(0, (b"a".to_vec(), LIB.0));
        nodes[6].names[0].1 = u32::try_from(nodes.len()).unwrap();
        nodes.push(other);
    });
    let hint = Sample::new().image().hint_for(&copy);
    let dropped: Vec<_> = hint.dropped.iter().map(|file| file.reason).collect();
    assert_eq!(dropped, [DropReason::Changed, DropReason::OtherKind]);
    let lib = copy.resolve(b"lib/lib.so").unwrap();
    assert_ne!(lib, LIB);
    assert!(!hint.plan.extents.is_empty());
    assert!(hint.plan.extents.iter().all(|extent| extent.file == lib));
}

#[test]
fn changed_gone_and_replaced_files_are_dropped_and_the_rest_is_served() {
    let (attached, _) = attach(|nodes| {
        nodes[APP.index()].attr.mtime.nanos -= 1;
        nodes[2].names.clear(); // etc/conf
        nodes[CONF.index()].names = Vec::new();
    });
    let report = attached.report();
    let want = [
        ("bin/also-app", DropReason::Changed, 14),
        ("etc/conf", DropReason::Gone, 1),
    ];
    assert_eq!(reasons(report), want);
    assert_eq!(
        (report.files_kept, report.blocks_kept, report.blocks_dropped),
        (1, 38, 15)
    );
    assert_eq!((report.names_added, report.names_removed), (0, 1));
    assert!(
        attached
            .plan()
            .extents
            .iter()
            .all(|extent| extent.file == LIB)
    );
    let (attached, _) = attach(|nodes| nodes[CONF.index()].attr.kind = NodeKind::Fifo);
    assert_eq!(
        reasons(attached.report()),
        [("etc/conf", DropReason::OtherKind, 1)]
    );
}

#[test]
fn ids_that_moved_are_translated_in_content_and_in_metadata() {
    // A new file takes id 1: all others move up by one.
    let (attached, tree) = attach(|nodes| {
        for node in nodes.iter_mut() {
            for (_, id) in &mut node.names {
                *id += 1;
            }
        }
        nodes[0].names.push((b"aaa".to_vec(), 1));
        nodes.insert(1, Node::file(5));
    });
    let report = attached.report();
    assert!(report.dropped.is_empty());
    assert_eq!((report.names_added, report.names_removed), (1, 0));
    assert_eq!(report.blocks_kept, PLANNED);
    let old = attached.image();
    for (new, old_extent) in attached.plan().extents.iter().zip(&old.plan().extents) {
        assert_eq!(new.file.0, old_extent.file.0 + 1);
        let key = tree.key(new.file).unwrap();
        let mut out = vec![0; usize::try_from(new.range.byte_len()).unwrap()];
        let blocks = new.range.len();
        assert_eq!(
            attached.get(&key, new.range, &mut out),
            Lookup::Hit { blocks }
        );
        let first = Sample::new().block(old_extent.file, new.range.start());
        assert!(out[..BLOCK_SIZE] == first);
    }
    let touches = &attached.plan().touches;
    assert_eq!(
        touches[1],
        Touch::Lookup {
            dir: FileId(2),
            name: b"no\xFFthere".to_vec()
        }
    );
    assert_eq!(touches[2], Touch::ReadLink { link: FileId(8) });
    assert_eq!(touches[3], Touch::List { dir: FileId(3) });
}

#[test]
fn one_path_of_a_file_with_two_is_enough() {
    for gone in ["app", "also-app"] {
        let (attached, _) = attach(|nodes| nodes[1].names.retain(|(n, _)| n != gone.as_bytes()));
        let report = attached.report();
        assert!(report.dropped.is_empty(), "without {gone}");
        assert_eq!((report.blocks_kept, report.names_removed), (PLANNED, 1));
    }
}

#[test]
fn a_directory_that_became_a_file_takes_what_is_below_with_it() {
    let (attached, _) = attach(|nodes| nodes[6] = Node::file(3));
    let report = attached.report();
    assert_eq!(reasons(report), [("lib/lib.so", DropReason::Gone, 38)]);
    assert_eq!(report.names_removed, 1);
}

#[test]
fn a_failing_cache_degrades_and_never_fails_a_read() {
    let sample = Sample::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.bimg");
    sample.write(&path, Variant::Mapped);
    let image = Arc::new(Image::open(&path).unwrap());
    let cached = CachedSource::new(image.attach(&sample.tree), sample.source());
    // The file is cut while it is served, and a byte of what is left rots.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(10 * BLOCK_SIZE as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8], 2 * BLOCK_SIZE as u64).unwrap();
    for (id, bytes) in &sample.content {
        let key = sample.tree.key(*id).unwrap();
        let mut out = vec![0; bytes.len()];
        let read = blocks::BlockSource::read_at(&cached, &key, 0, &mut out).unwrap();
        assert_eq!(read, bytes.len());
        assert!(out == *bytes);
    }
    let counts = cached.cache().counts();
    assert!(
        counts.failed_reads > 0 && counts.damaged_reads > 0,
        "{counts:?}"
    );
    assert!(
        counts.blocks > counts.zero_blocks && counts.zero_blocks == 20,
        "{counts:?}"
    );
}

#[test]
fn comparing_with_a_source_finds_the_block_that_lies() {
    let sample = Sample::new();
    let image = Arc::new(sample.image());
    let compare = |source: &MemSource| {
        image
            .verify_against(&sample.tree, source, &mut unwatched)
            .unwrap()
    };
    let same = compare(&sample.source());
    assert_eq!((same.blocks_same, same.differences.len()), (PLANNED, 0));
    // Changed under the same version: only a comparison of bytes can tell.
    let mut source = sample.source();
    let mut bytes = sample.content[&APP].clone();
    bytes[5 * BLOCK_SIZE + 1] ^= 1;
    source.insert(sample.tree.key(APP).unwrap(), bytes);
    let other = compare(&source);
    assert_eq!(other.differences.len(), 1);
    assert_eq!(other.differences.first().unwrap().path, b"bin/also-app");
    assert_eq!(other.differences.first().unwrap().ranges.len(), 1);
    assert!(other.differences.first().unwrap().ranges[0].contains(blocks::BlockIndex(5)));
    assert!(other.blocks_same < PLANNED);
}

/// Releases before this one did not look again at files of file systems that keep whole seconds.
#[test]
fn a_file_that_was_read_in_the_second_of_its_last_change_is_not_served() {
    let served = |ago: i64, nanos: u32| {
        let mut nodes = nodes();
        let mut sample = Sample::new();
        for node in &mut nodes {
            node.attr.ctime.secs = sample.info.recorded_at - ago;
            node.attr.ctime.nanos = nanos;
        }
        let info = sample.info.clone();
        sample = Sample::with_nodes(&nodes);
        sample.info = info;
        let attached = Arc::new(sample.image()).attach(&sample.tree);
        attached.report().blocks_kept
    };
    assert_eq!(served(1000, 0), PLANNED);
    assert_eq!(served(3, 0), PLANNED);
    for ago in [2, 1, 0, -1] {
        assert_eq!(served(ago, 0), 0, "{ago} s before");
        assert_eq!(served(ago, 1), PLANNED, "{ago} s before");
    }
}

#[test]
fn merged_recordings_hold_what_any_of_them_had() {
    let mut first = Sample::new();
    let mut second = Sample::new();
    first.plan.extents = vec![extent(APP, 0, 4, 0, 3), extent(LIB, 0, 4, 5, 2)];
    second.plan.extents = vec![extent(LIB, 2, 6, 1, 3), extent(CONF, 0, 1, 2, 1)];
    second.info.recorded_at += 100;
    let images = [Arc::new(first.image()), Arc::new(second.image())];
    let merged = merge(&images).unwrap();
    assert_eq!(merged.info().recorded_at, second.info.recorded_at);
    assert_eq!(merged.plan().runs, 6);
    assert_eq!(merged.plan().touches, first.plan.touches);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("merged.bimg");
    let request = WriteRequest {
        tree: merged.tree(),
        info: merged.info(),
        plan: merged.plan(),
        blocks: &merged,
        variant: Variant::Mapped,
    };
    let report = bootimg::write_image(&path, &request, &mut unwatched).unwrap();
    assert_eq!((report.blocks, report.dropped.len()), (4 + 8 + 1, 0));
    let image = Image::open(&path).unwrap();
    let seen_by_all: Vec<_> = image.dump().filter(|row| row.seen == 5).collect();
    assert_eq!(seen_by_all.len(), 1);
    assert_eq!((seen_by_all[0].file, seen_by_all[0].bin), (LIB, 1));
    assert_eq!(
        seen_by_all[0].range,
        BlockRange::covering(2 * 4096, 2 * 4096)
    );
    assert_eq!(first.read_all(Arc::new(image)), 13);
    let other = Arc::new(Sample::other(1).image());
    let mixed = merge(&[Arc::clone(&images[0]), other]);
    assert!(matches!(mixed, Err(WriteError::OtherSource)));
    assert!(matches!(merge(&[]), Err(WriteError::Nothing)));
}

/// Files by path (two levels), each with a version: what a source may look like.
type Files = BTreeMap<(u8, u8), u8>;

fn files() -> impl Strategy<Value = Files> {
    prop::collection::btree_map((0u8..4, 0u8..5), 0u8..3, 0..16)
}

/// Ids are given out in an order that `turn` shuffles.
fn tree_of(files: &Files, turn: usize) -> Tree {
    let dirs: BTreeSet<u8> = files.keys().map(|(dir, _)| *dir).collect();
    let mut nodes = vec![Node::dir(&[])];
    for dir in &dirs {
        let id = u32::try_from(nodes.len()).unwrap();
        nodes[0].names.push((vec![b'a' + dir], id));
        nodes.push(Node::dir(&[]));
    }
    let mut order: Vec<_> = files.iter().collect();
    let len = order.len().max(1);
    order.rotate_left(turn % len);
    for ((dir, name), version) in order {
        let id = u32::try_from(nodes.len()).unwrap();
        let mut node = Node::file(4096 * 2);
        node.attr.ctime.secs = i64::from(*version);
        node.attr.source_inode = 50 + u64::from(*dir) * 10 + u64::from(*name);
        nodes.push(node);
        let at = 1 + dirs.iter().position(|d| d == dir).unwrap();
        nodes[at].names.push((vec![b'f' + name], id));
    }
    blocks::testing::tree(&nodes).unwrap()
}

fn names(files: &Files) -> BTreeSet<Vec<u8>> {
    let dirs = files.keys().map(|(dir, _)| vec![b'a' + dir]);
    let paths = files
        .keys()
        .map(|(dir, name)| vec![b'a' + dir, b'/', b'f' + name]);
    dirs.chain(paths).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn matching_is_by_path_and_version(was in files(), is in files(), turn in 0usize..16) {
        let old = tree_of(&was, 0);
        let new = tree_of(&is, turn);
        let regular = old.files().filter(|(_, inode)| inode.attr.kind == NodeKind::File);
        let mut source = MemSource::default();
        let mut plan = ReplayPlan { runs: 1, bin_ms: 10, ..ReplayPlan::default() };
        for (file, _) in regular {
            source.insert(old.key(file).unwrap(), sample::noise(file.0.into(), 8192));
            plan.extents.push(extent(file, 0, 2, 0, 1));
        }
        let info = SourceInfo { id: SourceId::default(), ..SourceInfo::default() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.bimg");
        let request = WriteRequest {
            tree: &old, info: &info, plan: &plan, blocks: &source, variant: Variant::Mapped,
        };
        bootimg::write_image(&path, &request, &mut unwatched).unwrap();
        let attached = Arc::new(Image::open(&path).unwrap()).attach(&new);
        let report = attached.report();
        let kept: BTreeSet<_> = was.iter().filter(|(p, v)| is.get(p) == Some(*v)).collect();
        prop_assert_eq!(report.files_kept, kept.len() as u64);
        for dropped in &report.dropped {
            let path = (dropped.path[0] - b'a', dropped.path[2] - b'f');
            let reason = if is.contains_key(&path) { DropReason::Changed } else { DropReason::Gone };
            prop_assert_eq!(dropped.reason, reason);
        }
        let (before, after) = (names(&was), names(&is));
        prop_assert_eq!(report.names_added, after.difference(&before).count() as u64);
        prop_assert_eq!(report.names_removed, before.difference(&after).count() as u64);
        let mut translated = BTreeSet::new();
        for extent in &attached.plan().extents {
            let path = new.path(extent.file).unwrap();
            translated.insert((path[0] - b'a', path[2] - b'f'));
            let mut out = vec![0; 8192];
            let key = new.key(extent.file).unwrap();
            prop_assert_eq!(attached.get(&key, extent.range, &mut out), Lookup::Hit { blocks: 2 });
            let old_file = old.resolve(&path).unwrap();
            prop_assert!(out == sample::noise(old_file.0.into(), 8192));
        }
        let want: BTreeSet<_> = kept.iter().map(|(path, _)| **path).collect();
        prop_assert_eq!(translated, want);
    }
}
