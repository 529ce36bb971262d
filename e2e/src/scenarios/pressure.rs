//! Too little of something.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Bench;
use crate::commands::{done, output, text, until};
use crate::names::IMAGE;
use crate::workload::Mix;

/// A file system in memory that is soon full.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(dir: PathBuf, options: &str) -> anyhow::Result<Self> {
        let kind = Some("tmpfs");
        mount(kind, &dir, kind, MsFlags::empty(), Some(options)).context("mounting a tmpfs")?;
        Ok(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(errno) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("unmounting {}: {errno}", self.0.display());
        }
    }
}

/// The store's disk is full.
pub(super) fn store_full(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let disk = SmallDisk::new(bench.lab.make_dir("disk")?, "size=24m")?;
    let store = disk.0.join("store");
    done(
        Command::new("cp")
            .arg("-aT")
            .args([bench.base().store(), store.clone()]),
    )?;
    bench.lab.set_store(store);
    let mountpoint = bench.lab.mount("mnt", &["--wait-prewarm"])?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    let filler = disk.0.join("filler");
    bench.at_random(Duration::from_millis(100), |bench| {
        // Full to the last byte, or to the last few.
        drop(fs::write(&filler, vec![0; 32 << 20]));
        let left = bench.rng.below(200 << 10);
        let len = fs::metadata(&filler)?.len().saturating_sub(left);
        fs::File::options()
            .write(true)
            .open(&filler)?
            .set_len(len)?;
        let mut record = bench.lab.program("bootimg")?;
        record.args(["record", "--no-chroot", "--name", "another"]);
        record.arg(bench.lab.source());
        record.args(["--", "sh", "-c", "cat $YOLOFS_MNT/cold/*/* > /dev/null"]);
        let record = output(&mut record)?;
        let why = text(&record.stderr);
        ensure!(
            !record.status.success(),
            "a boot image was written to a full disk"
        );
        ensure!(why.contains("space"), "the message does not say why: {why}");
        fs::remove_file(&filler)?;
        Ok(())
    })?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    // What was there before is whole, and a mount from it still is right.
    done(bench.lab.program("bootimg")?.args(["verify", IMAGE]))?;
    bench.truth().compare(&mountpoint)?;
    bench.lab.umount(&mountpoint)
}

/// A memory cgroup, of version 1 or 2, whatever this machine has.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    fn new(bench: &Bench<'_>, limit: u64) -> anyhow::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (parent, file) = match v1.exists() {
            true => (v1, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let dir = parent.join(bench.lab.name());
        fs::create_dir(&dir).context("making a memory cgroup")?;
        let made = Self(dir);
        fs::write(made.0.join(file), limit.to_string())?;
        Ok(made)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Goes as soon as the last process in it is gone.
        let gone = until("the end of the cgroup's last process", || {
            Ok(fs::remove_dir(&self.0).is_ok())
        });
        if let Err(error) = gone {
            eprintln!("{error:#}");
        }
    }
}

/// The daemon may use too little memory for what it injects.
pub(super) fn memory_short(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let cgroup = MemoryCgroup::new(bench, 24 << 20)?;
    let mountpoint = bench.lab.make_dir("mnt")?;
    let mut yolofs = bench.lab.mount_command()?;
    yolofs.args(["--boot", IMAGE]);
    let mut joined = Command::new("sh");
    let join = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        cgroup.0.display()
    );
    joined
        .args(["-c", &join, "sh"])
        .arg(yolofs.get_program())
        .args(yolofs.get_args());
    let variables = yolofs.get_envs();
    joined.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    done(joined.args([bench.lab.source(), &mountpoint]))?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    bench.at_random(Duration::from_millis(100), |bench| {
        done(bench.lab.program("bootimg")?.args(["prewarm", IMAGE])).map(drop)
    })?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.truth().compare(&mountpoint)?;
    bench.lab.umount(&mountpoint)
}
