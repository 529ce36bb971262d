//! Who changes the table of mounts.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use rawio::mount::DetachedMount;

use super::{Busy, Layering, MountTarget, Tried, Visible};

/// Puts a mount into the tree of files, and takes it out again.
///
/// Landlock forbids both to whom it confines, whatever his capabilities: such a process has another
/// do it.
pub trait Mounter: Debug + Send + Sync {
    /// Puts the detached mount that `mount` is open on to a place.
    ///
    /// # Errors
    /// If the process that does it may not.
    fn attach(
        &self,
        mount: BorrowedFd<'_>,
        place: &MountTarget,
        layering: Layering,
    ) -> io::Result<()>;

    /// Tries once to unmount what it attached. No other mount is removed.
    fn unmount(&self, mount: &Visible, busy: Busy) -> Tried;
}

/// This process does it.
#[derive(Clone, Copy, Debug)]
pub struct Itself;

impl Mounter for Itself {
    fn attach(
        &self,
        mount: BorrowedFd<'_>,
        place: &MountTarget,
        layering: Layering,
    ) -> io::Result<()> {
        let mount = DetachedMount::from(mount.try_clone_to_owned()?);
        let attached = match layering {
            Layering::Over => mount.attach(place.spot()),
            Layering::Beneath => mount.attach_beneath(place.spot()),
        };
        attached.map(drop)
    }

    fn unmount(&self, mount: &Visible, busy: Busy) -> Tried {
        mount.try_unmount(busy)
    }
}
