//! The kernel's control files of FUSE: aborting a file system whose server does not respond.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use rawio::mount::{MountContext, MountIds};

/// The control files of all FUSE file systems.
///
/// Opening them needs the right to mount, and system calls that few processes keep; later
/// operations need neither.
#[derive(Debug)]
pub struct Control(OwnedFd);

impl Control {
    /// Opens them, wherever they are mounted, or not.
    ///
    /// # Errors
    /// If the kernel has no control file system for FUSE, or the process may not.
    pub fn open() -> io::Result<Self> {
        // No path leads to it, so it need not be mounted anywhere.
        let control = MountContext::open(c"fusectl")?.mount_writable()?;
        Ok(Self(control.into()))
    }

    /// Returns how many requests of the file system of this mount have no answer, whether or not a server has
    /// read them. The same warning holds as for [`Control::end_switch`].
    ///
    /// # Errors
    /// If there is no such file system (`ENOENT`), or the process may not.
    pub fn waiting(&self, mount: MountIds) -> io::Result<u64> {
        let name = format!("{}/waiting", mount.minor);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let waiting = openat(&self.0, name.as_str(), flags, Mode::empty())?;
        let waiting = io::read_to_string(File::from(waiting))?;
        waiting.trim_end().parse().map_err(io::Error::other)
    }

    /// Opens the switch that aborts the file system of this mount. It refers to this file system only, and does
    /// not keep it alive.
    ///
    /// Must only be called while a process holds the file system: its device number is reused
    /// afterwards.
    ///
    /// # Errors
    /// If there is no such file system (`ENOENT`), or the process may not.
    pub fn end_switch(&self, mount: MountIds) -> io::Result<EndSwitch> {
        let name = format!("{}/abort", mount.minor);
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let switch = openat(&self.0, name.as_str(), flags, Mode::empty())?;
        Ok(EndSwitch(switch.into()))
    }
}

/// What ends one file system.
#[derive(Debug)]
pub struct EndSwitch(File);

impl EndSwitch {
    /// Ends it: every request, waiting or to come, fails. What has ended already stays so.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn throw(&self) -> io::Result<()> {
        // Whatever is written, it is the same.
        (&self.0).write_all(b"1")
    }
}
