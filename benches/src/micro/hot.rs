//! Reads, names and small files that are in the page cache, through the mount and natively.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::{Series, ratio};
use crate::aims::Aim;
use crate::boots::{Lab, Subject};
use crate::programs::{Programs, Serving, record};
use crate::report::count;
use crate::rounds::Shuffle;

/// Large enough that the processor's caches do not hold it.
const BIG_FILE_BYTES: u64 = 128 << 20;
/// A block of the page cache.
const BLOCK_LEN: usize = 4096;
const BLOCK_BYTES: u64 = BLOCK_LEN as u64;
/// Random reads in a sample: a tenth of a second of them.
const READS: u64 = 100_000;
/// What counts as a small file.
const SMALL_FILE_LEN: usize = 16 << 10;
const SMALL_FILE_BYTES: u64 = SMALL_FILE_LEN as u64;
/// How many files a sample opens, reads and closes.
const SMALL_FILES: usize = 5_000;
/// The name of the boot image that holds all of the tree.
const WHOLE: &str = "hot";
/// The name of the boot image that holds the big file only.
pub const BIG: &str = "big";

/// A tree that is recorded from end to end: a Debian root and a big file.
#[derive(Debug)]
pub struct HotTree {
    source: PathBuf,
}

impl HotTree {
    /// Makes and records it.
    ///
    /// # Errors
    /// If it cannot be made or recorded.
    pub fn make(lab: &Lab) -> anyhow::Result<Self> {
        let source = lab.home().join("hot");
        fs::create_dir(&source).context("making the hot tree")?;
        let mut copy = std::process::Command::new("cp");
        copy.arg("--archive")
            .arg(lab.source(Subject::Container))
            .arg(&source);
        crate::process::run_ok(copy, std::time::Duration::from_secs(300))?;
        write_noise(&source.join("big")).context("writing the big file")?;
        let all = "find \"$YOLOFS_MNT\" -type f -exec cat {} + > /dev/null";
        let big = "cat \"$YOLOFS_MNT/big\" > /dev/null";
        for (name, script) in [(WHOLE, all), (BIG, big)] {
            let flags = ["--name", name, "--no-chroot"];
            record(
                lab.programs().bootimg(),
                &flags,
                &source,
                &["sh", "-c", script],
            )?;
        }
        Ok(Self { source })
    }

    /// Returns its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.source
    }
}

fn write_noise(path: &Path) -> anyhow::Result<()> {
    let file = File::create(path)?;
    let mut noise = Shuffle::from_seed(1);
    let mut block = [0; BLOCK_LEN];
    for index in 0..BIG_FILE_BYTES / BLOCK_BYTES {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&noise.below(u64::MAX).to_le_bytes());
        }
        file.write_all_at(&block, index * BLOCK_BYTES)?;
    }
    file.sync_all()?;
    Ok(())
}

/// One kind of work on a tree; returns nanoseconds for one operation of it.
type Work = fn(&Path, &Paths) -> anyhow::Result<f64>;

/// Names relative to the tree.
#[derive(Debug, Default)]
struct Paths {
    all: Vec<PathBuf>,
    small: Vec<PathBuf>,
}

/// The kinds, and how much of native speed each must reach.
const WORKS: [(&str, Work, f64); 3] = [
    ("4 KiB random read", random_reads, 0.8),
    ("stat", stats, 0.6),
    ("open, read, close of a small file", small_files, 0.55),
];

/// Measures each kind of work through a mount and natively, in turns.
///
/// # Errors
/// If anything fails, or a read of what was pushed into the page cache reached the daemon.
pub fn measure(
    programs: &Programs,
    tree: &HotTree,
    at: &Path,
    rounds: u32,
) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let mount = programs.mount(tree.path(), at, WHOLE, Serving::Injected)?;
    let paths = list(tree.path())?;
    let mut shuffle = Shuffle::from_clock();
    let (mut series, mut aims) = (Vec::new(), Vec::new());
    for (what, work, limit) in WORKS {
        let mut sides = [
            (
                tree.path(),
                Series::new(format!("{what}, native warm"), "ns"),
            ),
            (mount.path(), Series::new(format!("{what}, yolofs"), "ns")),
        ];
        for (root, _) in &sides {
            work(root, &paths)?; // native is warm after this; the mount is before
        }
        for _ in 0..rounds {
            for side in shuffle.order(&[0, 1]) {
                let (root, values) = &mut sides[side];
                values.values.push(work(root, &paths)?);
            }
        }
        let [native, ours] = sides.map(|(_, series)| series);
        aims.push(Aim::at_least(
            limit,
            format!("speed of native warm: {what}"),
            ratio(&native, &ours),
        ));
        series.extend([native, ours]);
    }
    let reads = mount.served()?.requests.get("read").copied().unwrap_or(0);
    aims.push(Aim::at_most(
        0.0,
        "READ requests of all of these",
        Some(count(reads)),
    ));
    Ok((series, aims))
}

fn list(root: &Path) -> anyhow::Result<Paths> {
    let mut paths = Paths::default();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let (name, meta) = (folder.join(entry.file_name()), entry.metadata()?);
            if meta.is_dir() {
                folders.push(name.clone());
            } else if meta.is_file()
                && meta.len() <= SMALL_FILE_BYTES
                && paths.small.len() < SMALL_FILES
            {
                paths.small.push(name.clone());
            }
            paths.all.push(name);
        }
    }
    ensure!(
        paths.small.len() > 1000,
        "the tree has too few files to measure with"
    );
    Ok(paths)
}

fn random_reads(root: &Path, _: &Paths) -> anyhow::Result<f64> {
    let file = File::open(root.join("big"))?;
    // The same places for both sides.
    let mut places = Shuffle::from_seed(2);
    let mut block = [0; BLOCK_LEN];
    let started = Instant::now();
    for _ in 0..READS {
        file.read_exact_at(
            &mut block,
            places.below(BIG_FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES,
        )?;
    }
    black_box(&block);
    Ok(nanoseconds_each(started, READS))
}

fn stats(root: &Path, paths: &Paths) -> anyhow::Result<f64> {
    // Joined outside of the measured time.
    let full: Vec<_> = paths.all.iter().map(|path| root.join(path)).collect();
    let started = Instant::now();
    for path in &full {
        black_box(fs::symlink_metadata(path)?);
    }
    Ok(nanoseconds_each(started, full.len() as u64))
}

fn small_files(root: &Path, paths: &Paths) -> anyhow::Result<f64> {
    let full: Vec<_> = paths.small.iter().map(|path| root.join(path)).collect();
    let mut buffer = vec![0; SMALL_FILE_LEN];
    let started = Instant::now();
    for path in &full {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(nanoseconds_each(started, full.len() as u64))
}

fn nanoseconds_each(started: Instant, operations: u64) -> f64 {
    started.elapsed().as_secs_f64() * 1e9 / count(operations)
}
