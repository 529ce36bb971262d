//! The requests of one queue of a device.

#![expect(
    unsafe_code,
    reason = "commands of a ring and mappings of devices are not checked by the compiler"
)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use memmap2::{Mmap, MmapOptions};

use super::abi::{REQUEST_BYTES, long, requests_position, word};
use super::ring::QueueRing;

/// `_IOWR('u', nr, struct ublksrv_io_cmd)`.
const fn command(number: u32) -> u32 {
    3 << 30 | 16 << 16 | (b'u' as u32) << 8 | number
}

const FETCH: u32 = command(0x20);
const COMMIT_AND_FETCH: u32 = command(0x21);

/// What tells the wake-up from requests, whose numbers have 16 bits.
const WOKEN: u64 = u64::MAX;

const FUA: u32 = 1 << 13;
const NO_UNMAP: u32 = 1 << 15;

/// A queue of a device, in the one thread that may use it.
pub struct Queue {
    device: Arc<File>,
    ring: IoUring,
    /// What the kernel writes: a descriptor for each request.
    requests: Mmap,
    id: u16,
    depth: u16,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("id", &self.id)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request with this tag is there, and is to be [committed](Queue::commit).
    Requested(u16),
    /// There will be no requests with this tag any more. With an error number other than that of a device that is
    /// over (`ENODEV`), the kernel refused what this process sent.
    Over(u16, i32),
    /// What is [watched](Queue::watch) can be read.
    Woken,
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bytes.
    Read,
    /// To take bytes.
    Write {
        /// Whether it is to be durable when it is answered.
        durable: bool,
    },
    /// To make durable what was answered before.
    Flush,
    /// To forget a range.
    Discard,
    /// To make a range zeros.
    Zero {
        /// Whether its space has to stay reserved.
        keep: bool,
        /// Whether it is to be durable when it is answered.
        durable: bool,
    },
    /// What this does not know.
    Unknown(u8),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is requested.
    pub operation: Operation,
    /// Where, in bytes.
    pub offset: u64,
    /// Of how many bytes.
    pub len: u64,
}

impl Queue {
    /// Opens a queue of a device, with a ring for as many requests. Requests are fetched from then on by this thread: with all queues open, the device
    /// can be started.
    ///
    /// # Errors
    /// If the ring is too small, or the kernel refuses.
    pub fn open(device: Arc<File>, id: u16, depth: u16, made: QueueRing) -> io::Result<Self> {
        if made.depth < depth {
            return Err(io::Error::other(format!(
                "a queue of {depth} requests, and a ring for {}",
                made.depth
            )));
        }
        let ring = made.ring;
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
        let page = page.and_then(|page| usize::try_from(page).ok());
        let len = (usize::from(depth) * REQUEST_BYTES).next_multiple_of(page.unwrap_or(4096));
        // SAFETY: a mapping is unsafe because the bytes behind a reference to it may change. Nothing here makes a
        // reference to them: they are only copied out.
        let requests = unsafe {
            MmapOptions::new()
                .offset(requests_position(id))
                .len(len)
                .map(device.as_raw_fd())?
        };
        let mut queue = Self {
            device,
            ring,
            requests,
            id,
            depth,
        };
        for tag in 0..depth {
            queue.send(FETCH, tag, 0)?;
        }
        queue.ring.submit()?;
        Ok(queue)
    }

    /// Has [`Event::Woken`] happen, once, when this can be read.
    ///
    /// # Errors
    /// If it is watched already.
    pub fn watch(&mut self, what: BorrowedFd<'_>) -> io::Result<()> {
        let interest = libc::POLLIN.cast_unsigned().into();
        let entry = opcode::PollAdd::new(Fd(what.as_raw_fd()), interest);
        self.push(&entry.build().user_data(WOKEN))
    }

    /// Answers a request: with the number of bytes, or with a negative error number.
    ///
    /// # Errors
    /// If there is none with this tag.
    pub fn commit(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.send(COMMIT_AND_FETCH, tag, result)
    }

    /// Sends all answers, waits until something happens, and adds it to `events`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        for done in self.ring.completion() {
            events.push(match (u16::try_from(done.user_data()), done.result()) {
                (Ok(tag), 0) => Event::Requested(tag),
                (Ok(tag), error) => Event::Over(tag, error),
                (Err(_), _) => Event::Woken,
            });
        }
        Ok(())
    }

    /// Returns the request with a tag that [was requested](Event::Requested).
    #[must_use]
    pub fn request(&self, tag: u16) -> Request {
        let mut bytes = [0; REQUEST_BYTES];
        let at = usize::from(tag) * REQUEST_BYTES;
        assert!(tag < self.depth, "a request with a tag beyond the queue");
        // SAFETY: the mapping has a descriptor for each tag of the queue. The kernel wrote it before it said so, and
        // whether it changes it now decides what is copied and nothing else: no reference to it exists.
        unsafe {
            let from = self.requests.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), REQUEST_BYTES);
        }
        Request::from_bytes(&bytes)
    }

    fn send(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        // `struct ublksrv_io_cmd`: queue, tag, result; its address stays 0, as it must with user copy.
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&result.to_ne_bytes());
        let entry = opcode::UringCmd16::new(Fd(self.device.as_raw_fd()), command);
        self.push(&entry.cmd(bytes).build().user_data(tag.into()))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: neither the commands of ublk with user copy nor a poll have an address of memory in them. The
        // descriptors may be closed meanwhile: then the kernel refuses the entry.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(io::Error::other)
    }
}

impl Request {
    fn from_bytes(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let flags = word(bytes, 0);
        let durable = flags & FUA != 0;
        let operation = match bytes[0] {
            0 => Operation::Read,
            1 => Operation::Write { durable },
            2 => Operation::Flush,
            3 => Operation::Discard,
            5 => Operation::Zero {
                keep: flags & NO_UNMAP != 0,
                durable,
            },
            other => Operation::Unknown(other),
        };
        Self {
            operation,
            offset: long(bytes, 8) << 9,
            len: u64::from(word(bytes, 4)) << 9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_read_as_the_kernel_writes_them() {
        let request = |flags: u32, sectors: u32, start: u64| {
            let mut bytes = [0; REQUEST_BYTES];
            bytes[0..4].copy_from_slice(&flags.to_ne_bytes());
            bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
            bytes[8..16].copy_from_slice(&start.to_ne_bytes());
            Request::from_bytes(&bytes)
        };
        let read = request(0, 8, 100);
        assert_eq!(
            (read.operation, read.offset, read.len),
            (Operation::Read, 51_200, 4096)
        );
        assert_eq!(
            request(1 | FUA, 1, 0).operation,
            Operation::Write { durable: true }
        );
        assert_eq!(
            request(1 | 1 << 8, 1, 0).operation,
            Operation::Write { durable: false }
        );
        assert_eq!(request(2, 0, 0).operation, Operation::Flush);
        let keep = request(5 | NO_UNMAP, 1, 0).operation;
        assert_eq!(
            keep,
            Operation::Zero {
                keep: true,
                durable: false
            }
        );
        assert_eq!(request(3, 1, 0).operation, Operation::Discard);
        assert_eq!(request(18, 1, 0).operation, Operation::Unknown(18));
        let last = request(0, u32::MAX, u64::MAX >> 9);
        assert_eq!(last.offset, u64::MAX >> 9 << 9);
    }
}
