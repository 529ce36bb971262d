//! The file system: what its verbs cost, and how fast pages get into the kernel.
//!
//! `cargo bench -p benches --bench yolofs`. Injection mounts, and so needs root.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::Node;
use blocks::{
    BlockCache, BlockRange, BlockSource, Caller, Extent, FileId, FileKey, Lookup, NodeKind,
    ReplayPlan, SourceError, Tree,
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tempfile::TempDir;
use yolofs::{Busy, CachePath, Config, FileSystem, Mount, MountOptions, PrewarmOptions};

/// A Debian root has some 10 000 files; one directory of it holds most libraries.
const FILES: u32 = 10_000;
/// The size of a small file of a Python start: two blocks.
const SMALL_BYTES: u64 = 6_000;
/// One file to inject in long runs.
const BIG_BYTES: u64 = 256 << 20;
const NOBODY: Caller = Caller { pid: 0 };
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes from nowhere: what is measured is what lies above the source.
struct Zeros;

impl BlockSource for Zeros {
    fn read_at(&self, _: &FileKey, _: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        Ok(buf.len())
    }
}

impl BlockCache for Zeros {
    fn get(&self, _: &FileKey, range: BlockRange, _: &mut [u8]) -> Lookup {
        Lookup::Hit {
            blocks: range.len(),
        }
    }
}

fn name(index: u32) -> String {
    format!("libexample-{index}.so.1.2.3")
}

fn flat_tree(sizes: &[u64]) -> anyhow::Result<Arc<Tree>> {
    let mut root = Node::dir(&[]);
    let mut nodes = Vec::new();
    for (index, size) in (1..).zip(sizes) {
        root.names.push((name(index).into_bytes(), index));
        nodes.push(Node::file(*size));
    }
    nodes.insert(0, root);
    Ok(Arc::new(blocks::testing::tree(&nodes)?))
}

fn whole_files(tree: &Tree) -> ReplayPlan {
    let files = tree
        .files()
        .filter(|(_, inode)| inode.attr.kind == NodeKind::File);
    ReplayPlan {
        runs: 1,
        bin_ms: 100,
        extents: files
            .map(|(file, inode)| Extent {
                file,
                range: BlockRange::covering(0, inode.attr.size),
                bin: 0,
                seen: 1,
            })
            .collect(),
        touches: vec![blocks::Touch::List { dir: FileId::ROOT }],
    }
}

fn verbs(c: &mut Criterion) {
    let tree = flat_tree(&[SMALL_BYTES; FILES as usize]).expect("the tree is a tree");
    let fs = FileSystem::new(tree, Arc::new(Zeros), Config::default());
    let mut group = c.benchmark_group("verbs");
    let mut turn = 0;
    let mut next = move || {
        turn = (turn + 7919) % FILES; // a prime: all of them, far apart
        turn + 1
    };
    group.bench_function("lookup", |b| {
        b.iter_batched(
            || name(next()),
            |name| black_box(fs.lookup(NOBODY, FileId::ROOT, name.as_bytes())),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("getattr", |b| {
        b.iter(|| black_box(fs.getattr(FileId(next()))));
    });
    let mut page = [0; 4096];
    group.bench_function("read 4 KiB", |b| {
        b.iter(|| black_box(fs.read(NOBODY, FileId(next()), 0, &mut page, CachePath::Through)));
    });
    group.throughput(Throughput::Elements(FILES.into()));
    group.bench_function("readdirplus 10 000", |b| {
        b.iter(|| {
            let mut visit = |item: yolofs::DirItem<'_>, attr| {
                black_box((item.next, attr));
                ControlFlow::Continue(())
            };
            black_box(fs.readdirplus(NOBODY, FileId::ROOT, 0, &mut visit))
        });
    });
    group.finish();
}

/// A fresh mount for each sample: what the kernel has already would not be injected again.
struct Target {
    mount: Mount,
    _dir: TempDir,
}

impl Target {
    fn new(tree: &Arc<Tree>) -> anyhow::Result<Self> {
        let dir = TempDir::new()?;
        let fs = FileSystem::new(Arc::clone(tree) as _, Arc::new(Zeros), Config::default());
        let mount = Mount::start(Arc::new(fs), &MountOptions::new(dir.path(), "bench"))?;
        Ok(Self { mount, _dir: dir })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Err(error) = self.mount.unmount(Busy::Wait, PATIENCE) {
            eprintln!("{error}");
        }
    }
}

fn injection(c: &mut Criterion) {
    let mut group = c.benchmark_group("injection");
    group.sample_size(10);
    for (title, sizes) in [
        ("one file of 256 MiB", vec![BIG_BYTES]),
        ("10 000 files of 6 KB", vec![SMALL_BYTES; FILES as usize]),
    ] {
        let tree = flat_tree(&sizes).expect("the tree is a tree");
        let plan = whole_files(&tree);
        group.throughput(Throughput::Bytes(sizes.iter().sum()));
        group.bench_function(title, |b| {
            // The time is that of the push alone: a mount and the walk are not injection.
            b.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    let target = Target::new(&tree).expect("mounting needs root");
                    let report = target
                        .mount
                        .prewarm(&plan, &Zeros, &PrewarmOptions::default())
                        .expect("the mount is there");
                    assert_eq!(report.skipped_bytes, 0);
                    took += report.push_time;
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, verbs, injection);
criterion_main!(benches);
