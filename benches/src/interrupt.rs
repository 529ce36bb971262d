//! Ctrl-C as an error that every wait returns, so that owners clean up on the way out.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, bail};
use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into what [`check`] reports. Call it first, before any thread
/// is started.
///
/// The programs that the rig starts inherit the blocked signals; the rig asks them to end in
/// other ways, and kills them by SIGKILL.
///
/// # Errors
/// If the signals cannot be blocked or the thread cannot be started.
pub fn watch() -> anyhow::Result<()> {
    let signals = watched();
    signals.thread_block().context("blocking signals")?;
    // It waits as long as the process lives, so nobody joins it.
    let watcher = move || {
        while signals.wait().is_ok() {
            INTERRUPTED.store(true, Relaxed);
        }
    };
    std::thread::Builder::new()
        .name("interrupt".to_owned())
        .spawn(watcher)
        .context("starting the thread that waits for signals")?;
    Ok(())
}

fn watched() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// Starts a program, by `spawn`, that is to be ended by signals: itself, or what it starts. Others
/// inherit that the rig blocks them.
///
/// # Errors
/// If the signals cannot be unblocked and blocked again.
pub fn unblocked<T>(spawn: impl FnOnce() -> T) -> anyhow::Result<T> {
    watched().thread_unblock().context("unblocking signals")?;
    let spawned = spawn();
    watched().thread_block().context("blocking signals")?;
    Ok(spawned)
}

/// Fails if the rig was asked to end.
///
/// # Errors
/// If it was.
pub fn check() -> anyhow::Result<()> {
    if INTERRUPTED.load(Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
