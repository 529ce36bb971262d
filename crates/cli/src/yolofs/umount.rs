//! `yolofs umount`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rawio::pidfd::PidFd;

use super::by_node;
use crate::completions::mountpoints;
use crate::exit::Outcome;
use crate::output::complain;
use crate::run_dir_arg::RunDirArg;
use host::control::call;
use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear_by_force, in_use_below, kind_at, overlay_on};
use host::mountpoint;
use host::run_dir::{MountRecord, RunDir, process_start};
use node_api::control::WhenInUse;
use node_api::mount_daemon::{Request, Response};

/// How long a daemon may take to unmount: it answers requests until the last one is done.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait for a daemon that has unmounted, if the mount may still be in use.
const LAZY_ENDING: Duration = Duration::from_millis(200);
/// How long a process that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(2);
/// How often that is looked at; nothing tells the end of a process that is not a child.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Unmount, and clear dead mounts
///
/// A mount whose daemon died is cleared; a path that is not mounted is fine.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UmountArgs {
    /// Mount points
    #[arg(required = true, value_name = "MOUNTPOINT", add = mountpoints())]
    mountpoints: Vec<PathBuf>,
    /// Detach even if the mount is in use; its users are served until they end
    #[arg(long, short)]
    lazy: bool,
}

pub(super) fn run(args: &UmountArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let when_in_use = match args.lazy {
        true => WhenInUse::Detach,
        false => WhenInUse::Refuse,
    };
    for mountpoint in &args.mountpoints {
        unmount(&run_dir, mountpoint, when_in_use)
            .with_context(|| format!("unmounting {}", mountpoint.display()))?;
    }
    Ok(Outcome::Done)
}

fn unmount(run_dir: &RunDir, mountpoint: &Path, when_in_use: WhenInUse) -> anyhow::Result<()> {
    let mountpoint = mountpoint::resolve(mountpoint).context("finding it")?;
    if by_node::unmount(run_dir, &mountpoint, when_in_use)? {
        return Ok(());
    }
    let record = run_dir.find(&mountpoint)?;
    if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
        if when_in_use == WhenInUse::Refuse
            && let Some(overlay) = overlay_on(&mountpoint)?
        {
            bail!("{}", in_use_below(&mountpoint, &overlay));
        }
        let daemon = Daemon::of(record)?;
        match call(
            &run_dir.socket(&record.id),
            &Request::Unmount {
                lazy: when_in_use == WhenInUse::Detach,
            },
            DEADLINE,
        ) {
            Ok(Response::Unmounted { in_use: true }) => {
                complain(&format!(
                    "yolofs: {} is unmounted, but something that the list of mounts does not tell \
                     uses it yet: process {} serves that until its end",
                    mountpoint.display(),
                    record.pid
                ));
                return Ok(());
            }
            Ok(Response::Unmounted { in_use: false }) => return daemon.await_end(when_in_use),
            Ok(Response::Failed { why }) => bail!("{why}"),
            Ok(other) => bail!("unexpected response of the daemon: {other:?}"),
            // It died while it was asked: what it leaves behind is cleared below.
            Err(_) if dies(record) => {}
            Err(error) => return Err(error),
        }
    }
    // Looked at again with nobody mounting meanwhile: a successor is not to be cleared away.
    let lock = run_dir.lock()?;
    let record = run_dir.find(&mountpoint)?;
    if let Some(record) = record.as_ref().filter(|record| record.is_alive()) {
        bail!(
            "process {} has mounted something else there: run umount again to unmount that",
            record.pid
        );
    }
    let kind = kind_at(&mountpoint)?;
    match (&record, kind.as_deref()) {
        (_, Some(MOUNT_KIND)) => clear_by_force(&mountpoint)?,
        (Some(_), None) => {}
        (None, None) => complain(&format!("yolofs: {} is not mounted", mountpoint.display())),
        (_, Some(kind)) => bail!("the mount there has type {kind} and is not one of yolofs"),
    }
    if let Some(record) = record {
        run_dir.remove(&record, &lock);
    }
    Ok(())
}

/// The daemon of a mount.
struct Daemon {
    pid: u32,
    /// `None` if it has ended.
    process: Option<PidFd>,
}

impl Daemon {
    fn of(record: &MountRecord) -> anyhow::Result<Self> {
        let process = PidFd::open(record.pid);
        // The number may be another's by now.
        let process = match (process, record.is_alive()) {
            (_, false) => None,
            (process, true) => Some(process.context("watching the daemon")?),
        };
        Ok(Self {
            pid: record.pid,
            process,
        })
    }

    /// Waits until a daemon that has unmounted is gone, with all that it had open of the source: whoever
    /// has unmounted may unmount the source's file system next. A source that hangs holds the threads
    /// that wait for it, and with them the process, for as long as it likes: that is not waited for.
    fn await_end(&self, when_in_use: WhenInUse) -> anyhow::Result<()> {
        // It may be writing what it has recorded. Those who use a mount that is detached keep it.
        let patience = match when_in_use {
            WhenInUse::Detach => LAZY_ENDING,
            WhenInUse::Refuse => DEADLINE,
        };
        let mut deadline = Instant::now() + patience;
        let mut exiting = false;
        while !self.ends_within(LOOK_EVERY)? {
            if !exiting && self.is_exiting() {
                exiting = true;
                deadline = deadline.min(Instant::now() + DYING);
            }
            if Instant::now() >= deadline {
                if when_in_use == WhenInUse::Refuse {
                    complain(&format!(
                        "yolofs: it is unmounted, but process {} does not end, and has the source open",
                        self.pid
                    ));
                }
                break;
            }
        }
        Ok(())
    }

    fn ends_within(&self, patience: Duration) -> anyhow::Result<bool> {
        let process = self.process.as_ref();
        let ended = process.map_or(Ok(true), |process| process.ended_within(patience));
        ended.context("waiting for the daemon's end")
    }

    /// Returns whether the process has come to its end but for threads that the kernel cannot end.
    fn is_exiting(&self) -> bool {
        process_start(self.pid).is_err()
    }
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
