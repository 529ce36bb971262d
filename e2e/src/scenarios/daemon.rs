//! Harm to a standalone daemon and its boot image.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use rawio::pidfd::PidFd;

use crate::Bench;
use crate::commands::{PATIENCE, done, until};
use crate::processes::{Process, Role, descriptors};
use crate::workload::Mix;

/// What a mount without its daemon gives.
const DEAD: [i32; 1] = [Errno::ENOTCONN as i32];

/// What a request that was with the daemon when it died gives, beside that.
const DYING: [i32; 2] = [Errno::ENOTCONN as i32, Errno::ECONNABORTED as i32];

/// Nothing happens: what else is measured stands out against this.
pub(super) fn undisturbed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mountpoint = bench.lab.mount("mnt", &["--wait-prewarm"])?;
    let daemon = only(&bench.lab.processes(Role::Daemon))?;
    // The first reads open what stays open: files of the source, the control socket's last use.
    bench.truth().compare(&mountpoint)?;
    let before = descriptors(daemon.pid);
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    std::thread::sleep(bench.length);
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.truth().compare(&mountpoint)?;
    until("the daemon to have as many descriptors as before", || {
        Ok(descriptors(daemon.pid) <= before)
    })?;
    bench.lab.umount(&mountpoint)
}

/// The daemon is killed under its readers, and its mount cleared.
pub(super) fn killed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.at_random(Duration::from_millis(1), |bench| {
        // It may be pushing pages when it dies, or not.
        let mountpoint = bench.lab.mount("mnt", &[])?;
        until("the last daemon to end", || {
            Ok(bench.lab.processes(Role::Daemon).len() == 1)
        })?;
        let daemon = only(&bench.lab.processes(Role::Daemon))?;
        let readers = bench.read(&mountpoint, Mix::PLAIN)?;
        let longest = if bench.rng.once_in(2) { 10 } else { 300 };
        std::thread::sleep(Duration::from_millis(bench.rng.below(longest)));
        kill(&daemon)?;
        // All who wait are told, and nobody is left waiting.
        let tally = readers.stop()?;
        bench.take(&tally, &DYING)?;
        let error = fs::read_dir(mountpoint.join("cold")).err();
        let dead = error.and_then(|error| error.raw_os_error());
        ensure!(
            dead.is_none_or(|errno| DEAD.contains(&errno)),
            "a mount without its daemon gives error {dead:?}"
        );
        bench.lab.umount(&mountpoint)?;
        let again = bench.lab.mount("mnt", &[])?;
        bench.truth().compare(&again).context("after a new mount")?;
        bench.lab.umount(&again)?;
        until("the daemon to end", || {
            Ok(bench.lab.processes(Role::Daemon).is_empty())
        })
    })
}

/// Bytes of the boot image change, before the mount and while it is there.
pub(super) fn image_damaged(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let store = bench.lab.path("store");
    let mut copy = std::process::Command::new("cp");
    done(copy.arg("-aT").args([bench.base().store(), store.clone()]))?;
    bench.lab.set_store(store.clone());
    let files = files_below(&store)?;
    let blocks: Vec<_> = files.iter().filter(|path| is_blocks(path)).collect();
    ensure!(!blocks.is_empty(), "the store has no blocks to damage");
    // Under a mount that answers one by one, so that reads meet the damage and not the cache.
    let mountpoint = bench.lab.mount("mnt", &["--no-inject"])?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    bench.at_random(Duration::from_millis(20), |bench| {
        damage(blocks[bench.rng.index(blocks.len())], bench)
    })?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.truth().compare(&mountpoint)?;
    bench.lab.umount(&mountpoint)?;
    // And from the start, pushed into the page cache.
    let again = bench.lab.mount("mnt", &["--wait-prewarm"])?;
    bench
        .truth()
        .compare(&again)
        .context("of a damaged boot image")?;
    bench.lab.umount(&again)
}

/// Whether a file of the store has content of files, which has to be right and need not be there.
pub(super) fn is_blocks(path: &Path) -> bool {
    let big = fs::metadata(path).is_ok_and(|attributes| attributes.len() > 256 << 10);
    big && !path.components().any(|part| part.as_os_str() == "names")
}

/// Turns some bits of a file over, past its head.
pub(super) fn damage(path: &Path, bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let half = file.metadata()?.len() / 2;
    let offset = half + bench.rng.below(half);
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    byte[0] ^= 1 << bench.rng.below(8);
    file.write_all_at(&byte, offset)?;
    Ok(())
}

pub(super) fn files_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

/// Kills a process, and waits until it is gone.
pub(super) fn kill(process: &Process) -> anyhow::Result<()> {
    let handle = PidFd::open(process.pid)?;
    handle.signal(Signal::SIGKILL)?;
    ensure!(handle.ended_within(PATIENCE)?, "{process:?} does not die");
    Ok(())
}

/// Returns the only process of a list.
pub(super) fn only(processes: &[Process]) -> anyhow::Result<Process> {
    match processes {
        [one] => Ok(one.clone()),
        many => anyhow::bail!("{} processes where one is expected: {many:?}", many.len()),
    }
}
