//! The kernel's end of a file system, before anybody serves it.
//!
//! Who makes a mount and who serves it need not be the same process, and the second may change:
//! as long as somebody holds the device, requests wait, and a new server goes on where the last
//! one ended. The first talk on a device ([`Hello`]) takes place once, so it is kept: each server
//! is told what the kernel asked then, and must give the answer that the kernel was given.

mod hello;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::unistd::{getegid, geteuid};
use rawio::mount::{DetachedMount, MountContext};

pub use hello::{Hello, HelloError};

use crate::mount::MountError;

/// A FUSE device with a file system behind it, and the handshake (FUSE_INIT) on it.
#[derive(Debug)]
pub struct Connection {
    device: OwnedFd,
    hello: Hello,
}

impl Connection {
    /// Creates a file system that nobody serves yet. `label` is what the mount table will show as
    /// its source.
    ///
    /// The kernel's first request is read, and not answered: until
    /// [`Serving::start`](crate::Serving::start) does that, everybody who asks the file system for
    /// anything waits. When the mount and all its copies are gone, so is the file system.
    ///
    /// # Errors
    /// If the process may not mount, or the kernel does not speak.
    pub fn open(label: &str) -> Result<(Self, DetachedMount), MountError> {
        let device = open_device().map_err(MountError::Device)?;
        let detached = create(&device, label)?;
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

    /// Notes what a server has answered: later ones must agree with it.
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
fn create(device: &OwnedFd, label: &str) -> Result<DetachedMount, MountError> {
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
        // The whole file system, not only this mount: then reading changes no access times, which
        // would make the kernel ask for attributes again.
        context.set_flag(c"ro")?;
        context.mount()
    };
    make().map_err(MountError::step("mounting"))
}
