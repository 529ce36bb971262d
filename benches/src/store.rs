//! A store with hundreds of boot images, as a host has that may start any image of a cloud: what it takes, how long it
//! takes to list, and to bring a budget of it into memory.

mod catalog;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bootimg::{Image, Store, StoreConfig, Variant, WriteRequest, unwatched, write_image};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use serde_json::Value;

use crate::caches::drop_everything;
use crate::process::run_ok;
use crate::programs::{DEADLINE, Programs};
use crate::report::count;
use crate::stage::Stage;
pub use catalog::{Catalog, Made};

/// What a store of many images is.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Filled {
    /// How many images.
    pub images: u64,
    /// Bytes that they take if each is a file of its own.
    pub plain_bytes: u64,
    /// Bytes that the store takes.
    pub store_bytes: u64,
    /// Seconds it took to add them.
    pub took_s: f64,
}

/// One prewarm of a part of a store, from a disk that has nothing in memory.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Warmed {
    /// Images that fit the budget.
    pub images: u64,
    /// Bytes of their data, with what they share counted once.
    pub bytes: u64,
    /// Bytes that were read of the disk, with everything beside the data.
    pub disk_bytes: u64,
    /// In so many requests.
    pub disk_requests: u64,
    /// Seconds of the pass.
    pub pass_s: f64,
    /// Seconds of the whole command.
    pub took_s: f64,
}

impl Warmed {
    /// Returns how many MB of data the pass has brought in a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        count(self.bytes) / 1e6 / self.pass_s.max(1e-9)
    }
}

/// Fills a store with a catalog, image by image.
///
/// # Errors
/// If an image cannot be written or added.
pub fn fill(dir: &Path, catalog: &Catalog, mut heard: impl FnMut(u64)) -> anyhow::Result<Filled> {
    let config = StoreConfig {
        max_bytes: u64::MAX,
        ..StoreConfig::default()
    };
    let store = Store::open(dir, config).context("opening the store")?;
    let scratch = tempfile::tempdir().context("making a directory")?;
    let path = scratch.path().join("image.bimg");
    let started = Instant::now();
    let mut filled = Filled::default();
    for number in 0..catalog.images {
        let made = catalog.make(number);
        let request = WriteRequest {
            tree: &made.tree,
            info: &made.info,
            plan: &made.plan,
            blocks: &made,
            variant: Variant::Mapped,
        };
        write_image(&path, &request, &mut unwatched).context("writing a boot image")?;
        filled.plain_bytes += fs::metadata(&path).context("weighing a boot image")?.len();
        let image = Image::open(&path)?;
        store.add(&image, Some(&made.name), &mut unwatched)?;
        filled.images += 1;
        heard(filled.images);
    }
    filled.store_bytes = bytes_below(dir)?;
    filled.took_s = started.elapsed().as_secs_f64();
    Ok(filled)
}

/// Returns how many seconds `bootimg ls` takes, with what it needs in memory or not.
///
/// # Errors
/// If it fails.
pub fn list(programs: &Programs, is_cold: bool) -> anyhow::Result<f64> {
    if is_cold {
        drop_everything()?;
    }
    let mut command = programs.bootimg();
    command.args(["ls", "--json"]);
    let started = Instant::now();
    run_ok(command, DEADLINE)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Has `bootimg prewarm` bring a budget of all images into memory, with nothing there before.
///
/// # Errors
/// If it fails, or finds damage.
pub fn prewarm(programs: &Programs, stage: &Stage, budget: u64) -> anyhow::Result<Warmed> {
    drop_everything()?;
    let before = stage.reads()?;
    let mut command = programs.bootimg();
    command.args(["prewarm", "--all", "--json", "--budget"]);
    command.arg(budget.to_string());
    let started = Instant::now();
    let output = run_ok(command, DEADLINE)?.output;
    let took_s = started.elapsed().as_secs_f64();
    let reads = stage.reads()?.since(before);
    let said: Value = serde_json::from_str(&output).context("reading what bootimg prewarm says")?;
    let all = said.as_array().context("bootimg prewarm lists images")?;
    let fit = all.iter().filter(|one| one["over_budget"] == false);
    let mut warmed = Warmed {
        disk_bytes: reads.bytes,
        disk_requests: reads.requests,
        took_s,
        ..Warmed::default()
    };
    for one in fit {
        ensure!(one["damaged"] == 0, "a boot image is damaged: {one}");
        warmed.images += 1;
        warmed.bytes += one["new_bytes"].as_u64().unwrap_or(0);
        let ms = one["took_ms"].as_u64().unwrap_or(0);
        warmed.pass_s = Duration::from_millis(ms).as_secs_f64();
    }
    Ok(warmed)
}

/// Returns the rate of the disk, in MB a second, when a file is read from front to back.
///
/// # Errors
/// If it cannot be read.
pub fn sequential(file: &Path) -> anyhow::Result<f64> {
    drop_everything()?;
    let mut open = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    let mut buffer = vec![0; 4 << 20];
    let (started, mut bytes) = (Instant::now(), 0);
    loop {
        let read = open.read(&mut buffer).context("reading a file")?;
        if read == 0 {
            return Ok(count(bytes) / 1e6 / started.elapsed().as_secs_f64());
        }
        bytes += read as u64;
    }
}

/// Returns the most memory, in MiB, that a program took which was run so far.
///
/// # Errors
/// If the kernel does not say.
pub fn peak_mib() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("asking for what programs took")?;
    let kib = u64::try_from(usage.max_rss()).unwrap_or(0);
    Ok(count(kib) / 1024.0)
}

fn bytes_below(dir: &Path) -> anyhow::Result<u64> {
    let mut dirs: Vec<PathBuf> = vec![dir.to_owned()];
    let mut bytes = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                dirs.push(entry.path());
            } else if meta.is_file() {
                bytes += meta.len();
            }
        }
    }
    Ok(bytes)
}
