//! `yolofs umount`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::by_node;
use crate::control::{Answer, Request, call};
use crate::exit::Outcome;
use crate::mount_table::{clear_by_force, kind_at};
use crate::mountpoint;
use crate::run_dir::{MOUNT_KIND, MountRecord, RunDir, RunDirArg};

/// How long a daemon may take to unmount: it answers requests until the last one is done.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long a process that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(2);
/// How often that is looked at; nothing tells the end of a process that is not a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Unmount, and clear what a crash left behind
///
/// A mount whose daemon died is cleared; a path that is not mounted is fine.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UmountArgs {
    /// Where they are mounted
    #[arg(required = true, value_name = "MOUNTPOINT")]
    mountpoints: Vec<PathBuf>,
    /// Detach now, even if someone uses it: it is gone when the last user is
    #[arg(long, short)]
    lazy: bool,
}

pub(super) fn run(args: &UmountArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    for mountpoint in &args.mountpoints {
        unmount(&run_dir, mountpoint, args.lazy)
            .with_context(|| format!("unmounting {}", mountpoint.display()))?;
    }
    Ok(Outcome::Done)
}

fn unmount(run_dir: &RunDir, mountpoint: &Path, lazy: bool) -> anyhow::Result<()> {
    let mountpoint = mountpoint::resolve(mountpoint).context("finding it")?;
    if by_node::unmount(run_dir, &mountpoint, lazy)? {
        return Ok(());
    }
    let record = run_dir.find(&mountpoint)?;
    if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
        match call(
            &run_dir.socket(&record.id),
            &Request::Unmount { lazy },
            DEADLINE,
        ) {
            Ok(Answer::Unmounted) => return Ok(()),
            Ok(Answer::Failed { why }) => bail!("{why}"),
            Ok(other) => bail!("the daemon gave an answer to another question: {other:?}"),
            // It died while it was asked: what it leaves behind is cleared below.
            Err(_) if dies(record) => {}
            Err(error) => return Err(error),
        }
    }
    // Looked at again with nobody mounting meanwhile: a successor is not to be cleared away.
    let turn = run_dir.take_turn()?;
    let record = run_dir.find(&mountpoint)?;
    if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
        bail!(
            "process {} mounted there since: unmount that, if you mean it",
            record.pid
        );
    }
    let kind = kind_at(&mountpoint)?;
    match (&record, kind.as_deref()) {
        (_, Some(MOUNT_KIND)) => clear_by_force(&mountpoint)?,
        (Some(_), None) => {}
        (None, None) => eprintln!("yolofs: {} is not mounted", mountpoint.display()),
        (_, Some(kind)) => bail!("a mount of type {kind} is there, which is not ours to unmount"),
    }
    if let Some(record) = record {
        run_dir.remove(&record, &turn);
    }
    Ok(())
}

/// Returns whether a daemon that gave no answer is on its way out: a process that is killed
/// closes its sockets a moment before it is gone.
fn dies(record: &MountRecord) -> bool {
    let deadline = Instant::now() + DYING;
    while record.is_alive() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}
