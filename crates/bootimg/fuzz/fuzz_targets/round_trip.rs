//! Whatever can be written is read back the same: tree, plan, content, in both variants.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use blocks::testing::{MemSource, Node};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, Extent, FileId, Lookup, ReplayPlan, Timestamp,
    Touch,
};
use bootimg::{Image, SourceInfo, Variant, WriteError, WriteRequest, unwatched};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    files: Vec<File>,
    extents: Vec<(u8, u8, u8, u32, u16)>,
    lookups: Vec<Vec<u8>>,
    runs: u16,
    label: String,
}

#[derive(Arbitrary, Debug)]
struct File {
    /// Which of a few blocks each block is: zeros and repetitions are likely.
    blocks: Vec<u8>,
    tail: u16,
    secs: i64,
    nanos: u32,
    uid: u32,
    xattr: Option<Vec<u8>>,
}

fn content(file: &File) -> Vec<u8> {
    let blocks = file.blocks.iter().take(40);
    let mut bytes: Vec<u8> = blocks.flat_map(|seed| [seed % 5; BLOCK_SIZE]).collect();
    bytes.extend(vec![7; usize::from(file.tail) % BLOCK_SIZE]);
    bytes
}

fuzz_target!(|input: Input| {
    let mut nodes = vec![Node::dir(&[])];
    for (index, file) in (1..).zip(input.files.iter().take(50)) {
        nodes[0].names.push((format!("file-{index}").into_bytes(), index));
        let mut node = Node::file(content(file).len() as u64);
        let time = Timestamp { secs: file.secs, nanos: file.nanos % 1_000_000_000 };
        (node.attr.mtime, node.attr.ctime, node.attr.uid) = (time, time, file.uid);
        node.xattrs = file.xattr.iter().map(|v| (b"user.fuzz".to_vec(), v.clone())).collect();
        nodes.push(node);
    }
    let Ok(tree) = blocks::testing::tree(&nodes) else {
        return;
    };
    let mut source = MemSource::default();
    for (id, file) in (1..).map(FileId).zip(input.files.iter().take(50)) {
        if let Some(key) = tree.key(id) {
            source.insert(key, content(file));
        }
    }
    let plan = ReplayPlan {
        runs: input.runs,
        bin_ms: 10,
        extents: input
            .extents
            .iter()
            .map(|(file, start, len, bin, seen)| Extent {
                file: FileId((*file).into()),
                range: BlockRange::with_len(BlockIndex((*start).into()), (*len).into()),
                bin: *bin,
                seen: *seen,
            })
            .collect(),
        touches: input
            .lookups
            .iter()
            .map(|name| Touch::Lookup { dir: FileId::ROOT, name: name.clone() })
            .collect(),
    };
    let info = SourceInfo { label: input.label.clone(), ..SourceInfo::default() };
    let Ok(dir) = tempfile::tempdir() else {
        return;
    };
    let mut ids = Vec::new();
    for variant in [Variant::Mapped, Variant::Packed] {
        let path = dir.path().join("image");
        let request =
            WriteRequest { tree: &tree, info: &info, plan: &plan, blocks: &source, variant };
        match bootimg::write_image(&path, &request, &mut unwatched) {
            Ok(report) => assert!(report.dropped.is_empty()),
            Err(WriteError::Plan { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let image = Arc::new(Image::open(&path).expect("what was written opens"));
        assert_eq!(**image.tree(), tree);
        assert!(image.verify(&mut unwatched).expect("not cancelled").is_sound());
        ids.push(image.info().id);
        let attached = Arc::clone(&image).attach(&tree);
        for extent in &plan.extents {
            check(&attached, &tree, extent, &input.files);
        }
    }
    assert_eq!(ids[0], ids[1]);
});

fn check(attached: &bootimg::Attached, tree: &blocks::Tree, extent: &Extent, files: &[File]) {
    let Some(file) = (extent.file.0 as usize).checked_sub(1).and_then(|i| files.get(i)) else {
        return;
    };
    let (Some(key), bytes) = (tree.key(extent.file), content(file)) else {
        return;
    };
    for block in extent.range.iter() {
        let mut out = [0xAA; BLOCK_SIZE];
        let found = attached.get(&key, BlockRange::with_len(block, 1), &mut out);
        let start = block.byte_offset() as usize;
        if start >= bytes.len() {
            assert_eq!(found, Lookup::Miss { blocks: 1 });
            continue;
        }
        let mut want = [0; BLOCK_SIZE];
        let end = (start + BLOCK_SIZE).min(bytes.len());
        want[..end - start].copy_from_slice(&bytes[start..end]);
        assert_eq!(found, Lookup::Hit { blocks: 1 });
        assert!(out == want);
    }
}
