//! A gate before containerd's blobs: opening one waits until this process has seen it (fanotify).
//!
//! containerd opens the blob of a layer before it creates the layer's first file, so that is when the
//! layer's place is decided. The kernel opens the gate when this process ends, for whatever reason.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use blocks::Digest;
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::fanotify::{
    EventFFlags, Fanotify, FanotifyEvent, FanotifyResponse, InitFlags, MarkFlags, MaskFlags,
    Response,
};
use parking_lot::Mutex;

use host::interrupt::Interrupt;

/// The gate; open to everybody once [`guard`](Self::guard) has returned.
#[derive(Debug)]
pub(super) struct Gate(Mutex<Option<Arc<Fanotify>>>);

/// Opens a gate for good when it goes.
struct Opened<'a>(&'a Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = None;
    }
}

impl Gate {
    /// Returns a gate without directories.
    ///
    /// # Errors
    /// If the kernel does not support it: without `CONFIG_FANOTIFY_ACCESS_PERMISSIONS`, or within a user
    /// namespace.
    pub(super) fn new() -> nix::Result<Self> {
        let group = Fanotify::init(
            InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK,
            EventFFlags::O_RDONLY | EventFFlags::O_LARGEFILE | EventFFlags::O_CLOEXEC,
        )?;
        Ok(Self(Mutex::new(Some(Arc::new(group)))))
    }

    /// Closes the gate before the files of a directory.
    ///
    /// # Errors
    /// If there is no such directory, or the gate has no guard.
    pub(super) fn close(&self, dir: &Path) -> nix::Result<()> {
        self.mark(MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_ONLYDIR, dir)
    }

    /// Opens it. Nothing happens if it is open.
    pub(super) fn open(&self, dir: &Path) {
        if let Err(error) = self.mark(MarkFlags::FAN_MARK_REMOVE, dir) {
            log::debug!("no gate before {}: {error}", dir.display());
        }
    }

    fn mark(&self, what: MarkFlags, dir: &Path) -> nix::Result<()> {
        let group = self.0.lock().clone().ok_or(Errno::EBADF)?;
        let opens = MaskFlags::FAN_OPEN_PERM | MaskFlags::FAN_EVENT_ON_CHILD;
        group.mark(what, opens, AT_FDCWD, Some(dir))
    }

    /// Passes each blob that is being opened to `see`, and then permits the open, until the
    /// interrupt. `see` must not open a file behind the gate.
    pub(super) fn guard(&self, interrupt: &Interrupt, mut see: impl FnMut(Digest, &File)) {
        let _opened = Opened(self);
        let Some(group) = self.0.lock().clone() else {
            return;
        };
        while !interrupt.asked() {
            let mut waits = [
                PollFd::new(group.as_fd(), PollFlags::POLLIN),
                PollFd::new(interrupt.fd(), PollFlags::POLLIN),
            ];
            // Ended early by a signal, which is asked for next.
            let _events = poll(&mut waits, PollTimeout::NONE);
            match group.read_events() {
                Ok(events) => events
                    .iter()
                    .for_each(|event| answer(&group, event, &mut see)),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => {
                    log::warn!("predicting layers from the manifest from now on: {error}");
                    return;
                }
            }
        }
    }
}

fn answer(group: &Fanotify, event: &FanotifyEvent, see: &mut impl FnMut(Digest, &File)) {
    let Some(fd) = event.fd() else {
        return; // Too many at once: the kernel has let them through.
    };
    if let Ok(file) = fd.try_clone_to_owned().map(File::from)
        && let Some(blob) = name_of(&file)
    {
        see(blob, &file);
    }
    let allowed = FanotifyResponse::new(fd, Response::FAN_ALLOW);
    if let Err(error) = group.write_response(allowed) {
        log::warn!("cannot allow the opening of a blob: {error}");
    }
}

/// Returns the digest that is the name of an open blob.
fn name_of(file: &File) -> Option<Digest> {
    use std::os::fd::AsRawFd as _;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    format!("sha256:{}", path.file_name()?.to_str()?)
        .parse()
        .ok()
}
