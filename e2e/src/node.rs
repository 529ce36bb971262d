//! A node service, with its keeper and its workers.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::Signal;
use rawio::pidfd::PidFd;

use crate::commands::{PATIENCE, done, output, until};
use crate::lab::Lab;
use crate::processes::{Process, Role, descriptors, stuck_threads};

/// Descriptors that a process may have more after much than before it: of a question that is
/// being asked just now, of a boot image that was not there before.
const SLACK: usize = 4;

/// A running node. The lab ends what is left of it.
#[derive(Debug)]
pub(crate) struct Service {
    /// The process that the harness has started: the first keeper.
    child: Child,
}

impl Service {
    /// Starts one, and waits until it answers.
    pub(crate) fn start(lab: &Lab) -> anyhow::Result<Self> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(lab.run_dir().join("node.log"))?;
        let child = lab
            .yolofs(&["node"])?
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the node")?;
        let mut service = Self { child };
        until("the node to answer", || {
            let ended = service.child.try_wait()?;
            ensure!(ended.is_none(), "the node ended: {ended:?}");
            Ok(answers(lab))
        })?;
        Ok(service)
    }

    /// Has it end, and waits until it, its keeper and its workers are gone.
    pub(crate) fn stop(&mut self, lab: &Lab) -> anyhow::Result<()> {
        done(&mut lab.yolofs(&["node", "drain"])?)?;
        // Whoever keeps it now: the first keeper may be long dead.
        send(&one(lab, Role::Keeper)?, Signal::SIGTERM)?;
        let ended = until("the node to end", || {
            // Reaps the first keeper.
            self.child.try_wait()?;
            // They would end by themselves, but only when they have had nothing to do for a while.
            for worker in lab.processes(Role::Worker) {
                drop(send(&worker, Signal::SIGTERM));
            }
            Ok(lab.all_processes().is_empty())
        });
        ended.with_context(|| {
            let left = lab.all_processes();
            let stuck: Vec<_> = left.iter().map(|left| stuck_threads(left.pid)).collect();
            format!("left are {left:?}, of which cannot be woken {stuck:?}")
        })
    }

    /// Kills all of it, as a loss of power does.
    pub(crate) fn fall(&mut self, lab: &Lab) -> anyhow::Result<()> {
        until("everything to be dead", || {
            let all = lab.all_processes();
            for process in &all {
                // One may be gone with the one before; and one that is killed later may have
                // started another, which is next.
                drop(send(process, Signal::SIGKILL));
            }
            self.child.try_wait()?;
            Ok(all.is_empty())
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether the node answers now.
fn answers(lab: &Lab) -> bool {
    let asked = lab
        .yolofs(&["node", "status"])
        .and_then(|mut ask| output(&mut ask));
    asked.is_ok_and(|output| output.status.success())
}

/// Where reads of what a boot image holds are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// From the worker, read by read.
    FromWorker,
    /// From the page cache, as far as it is there.
    FromPageCache,
}

/// Has the node mount the source on a new directory.
pub(crate) fn mount(lab: &Lab, name: &str, image: &str, reads: Reads) -> anyhow::Result<PathBuf> {
    let mountpoint = lab.make_dir(name)?;
    let how = match reads {
        Reads::FromWorker => "--no-inject",
        Reads::FromPageCache => "--wait-prewarm",
    };
    let mut mount = lab.yolofs(&["mount", how, "--boot", image])?;
    done(mount.args([lab.source(), &mountpoint]))?;
    Ok(mountpoint)
}

/// Waits until there is exactly one process in a role, and returns it.
pub(crate) fn one(lab: &Lab, role: Role) -> anyhow::Result<Process> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = lab.processes(role);
        if let [process] = found.as_slice() {
            return Ok(process.clone());
        }
        if Instant::now() > deadline {
            bail!("not one {role:?} but {found:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Sends a signal.
pub(crate) fn send(process: &Process, signal: Signal) -> anyhow::Result<()> {
    let handle = PidFd::open(process.pid).with_context(|| format!("opening {process:?}"))?;
    handle
        .signal(signal)
        .with_context(|| format!("sending {signal} to {process:?}"))
}

/// Kills the process in a role, and waits until another has its place.
pub(crate) fn replace(lab: &Lab, role: Role) -> anyhow::Result<()> {
    let process = one(lab, role)?;
    send(&process, Signal::SIGKILL)?;
    await_another(lab, &process)
}

/// Waits until another process has the place of this one.
pub(crate) fn await_another(lab: &Lab, before: &Process) -> anyhow::Result<()> {
    until("another process", || {
        Ok(one(lab, before.role)?.pid != before.pid)
    })
}

/// How many descriptors node and worker have, when nothing goes on.
pub(crate) fn open_descriptors(lab: &Lab) -> anyhow::Result<[usize; 2]> {
    let count = |role| {
        let process = one(lab, role)?;
        descriptors(process.pid).with_context(|| format!("{process:?} is gone"))
    };
    Ok([count(Role::Node)?, count(Role::Worker)?])
}

/// Waits until node and worker have no more descriptors than before.
pub(crate) fn no_leak(lab: &Lab, before: [usize; 2]) -> anyhow::Result<()> {
    let mut now = before;
    let settled = until("descriptors to be closed", || {
        now = open_descriptors(lab)?;
        Ok(now
            .iter()
            .zip(before)
            .all(|(now, before)| *now <= before + SLACK))
    });
    settled.with_context(|| format!("node and worker had {before:?} descriptors, and have {now:?}"))
}

/// Waits until a mount is answered by a living worker.
pub(crate) fn serves(mountpoint: &Path) -> anyhow::Result<()> {
    std::fs::read_dir(mountpoint).context("asking the mount")?;
    Ok(())
}
