//! Events that end mounts without the node: an unmount by another program, the end of the last user,
//! or the end of the FUSE connection.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use yolofs::MountTable;

use super::assignment::Service;
use super::make::is_end;
use super::owned::Owned;
use super::owner::Owner;
use host::caught::{caught_or, caught_round};

/// The mount table is read no more often than this: who mounts many makes an event for each.
const PAUSE: Duration = Duration::from_millis(20);
/// How often it is looked whether sessions are over: nothing tells of all of them at once.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a worker may have nothing to serve until it is ended.
const IDLE_LOOKS: u32 = 10;

/// Starts the watch, on a thread of its own that ends with the node.
///
/// # Errors
/// If no thread can be started, or the mount table cannot be opened.
pub(crate) fn start(owner: Weak<Owner>) -> anyhow::Result<()> {
    let mut table = File::open("/proc/self/mountinfo").context("opening the list of mounts")?;
    let watch = move || {
        let mut idle = Idle::default();
        while let Some(owner) = owner.upgrade() {
            if let Err(error) = caught_or(|| owner.look(&mut table)) {
                log::error!("looking at the list of mounts: {error:#}");
            }
            caught_round("ending idle workers", || idle.end_workers(&owner));
            drop(owner);
            std::thread::sleep(PAUSE);
            let mut changed = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
            let patience = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::ZERO);
            if let Err(errno) = poll(&mut changed, patience)
                && errno != Errno::EINTR
            {
                log::error!("waiting for changes of the list of mounts: {errno}");
            }
        }
    };
    std::thread::Builder::new()
        .name("watch-mounts".to_owned())
        .spawn(watch)
        .map(drop)
        .context("starting the thread that watches the mounts")
}

impl Owner {
    fn look(&self, table: &mut File) -> anyhow::Result<()> {
        // Taken before the table is read: a mount that is younger than the list is not gone.
        let mounts = self.all();
        let listed = read(table).context("reading the list of mounts")?;
        for mount in &mounts {
            one(mount, || self.see_whether_listed(mount, &listed));
        }
        for mount in over(&mounts) {
            one(&mount, || match mount.assigned.service() {
                _ if mount.is_leaving() => self.forget(&mount),
                Service::GivenUp(_) => {}
                _ => self.give_up(&mount, "somebody ended its connection"),
            });
        }
        Ok(())
    }

    fn see_whether_listed(&self, mount: &Arc<Owned>, listed: &MountTable) {
        let failed = matches!(mount.assigned.service(), Service::GivenUp(_));
        if !failed && !mount.is_leaving() && !mount.visible.is_listed(listed) {
            log::info!("{} was unmounted", mount.visible.target().display());
            self.let_go(mount);
        } else if mount.is_to_be_told() {
            Self::tell_to_let_go(mount);
        }
    }
}

/// Acts on one mount. A panic over it keeps no other from its turn.
fn one(mount: &Owned, act: impl FnOnce()) {
    let watching = format!("{}: watching the mount", mount.id);
    caught_round(&watching, act);
}

fn read(table: &mut File) -> std::io::Result<MountTable> {
    let mut text = Vec::new();
    table.rewind()?;
    table.read_to_end(&mut text)?;
    Ok(MountTable::parse(&String::from_utf8_lossy(&text)))
}

/// Returns those whose sessions are over.
fn over(mounts: &[Arc<Owned>]) -> Vec<Arc<Owned>> {
    let mut ends: Vec<PollFd<'_>> = mounts.iter().map(|mount| mount.end()).collect();
    if let Err(errno) = poll(&mut ends, PollTimeout::ZERO) {
        log::error!("looking for the ends of sessions: {errno}");
        return Vec::new();
    }
    let ended = mounts.iter().zip(&ends);
    ended
        .filter(|(_, end)| is_end(end.revents()))
        .map(|(mount, _)| Arc::clone(mount))
        .collect()
}

/// Workers that have nothing to serve, and for how many looks.
#[derive(Default)]
struct Idle(std::collections::BTreeMap<u32, u32>);

impl Idle {
    /// Ends workers that have had nothing to serve for a while.
    fn end_workers(&mut self, owner: &Owner) {
        let workers = owner.pool.all();
        let idle: Vec<_> = workers.iter().filter(|w| w.load() == 0).collect();
        self.0
            .retain(|pid, _| idle.iter().any(|w| w.process.pid == *pid));
        for worker in idle {
            let looks = self.0.entry(worker.process.pid).or_default();
            *looks += 1;
            if *looks > IDLE_LOOKS {
                worker.replace();
            }
        }
    }
}
