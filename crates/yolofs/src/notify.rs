//! Notifications to the kernel, which are not responses.
//!
//! fuser can send them too, but it ignores "no such inode"; a push must
//! know. A message is a header, a structure and data, written at once (`linux/fuse.h`).

#![expect(
    clippy::host_endian_bytes,
    reason = "the protocol speaks the byte order of the machine"
)]

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use blocks::FileId;
use nix::errno::Errno;
use parking_lot::Mutex;

use crate::fs::node_id;

/// `FUSE_NOTIFY_INVAL_INODE`: forget attributes and pages of a file.
const INVAL_INODE: u32 = 2;
/// `FUSE_NOTIFY_RESEND`: send again what was read and not answered.
const RESEND: u32 = 7;
/// `FUSE_NOTIFY_STORE`: put these bytes into the page cache of a file.
const STORE: u32 = 4;
/// `struct fuse_out_header`.
const HEADER_LEN: usize = 16;

/// Whether the kernel knew the file that a message was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeInKernel {
    /// It did what was requested.
    Known,
    /// It has no such inode, so there was nothing to do.
    Unknown,
}

/// The kernel's end of a mount, for messages.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// Absent once the session is over: an open device would keep a dead mount waiting for us.
    device: Mutex<Option<Arc<OwnedFd>>>,
}

impl Notifier {
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self {
            device: Mutex::new(Some(Arc::new(device))),
        }
    }

    /// Sends nothing any more: every later message fails with `ENOTCONN`.
    pub(crate) fn close(&self) {
        *self.device.lock() = None;
    }

    /// Puts bytes into the page cache of a file.
    ///
    /// A page becomes valid only if it is stored as a whole, or up to the end of the file; bytes
    /// past the end would make the kernel assume that the file is longer. Must not be called
    /// from a thread that serves requests: the kernel waits here for pages that are being read,
    /// and their reads wait for that thread.
    pub(crate) fn store(
        &self,
        file: FileId,
        offset: u64,
        data: &[u8],
    ) -> io::Result<InodeInKernel> {
        let len = u32::try_from(data.len()).map_err(io::Error::other)?;
        let mut body = [0; 24]; // struct fuse_notify_store_out
        body[..8].copy_from_slice(&node_id(file).to_ne_bytes());
        body[8..16].copy_from_slice(&offset.to_ne_bytes());
        body[16..20].copy_from_slice(&len.to_ne_bytes());
        self.send(STORE, &body, data)
    }

    /// Makes the kernel forget the attributes and pages of a file. The same warning holds as for
    /// [`Notifier::store`].
    pub(crate) fn invalidate(&self, file: FileId) -> io::Result<InodeInKernel> {
        let mut body = [0; 24]; // struct fuse_notify_inval_inode_out; offset 0, length 0: all
        body[..8].copy_from_slice(&node_id(file).to_ne_bytes());
        self.send(INVAL_INODE, &body, &[])
    }

    /// Makes the kernel send again every request that was read from the device and not answered.
    /// Linux before 6.9 does not support it.
    pub(crate) fn resend(&self) -> io::Result<()> {
        self.send(RESEND, &[], &[]).map(drop)
    }

    fn send(&self, code: u32, body: &[u8], data: &[u8]) -> io::Result<InodeInKernel> {
        let len = HEADER_LEN + body.len() + data.len();
        let mut header = [0; HEADER_LEN]; // unique is 0: no request is answered
        header[..4].copy_from_slice(&u32::try_from(len).map_err(io::Error::other)?.to_ne_bytes());
        header[4..8].copy_from_slice(&code.to_ne_bytes());
        let parts = [
            IoSlice::new(&header),
            IoSlice::new(body),
            IoSlice::new(data),
        ];
        // An empty part at the end is one too many for the kernel.
        let filled = parts.iter().take_while(|part| !part.is_empty()).count();
        let parts = &parts[..filled];
        let device = self.device.lock().clone().ok_or(Errno::ENOTCONN)?;
        match nix::sys::uio::writev(&device, parts) {
            Ok(_) => Ok(InodeInKernel::Known),
            Err(Errno::ENOENT) => Ok(InodeInKernel::Unknown),
            Err(errno) => Err(errno.into()),
        }
    }
}
