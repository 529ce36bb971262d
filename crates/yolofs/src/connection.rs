//! The kernel's end of a file system, before it is served.
//!
//! The process that makes a mount and the one that serves it may differ, and the second may change:
//! as long as a process holds the device, requests wait, and a new server continues where the last
//! one ended. The handshake on a device ([`Hello`]) takes place once, so it is stored: each server
//! receives the kernel's request of it, and must give the same response as the first.

mod hello;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::unistd::{getegid, geteuid};
use rawio::mount::{DetachedMount, MountContext};

pub use hello::{Hello, HelloError};

use crate::mount::MountError;

/// Whether files of a mount may be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// The kernel refuses all that changes something.
    #[default]
    Refused,
    /// The content of files may be changed.
    Allowed,
}

/// A FUSE device with a file system behind it, and the handshake (FUSE_INIT) on it.
#[derive(Debug)]
pub struct Connection {
    device: OwnedFd,
    hello: Hello,
}

impl Connection {
    /// Creates a file system that is not served yet. `label` is its source in the mount
    /// table.
    ///
    /// The kernel's first request is read, and not answered: until
    /// [`Serving::start`](crate::Serving::start) does that, all requests to the file system wait. When the
    /// mount and all its copies are gone, so is the file system.
    ///
    /// # Errors
    /// If the process may not mount, or the kernel sends no request.
    pub fn open(label: &str) -> Result<(Self, DetachedMount), MountError> {
        Self::open_for(label, Writes::Refused)
    }

    /// Creates a file system like [`open`](Self::open), of whose files the content may be changed or not.
    ///
    /// # Errors
    /// As there.
    pub fn open_for(label: &str, writes: Writes) -> Result<(Self, DetachedMount), MountError> {
        let device = open_device().map_err(MountError::Device)?;
        let detached = create(&device, label, writes)?;
        let hello = Hello::hear(device.as_fd()).map_err(MountError::step("hearing the kernel"))?;
        Ok((Self { device, hello }, detached))
    }

    /// Returns the connection that was made elsewhere or earlier.
    #[must_use]
    pub const fn from_parts(device: OwnedFd, hello: Hello) -> Self {
        Self { device, hello }
    }

    /// Returns the device and the handshake.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Hello) {
        (self.device, self.hello)
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns the handshake, as far as it has come.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Records the response of a server: later ones must agree with it.
    pub fn set_hello(&mut self, hello: Hello) {
        self.hello = hello;
    }

    /// Returns a second owner of the same device.
    ///
    /// # Errors
    /// If no more files may be open.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            device: self.device.try_clone()?,
            hello: self.hello.clone(),
        })
    }
}

fn open_device() -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    Ok(options.read(true).write(true).open("/dev/fuse")?.into())
}

/// Creates the file system that the kernel asks `device` about.
fn create(device: &OwnedFd, label: &str, writes: Writes) -> Result<DetachedMount, MountError> {
    let number = |n: u32| n.to_string().into_bytes();
    let fd = device.as_raw_fd().to_string();
    let make = || {
        let context = MountContext::open(c"fuse")?;
        context.set(c"source", label.as_bytes())?;
        context.set(c"subtype", b"yolofs")?;
        context.set(c"fd", fd.as_bytes())?;
        // A directory, in octal; the attributes of the root come from the file system.
        context.set(c"rootmode", b"40000")?;
        context.set(c"user_id", &number(geteuid().as_raw()))?;
        context.set(c"group_id", &number(getegid().as_raw()))?;
        // The kernel checks permissions against the attributes; everybody may come that far.
        context.set_flag(c"default_permissions")?;
        context.set_flag(c"allow_other")?;
        if writes == Writes::Allowed {
            return context.mount_unprivileged();
        }
        // The whole file system, not only this mount: then reading changes no access times, which
        // would make the kernel ask for attributes again.
        context.set_flag(c"ro")?;
        context.mount()
    };
    make().map_err(MountError::step("mounting"))
}
