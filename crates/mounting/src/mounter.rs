//! `yolofs mounter`: the process beside the daemon of one mount, with the rights that the daemon drops.
//!
//! - *It mounts and unmounts.* A process that is confined by Landlock cannot change the mount table, and
//!   the daemon reads data from a registry and serves containers. So the helper receives the place
//!   before the daemon reads anything, mounts once there, and unmounts that mount: a compromised
//!   daemon can make it do nothing else.
//! - *It guards*: the requests of the mount end with the daemon, even if the daemon cannot end.
//!
//! It ends with the daemon. If it is killed, the mount is still served; `umount`(8) unmounts it.

mod process;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use rawio::pidfd::PidFd;
use serde::{Deserialize, Serialize};
use yolofs::{Busy, Layering, MountTarget, Mounter, Tried, Visible};

use host::framed::{receive, send};

pub use process::run;

/// Longer than any of it takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// What it can be asked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Unmount what a dead daemon left at the place.
    Clear,
    /// Put the mount that travels beside this to the place.
    Attach { beneath: bool },
    /// Unmount it.
    Unmount { lazy: bool },
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Response {
    Done,
    InUse,
    Covered,
    /// The error number, or the reason for people.
    Failed {
        errno: Option<i32>,
        why: String,
    },
}

impl From<io::Error> for Response {
    fn from(error: io::Error) -> Self {
        Self::Failed {
            errno: error.raw_os_error(),
            why: error.to_string(),
        }
    }
}

/// The daemon's end of it.
#[derive(Debug)]
pub struct Helper(Mutex<UnixStream>);

impl Helper {
    /// Starts one for a place. It ends with this process. To be called while this has all its
    /// capabilities yet.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(place: &Path) -> anyhow::Result<Self> {
        let daemon =
            PidFd::open_first_thread(std::process::id()).context("opening this process")?;
        let (ours, its) = UnixStream::pair().context("making a pair of sockets")?;
        Command::new("/proc/self/exe")
            .arg("mounter")
            .arg(place)
            .stdin(OwnedFd::from(its))
            .stdout(OwnedFd::from(daemon))
            // What is typed at the daemon's terminal is not for it.
            .process_group(0)
            .spawn()
            .context("starting the process that mounts and unmounts")?;
        Ok(Self(Mutex::new(ours)))
    }

    /// Requests that the mount of a dead daemon at the place is unmounted.
    ///
    /// # Errors
    /// If the system refuses, or the helper has ended.
    pub fn clear(&self) -> anyhow::Result<()> {
        match self.ask(Request::Clear, &[])? {
            Response::Done => Ok(()),
            other => bail!("clearing what a dead daemon left: {other:?}"),
        }
    }

    fn ask(&self, request: Request, beside: &[BorrowedFd<'_>]) -> anyhow::Result<Response> {
        let stream = self.0.lock();
        let deadline = Instant::now() + PATIENCE;
        send(&stream, &request, beside, deadline)
            .and_then(|()| Ok(receive(&stream, deadline)?.0))
            .context("asking the helper of the daemon (umount(8) works without it)")
    }
}

impl Mounter for Helper {
    fn attach(&self, mount: BorrowedFd<'_>, _: &MountTarget, layering: Layering) -> io::Result<()> {
        let beneath = layering == Layering::Beneath;
        let came = self.ask(Request::Attach { beneath }, &[mount]);
        match came.map_err(io::Error::other)? {
            Response::Done => Ok(()),
            came => Err(error_of(came)),
        }
    }

    fn unmount(&self, _: &Visible, busy: Busy) -> Tried {
        let lazy = busy == Busy::Lazy;
        match self.ask(Request::Unmount { lazy }, &[]) {
            Ok(Response::Done) => Tried::Unmounted,
            Ok(Response::InUse) => Tried::InUse,
            Ok(Response::Covered) => Tried::Covered,
            Ok(came) => Tried::Failed(error_of(came)),
            Err(error) => Tried::Failed(io::Error::other(format!("{error:#}"))),
        }
    }
}

fn error_of(came: Response) -> io::Error {
    match came {
        Response::Failed {
            errno: Some(errno), ..
        } => io::Error::from_raw_os_error(errno),
        Response::Failed { why, .. } => io::Error::other(why),
        other => io::Error::other(format!("{other:?}")),
    }
}
