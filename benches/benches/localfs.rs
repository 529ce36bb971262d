//! A source on a local disk: taking its tree down, and reading its files.
//!
//! `cargo bench -p benches --bench localfs`

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;

use blocks::{BlockSource, FileKey, SourceError};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use localfs::{DirSource, Patience, Prompt, SourceRoot, TimedSource, scan};

/// Twice as many as a Debian root with Python has.
const INODES: u64 = 20_000;
/// In each directory: the directory itself, links, and files.
const PER_DIR: u64 = 100;
const LINKS_PER_DIR: u64 = 9;
/// Many times the largest read, so that reads have places to be.
const FILE_BYTES: usize = 16 << 20;

/// Fills `root` with directories of 90 files and 9 links each.
fn fill(root: &Path) -> anyhow::Result<()> {
    for dir in 0..INODES / PER_DIR {
        let dir = root.join(format!("dir-{dir}"));
        fs::create_dir(&dir)?;
        for link in 0..LINKS_PER_DIR {
            symlink(
                format!("libexample-{link}.so.1"),
                dir.join(link.to_string()),
            )?;
        }
        for file in LINKS_PER_DIR + 1..PER_DIR {
            fs::write(dir.join(format!("libexample-{file}.so.1")), b"")?;
        }
    }
    Ok(())
}

fn scanning(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    fill(dir.path()).expect("a tree of files");
    let root = SourceRoot::open(dir.path()).expect("a source");
    let mut group = c.benchmark_group("scan");
    group.sample_size(20);
    group.throughput(Throughput::Elements(INODES));
    group.bench_function("20 000 inodes, in memory", |b| {
        b.iter(|| {
            let scanned = scan(&root, |_| ()).expect("a tree");
            // The root itself comes on top.
            assert_eq!(scanned.tree.len() as u64, INODES + 1);
            scanned
        });
    });
    group.finish();
}

/// A file with all of its pages in memory, as a source has it.
fn warm_source(dir: &Path) -> anyhow::Result<(DirSource, FileKey)> {
    // Written a moment ago, so it is in memory.
    fs::write(dir.join("f"), vec![0x5A; FILE_BYTES])?;
    let root = Arc::new(SourceRoot::open(dir)?);
    let tree = Arc::new(scan(&root, |_| ())?.tree);
    let key = tree.resolve(b"f").and_then(|file| tree.key(file));
    let key = key.ok_or_else(|| anyhow::anyhow!("the file is not in the tree"))?;
    Ok((DirSource::new(root, tree), key))
}

/// Never says that it can answer at once, as network file systems do not.
struct MayWait(Arc<DirSource>);

impl BlockSource for MayWait {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        self.0.read_at(file, offset, buf)
    }
}

impl Prompt for MayWait {
    fn read_now(&self, _: &FileKey, _: u64, _: &mut [u8]) -> Option<Result<usize, SourceError>> {
        None
    }
}

fn reading(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let (source, key) = warm_source(dir.path()).expect("a source");
    let source = Arc::new(source);
    let timed = TimedSource::new(Arc::clone(&source), Patience::default());
    let may_wait = Arc::new(MayWait(Arc::clone(&source)));
    let handed_over = TimedSource::new(may_wait, Patience::default());
    let sources: [(&str, &dyn BlockSource); 3] = [
        ("version checked", &source),
        ("and with a deadline", &timed),
        ("and by a helper", &handed_over),
    ];
    let file = File::open(dir.path().join("f")).expect("the file");
    let mut group = c.benchmark_group("read, warm");
    for kib in [4, 128] {
        let mut buf = vec![0; kib << 10];
        let len = buf.len() as u64;
        let places = FILE_BYTES as u64 / len;
        let mut turn = 0;
        let mut next = move || {
            turn = (turn + 7919) % places; // a prime: all of them, far apart
            turn * len
        };
        group.throughput(Throughput::Bytes(len));
        for (what, source) in sources {
            group.bench_function(format!("{kib} KiB, {what}"), |b| {
                b.iter(|| {
                    let read = source.read_at(&key, next(), &mut buf);
                    assert!(read.is_ok_and(|read| read == buf.len()));
                    black_box(&buf);
                });
            });
        }
        group.bench_function(format!("{kib} KiB, bare pread"), |b| {
            b.iter(|| {
                let read = file.read_at(&mut buf, next());
                assert!(read.is_ok_and(|read| read == buf.len()));
                black_box(&buf);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scanning, reading);
criterion_main!(benches);
