//! Boot images: finding extents and names, opening, loading, hashing.
//!
//! `cargo bench -p benches --bench bootimg`

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use blocks::testing::{MemSource, Node};
use blocks::{BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, Extent, FileId, ReplayPlan, Tree};
use bootimg::{ExtentIndex, Find, Image, SourceInfo, Variant, WriteRequest, unwatched};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// A boot of a Debian root with Python: facts/boot.md.
const EXTENTS: u64 = 4500;
const FILES: u32 = 600;
const DATA_BLOCKS: u64 = 8960; // 35 MiB
const INODES: u32 = 10_000;
/// Questions that are asked in turn, so that neither caches nor branch predictors know them.
const QUESTIONS: usize = 1 << 16;

/// Random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn file(&mut self, files: u32) -> FileId {
        FileId(u32::try_from(self.roll(files.into())).unwrap_or(0))
    }
}

/// Extents of `files` files, two blocks each, with gaps between.
fn extents(files: u32) -> Vec<(FileId, BlockRange)> {
    let mut dice = Dice(7);
    let mut ends = vec![0u64; files as usize];
    (0..EXTENTS)
        .map(|_| {
            let file = dice.file(files);
            let start = ends[file.index()] + dice.roll(6);
            ends[file.index()] = start + 2;
            (file, BlockRange::with_len(BlockIndex(start), 2))
        })
        .collect()
}

fn questions(files: u32, blocks: u64) -> Vec<(FileId, BlockIndex)> {
    let mut dice = Dice(11);
    (0..QUESTIONS)
        .map(|_| (dice.file(files), BlockIndex(dice.roll(blocks))))
        .collect()
}

fn extent_lookup(c: &mut Criterion) {
    let mut group = c.benchmark_group("extent lookup");
    group.throughput(Throughput::Elements(QUESTIONS as u64));
    for (name, files) in [("600 files", FILES), ("one disk", 1)] {
        let extents = extents(files);
        let blocks = extents.iter().map(|e| e.1.end().0).max().unwrap_or(1);
        let index = ExtentIndex::new(INODES as usize, extents.iter().copied());
        let questions = questions(files, blocks);
        group.bench_function(name, |b| {
            b.iter(|| {
                let found = questions.iter().filter(|(file, block)| {
                    let extents = index.file(*file);
                    matches!(extents.map(|e| e.find(*block)), Some(Find::Extent { .. }))
                });
                black_box(found.count())
            });
        });
        let mut sorted = extents;
        sorted.sort_unstable();
        group.bench_function(format!("{name}, binary search of all"), |b| {
            b.iter(|| {
                let found = questions.iter().filter(|(file, block)| {
                    let after = sorted.partition_point(|e| (e.0, e.1.start()) <= (*file, *block));
                    after > 0 && {
                        let (at, range) = sorted[after - 1];
                        at == *file && range.contains(*block)
                    }
                });
                black_box(found.count())
            });
        });
    }
    group.finish();
}

/// A tree of directories of 100 files each.
fn tree() -> anyhow::Result<Tree> {
    let dirs = INODES / 100;
    let mut nodes = vec![Node::dir(&[]); 1 + dirs as usize];
    for dir in 0..dirs {
        nodes[0]
            .names
            .push((format!("dir-{dir}").into_bytes(), 1 + dir));
    }
    for file in 0..INODES - dirs - 1 {
        let id = 1 + dirs + file;
        let name = format!("lib-something-{file}.so").into_bytes();
        nodes[1 + (file % dirs) as usize].names.push((name, id));
        nodes.push(Node::file(1 << 20));
    }
    Ok(blocks::testing::tree(&nodes)?)
}

fn tree_lookup(c: &mut Criterion) {
    let tree = tree().expect("a tree");
    let paths: Vec<_> = tree
        .files()
        .filter_map(|(file, _)| tree.path(file))
        .filter(|path| path.contains(&b'/'))
        .collect();
    let mut group = c.benchmark_group("tree lookup");
    group.throughput(Throughput::Elements(paths.len() as u64));
    group.bench_function("two names, 10 000 inodes", |b| {
        b.iter(|| {
            paths
                .iter()
                .filter(|path| tree.resolve(path).is_some())
                .count()
        });
    });
    group.finish();
}

/// Writes an image of 35 MiB in 4 500 extents, and returns it.
fn image(dir: &Path, variant: Variant) -> anyhow::Result<Arc<Image>> {
    let tree = tree()?;
    let first = 1 + INODES / 100;
    let mut dice = Dice(3);
    let mut source = MemSource::default();
    let mut plan = ReplayPlan {
        runs: 1,
        bin_ms: 100,
        ..ReplayPlan::default()
    };
    let per_file = EXTENTS / u64::from(FILES);
    for file in (first..first + FILES).map(FileId) {
        let mut data = vec![0; 1 << 20];
        for word in data.chunks_exact_mut(8) {
            // Half of it compresses away, as of programs.
            let value = dice.roll(u64::MAX) & 0xFFFF_FFFF;
            word.copy_from_slice(&value.to_le_bytes());
        }
        if let Some(key) = tree.key(file) {
            source.insert(key, data);
        }
        for index in 0..per_file {
            let len = DATA_BLOCKS / EXTENTS + index % 2;
            plan.extents.push(Extent {
                file,
                range: BlockRange::with_len(BlockIndex(index * 16), len),
                bin: file.0 / 10,
                seen: 1,
            });
        }
    }
    let request = WriteRequest {
        tree: &tree,
        info: &SourceInfo::default(),
        plan: &plan,
        blocks: &source,
        variant,
    };
    let path = dir.join("bench.bimg");
    bootimg::write_image(&path, &request, &mut unwatched)?;
    Ok(Arc::new(Image::open(path)?))
}

fn load(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    for variant in [Variant::Mapped, Variant::Packed] {
        let image = image(dir.path(), variant).expect("an image");
        let data = image.info().data_blocks * BLOCK_SIZE as u64;
        let mut group = c.benchmark_group(format!("{variant:?} image of {} KiB", data >> 10));
        group.sample_size(20);
        let path = dir.path().join("bench.bimg");
        group.bench_function("open", |b| b.iter(|| Image::open(&path)));
        group.bench_function("attach", |b| {
            b.iter(|| Arc::clone(&image).attach(image.tree()));
        });
        group.throughput(Throughput::Bytes(data));
        group.bench_function("load", |b| b.iter(|| image.load(&mut unwatched)));
        group.bench_function("get all", |b| {
            let attached = Arc::clone(&image).attach(image.tree());
            let mut out = vec![0; 1 << 20];
            b.iter(|| {
                for extent in &attached.plan().extents {
                    if let Some(key) = image.tree().key(extent.file) {
                        attached.get(&key, extent.range, &mut out);
                    }
                }
            });
        });
        group.finish();
    }
}

fn hashing(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    for kib in [4, 8, 64] {
        let data = vec![0x5A; kib << 10];
        group.throughput(Throughput::Bytes(data.len() as u64));
        group.bench_function(format!("{kib} KiB"), |b| {
            b.iter(|| blocks::ContentId::of(black_box(&data)));
        });
    }
    group.finish();
}

criterion_group!(benches, extent_lookup, tree_lookup, load, hashing);
criterion_main!(benches);
