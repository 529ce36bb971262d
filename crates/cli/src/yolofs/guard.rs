//! `yolofs guard`: makes sure that the requests of a mount end with its daemon.
//!
//! They do when the last thread of the daemon has let go of the device. But a thread that pushes
//! pages, or makes the kernel forget them, waits there for whoever reads the same page, and no
//! signal reaches it. A reader waits for the threads that serve. If all of them are killed, the
//! one that pushes waits for the reader, the reader for an answer, and the device stays open.
//! So somebody outside, who dies of nothing that the daemon dies of, waits for the daemon's first
//! thread, and then ends the connection, as the kernel would have done.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use rawio::pidfd::PidFd;
use yolofs::Mount;

use crate::exit::Outcome;

/// End the requests of a mount when its daemon is killed; started by `yolofs mount`
///
/// Standard input is the daemon's first thread, as a descriptor; standard output is what ends
/// the connection.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct GuardArgs {}

pub(super) fn run() -> anyhow::Result<Outcome> {
    confine::capabilities::keep_only(&[]).context("giving up capabilities")?;
    let own = |fd: io::Result<OwnedFd>| fd.context("taking what the daemon handed over");
    let daemon = PidFd::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let mut end = File::from(own(io::stdout().as_fd().try_clone_to_owned())?);
    daemon.wait().context("waiting for the daemon")?;
    // Mostly, the connection is gone by now, and nothing is left to be ended.
    end.write_all(b"1").context("ending the connection")?;
    Ok(Outcome::Done)
}

/// Starts the guard of this process for a mount. It ends with this process.
///
/// # Errors
/// If the connection cannot be ended from here, or no process can be started.
pub(super) fn start(mount: &Mount) -> anyhow::Result<()> {
    let end = mount.end_switch().context("asking for the connection")?;
    let daemon = PidFd::open_first_thread(std::process::id()).context("opening this process")?;
    Command::new("/proc/self/exe")
        .arg("guard")
        // What is sent to the group of the daemon, or keeps its directory busy, is not meant for it.
        .process_group(0)
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(daemon)))
        .stdout(Stdio::from(end))
        .stderr(Stdio::null())
        .spawn()
        .context("starting the guard")?;
    Ok(())
}
