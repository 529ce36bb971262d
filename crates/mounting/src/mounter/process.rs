//! The helper process.
//!
//! It guards because a thread of the daemon that pushes or invalidates pages waits in the kernel for
//! readers of the same page, and no signal ends that wait. A reader waits for the serving
//! threads. If all of them are killed, the pushing thread waits for the reader, the reader for a
//! response, and the device stays open. So a separate process, which does not die with the daemon,
//! waits for the daemon's first thread, and then aborts the FUSE connection, as the kernel would
//! have done.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use nix::errno::Errno;
use nix::sys::signal::SigSet;
use rawio::mount::mount_ids;
use rawio::pidfd::PidFd;
use yolofs::{
    Busy, Control, EndSwitch, Itself, Layering, MountTarget, Mounter as _, Tried, Visible,
};

use super::{PATIENCE, Request, Response};
use crate::confinement;
use host::framed::{is_there, receive, send};
use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear_by_force, kind_at};

/// Runs the helper: does what the daemon requests at one place, until the daemon ends. Standard input is
/// the socket to the daemon; standard output is the daemon's first thread, as a descriptor.
///
/// # Errors
/// If a descriptor from the daemon is missing, or the kernel refuses.
pub fn run(mountpoint: &Path) -> anyhow::Result<()> {
    // The daemon hears these, and then needs this process.
    SigSet::all().thread_block().context("blocking signals")?;
    let own = |fd: io::Result<OwnedFd>| fd.context("taking what the daemon handed over");
    let stream = UnixStream::from(own(io::stdin().as_fd().try_clone_to_owned())?);
    let daemon = PidFd::from(own(io::stdout().as_fd().try_clone_to_owned())?);
    let end = Arc::default();
    let mut hand = Hand::new(
        MountTarget::open(mountpoint)?,
        Arc::clone(&end),
        Control::open(),
    );
    // The directory it was started in must not stay busy because of us.
    std::env::set_current_dir("/").context("leaving the current directory")?;
    confinement::mounter()?;
    let guard = std::thread::Builder::new()
        .name("guard".to_owned())
        .spawn(move || guard(&daemon, &end))
        .context("starting the thread that waits for the daemon")?;
    let heard = listen(&stream, &mut hand);
    // Whatever the daemon says or leaves unsaid, it is waited for.
    guard
        .join()
        .map_err(|_| anyhow!("the thread that waits for the daemon panicked"))??;
    heard
}

/// Waits for the end of the daemon's first thread, and ends the mount's requests with it.
fn guard(daemon: &PidFd, end: &OnceLock<EndSwitch>) -> anyhow::Result<()> {
    daemon.wait().context("waiting for the daemon")?;
    // Mostly, the connection is gone by now, and nothing is left to be ended.
    end.get()
        .map_or(Ok(()), EndSwitch::throw)
        .context("ending the connection")
}

/// Carries out the daemon's requests until the daemon closes the connection.
fn listen(daemon: &UnixStream, hand: &mut Hand) -> anyhow::Result<()> {
    while is_there(daemon)? {
        let (request, beside) = receive(daemon, Instant::now() + PATIENCE)?;
        let came = hand.fulfil(request, beside);
        send(daemon, &came, &[], Instant::now() + PATIENCE)?;
    }
    Ok(())
}

/// What changes the table of mounts, at one place.
struct Hand {
    /// `None` once the mount was made and is gone.
    place: Option<MountTarget>,
    attached: Option<Visible>,
    /// Filled when there is a mount, for the guard.
    end: Arc<OnceLock<EndSwitch>>,
    control: io::Result<Control>,
}

impl Hand {
    const fn new(
        place: MountTarget,
        end: Arc<OnceLock<EndSwitch>>,
        control: io::Result<Control>,
    ) -> Self {
        Self {
            place: Some(place),
            attached: None,
            end,
            control,
        }
    }

    fn fulfil(&mut self, request: Request, beside: Vec<OwnedFd>) -> Response {
        let done = match (request, &self.attached) {
            (Request::Clear, None) => self.clear(),
            (Request::Attach { beneath }, None) => self.attach(beneath, beside),
            (Request::Unmount { lazy }, Some(mount)) => {
                let busy = if lazy { Busy::Lazy } else { Busy::Wait };
                return match mount.try_unmount(busy) {
                    Tried::Unmounted => {
                        // Its directory may be on a file system that is unmounted next.
                        self.place = None;
                        Response::Done
                    }
                    Tried::InUse => Response::InUse,
                    Tried::Covered => Response::Covered,
                    Tried::Failed(error) => error.into(),
                };
            }
            _ => Err(Errno::EPERM.into()),
        };
        done.map_or_else(Response::from, |()| Response::Done)
    }

    fn place(&self) -> io::Result<&MountTarget> {
        self.place.as_ref().ok_or_else(|| Errno::EPERM.into())
    }

    fn clear(&self) -> io::Result<()> {
        let target = self.place()?.target();
        let cleared = kind_at(target).and_then(|kind| match kind.as_deref() {
            Some(MOUNT_KIND) => clear_by_force(target),
            _ => Ok(()),
        });
        cleared.map_err(|error| io::Error::other(format!("{error:#}")))
    }

    fn attach(&mut self, beneath: bool, beside: Vec<OwnedFd>) -> io::Result<()> {
        let mount = beside.into_iter().next().ok_or(Errno::EBADF)?;
        let layering = if beneath {
            Layering::Beneath
        } else {
            Layering::Over
        };
        let ids = mount_ids(mount.as_fd())?;
        let end = match &self.control {
            Ok(control) => control.end_switch(ids).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match end {
            Ok(end) => self.end.set(end).map_err(|_| Errno::EALREADY)?,
            Err(why) => {
                log::warn!(
                    "cannot watch the daemon: if it is killed, readers may hang until yolofs umount: {why}"
                );
            }
        }
        let place = self.place()?;
        Itself.attach(mount.as_fd(), place, layering)?;
        let target = place.target().to_owned();
        self.attached = Some(Visible::resume(target, ids));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_it_attached_is_taken_away_and_only_one_is_attached() {
        let dir = tempfile::tempdir().unwrap();
        let place = || MountTarget::open(dir.path()).unwrap();
        let mut hand = Hand::new(place(), Arc::default(), Err(Errno::ENODEV.into()));
        let refused = |came| matches!(came, Response::Failed { errno: Some(e), .. } if e == Errno::EPERM as i32);
        assert!(refused(
            hand.fulfil(Request::Unmount { lazy: true }, Vec::new())
        ));
        // Nothing of ours is there.
        assert!(matches!(
            hand.fulfil(Request::Clear, Vec::new()),
            Response::Done
        ));
        let none = hand.fulfil(Request::Attach { beneath: false }, Vec::new());
        assert!(matches!(none, Response::Failed { .. }));
        let ids = mount_ids(place().spot()).unwrap();
        hand.attached = Some(Visible::resume(dir.path().join("elsewhere"), ids));
        for request in [Request::Clear, Request::Attach { beneath: true }] {
            assert!(refused(hand.fulfil(request, Vec::new())), "{request:?}");
        }
        // Not there, so nothing is unmounted.
        let came = hand.fulfil(Request::Unmount { lazy: false }, Vec::new());
        assert!(matches!(came, Response::Covered), "{came:?}");
    }
}
