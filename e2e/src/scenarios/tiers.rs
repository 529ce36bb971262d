//! Harm to a tier that copies are read from.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::Value;

use super::daemon::files_below;
use crate::commands::{done, until};
use crate::faulty::FaultySource;
use crate::names::IMAGE;
use crate::workload::Mix;
use crate::{Bench, Tally};

/// The name of the tier.
const TIER: &str = "fast";

/// Reads of the medium under the copy of a boot image fail now and then, as a poisoned page of NVM
/// does: the store has the same.
pub(super) fn fails(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let tier = Tier::make(bench)?;
    let mut prewarm = bench.lab.program("bootimg")?;
    done(tier.of(prewarm.args(["prewarm", "--tier", TIER, IMAGE])))?;
    let medium = tier.make_faulty()?;
    let faults = medium.faults();
    // One by one, so that reads meet the medium and not what was pushed before.
    let flags = ["--no-inject", "--tiers", tier.file()?];
    let mountpoint = bench.lab.mount("mnt", &flags)?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    bench.at_random(Duration::from_millis(20), |bench| {
        faults.failing.store(1 + bench.rng.below(8), Relaxed);
        tier.forget()
    })?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    // And all of them, of whatever nobody has in memory.
    faults.failing.store(1, Relaxed);
    until("a read of the medium to fail", || {
        tier.forget()?;
        for file in files_below(&mountpoint)? {
            forget(&file)?;
        }
        bench.truth().compare(&mountpoint)?;
        Ok(faults.failed.load(Relaxed) > 0)
    })?;
    faults.failing.store(0, Relaxed);
    let boot = &status(bench, &mountpoint)?["boot"];
    ensure!(
        boot["tier"] == TIER && boot["copy_failures"].as_u64() > Some(0),
        "nothing was read from the store in place of the copy: {boot}"
    );
    bench.lab.umount(&mountpoint)?;
    medium.unmount()
}

/// The same under the whole copy of a file: who reads it is told so, and nothing is remembered.
pub(super) fn whole_fails(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let tier = Tier::make(bench)?;
    let files = bench.truth();
    let largest = files.files().iter().max_by_key(|(_, bytes)| bytes.len());
    let (path, bytes) = largest.context("the source has no files")?;
    let mut promote = bench.lab.yolofs(&["tier", "promote"])?;
    done(tier.of(promote.arg(bench.lab.source().join(path))))?;
    let medium = tier.make_faulty()?;
    let flags = ["--mode", "disk", "--tiers", tier.file()?];
    let mountpoint = bench.lab.mount_from("mnt", "none", &flags)?;
    let mounted = mountpoint.join(path);
    let mut tally = Tally::default();
    bench.at_random(Duration::from_millis(20), |_| {
        tier.forget()?;
        medium.faults().failing.store(1, Relaxed);
        let error = fs::read(&mounted).err();
        medium.faults().failing.store(0, Relaxed);
        let errno = error.and_then(|error| error.raw_os_error());
        ensure!(
            errno == Some(Errno::EIO as i32),
            "a medium that fails gives {errno:?}"
        );
        let start = Instant::now();
        let found = fs::read(&mounted).context("after the medium has healed")?;
        let wrong = (&found != bytes).then(|| format!("{} is wrong", path.display()));
        tally.note(start.elapsed(), &Ok(wrong));
        Ok(())
    })?;
    bench.take(&tally, &[])?;
    let served = &status(bench, &mountpoint)?["served"];
    ensure!(
        served["copy_opens"].as_u64() > Some(0) && served["copies_failed"] == 0,
        "it was not read from its copy: {served}"
    );
    bench.lab.umount(&mountpoint)?;
    medium.unmount()
}

/// A tier, and the file that names it.
struct Tier {
    dir: PathBuf,
    file: PathBuf,
}

impl Tier {
    /// Makes one for a store of the run's own: what is known of copies lies there.
    fn make(bench: &mut Bench<'_>) -> anyhow::Result<Self> {
        let store = bench.lab.path("store");
        let mut copy = Command::new("cp");
        done(copy.arg("-aT").args([bench.base().store(), store.clone()]))?;
        bench.lab.set_store(store);
        let dir = bench.lab.make_dir("tier")?;
        let file = bench.lab.path("tiers.toml");
        let named = format!("[[tier]]\nname = \"{TIER}\"\ndir = {dir:?}\nsize = \"64M\"\n");
        fs::write(&file, named).context("naming the tier")?;
        Ok(Self { dir, file })
    }

    fn file(&self) -> anyhow::Result<&str> {
        self.file.to_str().context("a path of the lab is text")
    }

    /// Has a command work with it.
    fn of<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.arg("--tiers").arg(&self.file)
    }

    /// Shows the directory in its own place, with faults.
    fn make_faulty(&self) -> anyhow::Result<FaultySource> {
        FaultySource::mount(&self.dir, &self.dir)
    }

    /// Makes the kernel forget what it has read of the medium.
    fn forget(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            forget(&entry?.path())?;
        }
        Ok(())
    }
}

/// Makes the kernel forget what it has read of a file.
fn forget(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path)?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

fn status(bench: &Bench<'_>, mountpoint: &Path) -> anyhow::Result<Value> {
    let mut status = bench.lab.yolofs(&["status", "--json"])?;
    let status: Value = serde_json::from_str(&done(status.arg(mountpoint))?)?;
    Ok(status[0].clone())
}
