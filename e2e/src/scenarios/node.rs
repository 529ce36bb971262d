//! Harm to the node, its keeper and its workers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;

use super::daemon::{damage, files_below, is_blocks};
use crate::Bench;
use crate::commands::{done, output, programs, text};
use crate::names::IMAGE;
use crate::node::{
    self, Reads, Service, await_another, no_leak, one, open_descriptors, replace, send,
};
use crate::processes::Role;
use crate::workload::Mix;

/// The longest time between two harms: long enough that readers get to work in between, short
/// enough that some hit a successor that has just begun.
const PAUSE: Duration = Duration::from_millis(300);

type Harm = fn(&mut Bench<'_>) -> anyhow::Result<()>;

/// Does harm to a node while its mount is read; no read may fail.
fn under_harm(bench: &mut Bench<'_>, harm: Harm) -> anyhow::Result<()> {
    under_harm_of(bench, IMAGE, Reads::FromWorker, harm)
}

/// The same, of a mount with another boot image or with none, or one that is prewarmed.
fn under_harm_of(
    bench: &mut Bench<'_>,
    image: &str,
    reads: Reads,
    harm: Harm,
) -> anyhow::Result<()> {
    let mut service = Service::start(&bench.lab)?;
    let mountpoint = node::mount(&bench.lab, "mnt", image, reads)?;
    bench.truth().compare(&mountpoint)?;
    let before = open_descriptors(&bench.lab)?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    bench.at_random(PAUSE, harm)?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.truth().compare(&mountpoint)?;
    no_leak(&bench.lab, before)?;
    bench.lab.umount(&mountpoint)?;
    service.stop(&bench.lab)
}

pub(super) fn worker_killed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    // Each successor prewarms, and may be killed over it.
    under_harm_of(bench, IMAGE, Reads::FromPageCache, kill_worker)
}

pub(super) fn node_killed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, kill_node)
}

pub(super) fn keeper_killed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, kill_keeper)
}

pub(super) fn node_and_worker_killed(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, kill_both)
}

pub(super) fn worker_frozen(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, |bench| freeze(bench, Role::Worker))
}

pub(super) fn node_frozen(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, |bench| freeze(bench, Role::Node))
}

/// One of them after the other.
pub(super) fn anything(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, |bench| {
        let harms = [
            kill_worker,
            kill_node,
            kill_keeper,
            kill_both,
            freeze_either,
        ];
        harms[bench.rng.index(harms.len())](bench)
    })
}

fn kill_worker(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    replace(&bench.lab, Role::Worker)
}

fn kill_node(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    replace(&bench.lab, Role::Node)
}

/// The keeper, and after it, now and then, the node that has started another.
fn kill_keeper(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    replace(&bench.lab, Role::Keeper)?;
    match bench.rng.once_in(2) {
        // What the new keeper was given must do.
        true => replace(&bench.lab, Role::Node),
        false => Ok(()),
    }
}

fn kill_both(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let pair = [one(&bench.lab, Role::Node)?, one(&bench.lab, Role::Worker)?];
    for process in &pair {
        send(process, Signal::SIGKILL)?;
    }
    for process in &pair {
        await_another(&bench.lab, process)?;
    }
    Ok(())
}

fn freeze_either(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let role = if bench.rng.once_in(2) {
        Role::Node
    } else {
        Role::Worker
    };
    freeze(bench, role)
}

/// Stops a process for a while.
fn freeze(bench: &mut Bench<'_>, role: Role) -> anyhow::Result<()> {
    let process = one(&bench.lab, role)?;
    send(&process, Signal::SIGSTOP)?;
    std::thread::sleep(Duration::from_millis(bench.rng.below(1000)));
    // It may have been replaced meanwhile, because it did not answer.
    drop(send(&process, Signal::SIGCONT));
    Ok(())
}

/// Waits until the node answers.
fn ask_node(bench: &Bench<'_>) -> anyhow::Result<()> {
    done(&mut bench.lab.yolofs(&["node", "status"])?).map(drop)
}

pub(super) fn upgraded(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    under_harm(bench, |bench| {
        // The same program by another name is another program.
        let program = bench
            .lab
            .path(if bench.rng.once_in(2) { "one" } else { "other" });
        if !program.exists() {
            fs::copy(programs()?.join("yolofs"), &program).context("copying the program")?;
        }
        let mut upgrade = bench.lab.yolofs(&["upgrade", "--program"])?;
        done(upgrade.arg(&program))?;
        crate::commands::until("the node to answer after an upgrade", || {
            Ok(ask_node(bench).is_ok())
        })
    })
}

/// The boot image comes and goes, and more of it is damaged each time.
pub(super) fn images_swapped(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let store = bench.lab.path("store");
    done(
        Command::new("cp")
            .arg("-aT")
            .args([bench.base().store(), store.clone()]),
    )?;
    bench.lab.set_store(store);
    // Without one at first, so that the worker has all files of the source open when descriptors
    // are counted: it keeps them.
    under_harm_of(bench, "none", Reads::FromWorker, |bench| {
        let blocks: Vec<PathBuf> = files_below(&bench.lab.path("store"))?
            .into_iter()
            .filter(|path| is_blocks(path))
            .collect();
        ensure!(!blocks.is_empty(), "the store has no blocks to damage");
        damage(&blocks[bench.rng.index(blocks.len())], bench)?;
        let image = if bench.rng.once_in(2) { IMAGE } else { "none" };
        let mountpoint = bench.lab.path("mnt");
        let mut swap = bench.lab.yolofs(&["node", "swap"])?;
        let swapped = output(swap.arg(mountpoint).arg(image))?;
        let why = text(&swapped.stderr);
        // An image that is known to be damaged need not be taken.
        ensure!(
            swapped.status.success() || why.contains("damaged"),
            "swapping: {why}"
        );
        Ok(())
    })
}

/// Everything dies, nothing is unmounted in order, and the run directory is empty afterwards.
pub(super) fn rebooted(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut service = Service::start(&bench.lab)?;
    let places = ["mnt0", "mnt1", "mnt2"]
        .map(|name| node::mount(&bench.lab, name, IMAGE, Reads::FromWorker));
    let places = places.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    bench.at_random(PAUSE, |bench| {
        service.fall(&bench.lab)?;
        for point in bench.lab.mounts()?.iter().rev() {
            umount2(point, MntFlags::MNT_DETACH).context("unmounting what was left")?;
        }
        // What is in memory does not survive a reboot.
        fs::remove_dir_all(bench.lab.run_dir())?;
        fs::create_dir_all(bench.lab.run_dir())?;
        service = Service::start(&bench.lab)?;
        for place in &places {
            crate::commands::until("a mount to be made again", || {
                Ok(bench.lab.mounts()?.contains(place) && node::serves(place).is_ok())
            })?;
        }
        let readers = bench.read(&places[0], Mix::ALL)?;
        bench.truth().compare(&places[1])?;
        let tally = readers.stop()?;
        bench.take(&tally, &[])
    })?;
    for place in &places {
        bench.truth().compare(place)?;
        bench.lab.umount(place)?;
    }
    service.stop(&bench.lab)
}
