//! Supervision of the keeper: when it dies, the node starts another and sends it all
//! descriptors.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use fdstore::{KEEPER_PID, Program, surround};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rawio::pidfd::PidFd;

use super::keep::name;
use super::owner::Owner;
use host::caught::caught_or;

/// How long one wait for the keeper's end takes; after it comes the next.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// The pause after an attempt to start a keeper that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the keeper that started this process, if there is one.
#[must_use]
pub(crate) fn keeper_pid() -> Option<u32> {
    std::env::var(KEEPER_PID).ok()?.parse().ok()
}

/// Starts the watch, on a thread of its own that ends with the node.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(
    owner: Weak<Owner>,
    keeper: u32,
    listener: UnixListener,
    program: Program,
) -> anyhow::Result<()> {
    let watch = move || {
        let mut keeper = keeper;
        loop {
            await_end(keeper);
            let Some(owner) = owner.upgrade() else { return };
            log::warn!("the keeper (process {keeper}) died: another is started");
            match caught_or(|| owner.start_keeper(&program, &listener)) {
                Ok(pid) => keeper = pid,
                Err(error) => {
                    log::error!("there is no keeper: {error:#}");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("watch-keeper".to_owned())
        .spawn(watch)
        .map(drop)
        .context("starting the thread that watches over the keeper")
}

fn await_end(pid: u32) {
    // One that is not there any more has ended.
    let Ok(process) = PidFd::open(pid) else {
        return;
    };
    while matches!(process.ended_within(LOOK_EVERY), Ok(false)) {}
    if let Ok(pid) = i32::try_from(pid) {
        // The first is our parent, later ones are our children.
        let _reaped = waitpid(Pid::from_raw(pid), None);
    }
}

impl Owner {
    fn start_keeper(&self, program: &Program, listener: &UnixListener) -> anyhow::Result<u32> {
        let mounts = self.all();
        let mut kept: Vec<(String, Arc<OwnedFd>)> = Vec::new();
        let api = listener.as_fd().try_clone_to_owned();
        kept.push(("api".to_owned(), Arc::new(api.context("the API's socket")?)));
        for mount in &mounts {
            for (kind, file) in mount.kept() {
                kept.push((name(kind, mount.visible.ids().minor), file));
            }
        }
        let files: Vec<_> = kept
            .iter()
            .map(|(name, file)| (name.clone(), file.as_fd()))
            .collect();
        let (pid, link) = surround(program, &files)?;
        self.keep.relink(link);
        // What was mounted while there was nobody to be told.
        for mount in self.all() {
            if !mounts.iter().any(|known| Arc::ptr_eq(known, &mount)) {
                self.keep.put(&mount);
            }
        }
        Ok(pid)
    }
}
