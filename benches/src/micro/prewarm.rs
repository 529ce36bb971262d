//! How fast a boot image gets into the page cache.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::hot::{BIG, HotTree};
use super::{Series, ratio};
use crate::aims::Aim;
use crate::boots::{Disk, Lab, Subject, image_of, milliseconds};
use crate::process::run_ok;
use crate::programs::{Serving, json};
use crate::report::count;
use crate::rounds::Shuffle;
use crate::stage::{Access, Stage};
use crate::throttle::Throttle;
use crate::vm::Cache;

/// The aim's disk.
const SLOW_IOPS: u32 = 50;
/// What a reader asks for that wants all of a file.
const CHUNK_BYTES: usize = 1 << 20;
/// Size of the file system that holds the store on the slow disk.
const STORE_SIZE: &str = "1G";

/// Measures how fast a boot image that is in memory gets into the page cache of a mount. It is
/// that of one big file: repeating look-ups, for a tree, is another matter than moving bytes.
///
/// # Errors
/// If the mount or the prewarm fails.
pub fn from_memory(
    lab: &Lab,
    tree: &HotTree,
    at: &Path,
    rounds: u32,
) -> anyhow::Result<(Series, Aim)> {
    let mut series = Series::new("prewarm from memory", "GB/s");
    for _ in 0..rounds {
        // A fresh mount: pages that are there already would be overwritten faster.
        let mount = lab
            .programs()
            .mount(tree.path(), at, BIG, Serving::Answered)?;
        let mut prewarm = lab.programs().bootimg();
        prewarm.args(["prewarm", BIG]);
        let said: Value = json(prewarm)?;
        let summary = &said[0]["mounts"][0];
        let (bytes, took_ms) = (
            summary["injected_bytes"].as_u64(),
            summary["took_ms"].as_u64(),
        );
        let (bytes, took_ms) = bytes
            .zip(took_ms)
            .with_context(|| format!("no mount in {said}"))?;
        ensure!(bytes > 0, "nothing was injected: {said}");
        series
            .values
            .push(count(bytes) / count(took_ms.max(1)) / 1e6);
        drop(mount);
    }
    let aim = Aim::at_least(1.5, "GB/s of prewarm from memory", series.median());
    Ok((series, aim))
}

/// Measures a prewarm from a slow disk beside one sequential read of the same files, in turns.
///
/// # Errors
/// If the disk cannot be slowed down, or the prewarm fails.
pub fn from_slow_disk(lab: &Lab, rounds: u32) -> anyhow::Result<(Vec<Series>, Aim)> {
    let disk = make_disk(lab)?;
    let programs = lab.programs().with_store(&disk.path().join("store"));
    // The larger of the two, so that the few requests of opening it do not count for much.
    let machine = Subject::Vm(Cache::Writeback);
    lab.record_into(&programs, machine, 1)?;
    let name = image_of(machine);
    let mut sides = [
        Series::new(format!("one sequential read at {SLOW_IOPS} IOPS"), "ms"),
        Series::new(format!("prewarm at {SLOW_IOPS} IOPS"), "ms"),
    ];
    let mut requests = [
        Series::new("requests of one sequential read", ""),
        Series::new("requests of a prewarm", ""),
    ];
    let throttle = Throttle::new(&disk.device_number()?, SLOW_IOPS)?;
    let mut shuffle = Shuffle::from_clock();
    for _ in 0..rounds {
        for side in shuffle.order(&[0, 1]) {
            lab.drop_caches()?;
            let _stay = throttle.stay()?;
            let before = disk.reads()?;
            let started = Instant::now();
            if side == 0 {
                read_all(&disk.path().join("store"))?;
            } else {
                let mut prewarm = programs.bootimg();
                prewarm.args(["prewarm", name]);
                run_ok(prewarm, Duration::from_secs(300))?;
            }
            sides[side].values.push(milliseconds(started.elapsed()));
            let read = disk.reads()?.since(before);
            requests[side].values.push(count(read.requests));
        }
    }
    let what = format!(
        "time of prewarm to one sequential read, {}",
        Disk::Slow(SLOW_IOPS)
    );
    let aim = Aim::at_most(1.3, what, ratio(&sides[1], &sides[0]));
    Ok((sides.into_iter().chain(requests).collect(), aim))
}

/// Makes an empty file system on a loop device of its own.
fn make_disk(lab: &Lab) -> anyhow::Result<Stage> {
    let (image, target) = (lab.home().join("store.ext4"), lab.home().join("slow"));
    fs::create_dir(&target).context("making a mount point")?;
    let mut make = Command::new("mkfs.ext4");
    make.args([
        "-q",
        "-F",
        "-b",
        "4096",
        "-E",
        "lazy_itable_init=0,nodiscard",
    ]);
    make.arg(&image).arg(STORE_SIZE);
    run_ok(make, Duration::from_secs(60))?;
    Stage::mount(&image, &target, Access::ReadWrite)
}

/// Reads every file below `folder` from its beginning to its end.
fn read_all(folder: &Path) -> anyhow::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            read_all(&path)?;
        } else if path.is_file() {
            let mut file =
                File::open(&path).with_context(|| format!("opening {}", path.display()))?;
            while file.read(&mut buffer)? > 0 {}
        }
    }
    Ok(())
}
