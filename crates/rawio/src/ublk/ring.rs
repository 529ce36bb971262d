//! The ring of a queue, which is made before its process is confined.

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

/// A ring that takes the commands of devices and polls, and nothing else: no filter of system calls sees what a ring
/// does, so a process that may use this one, and make no other, gains no call by it.
pub struct QueueRing {
    pub(super) ring: IoUring,
    pub(super) depth: u16,
}

impl std::fmt::Debug for QueueRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueRing")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

impl QueueRing {
    /// Makes one for a queue of up to so many requests. A queue uses it in any thread.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(depth: u16) -> io::Result<Self> {
        // A request has an entry each, and the wake-up one.
        let entries = u32::from(depth) + 1;
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_r_disabled()
            .build(entries.next_power_of_two())?;
        let mut allowed = [
            Restriction::sqe_op(opcode::UringCmd16::CODE),
            Restriction::sqe_op(opcode::PollAdd::CODE),
        ];
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        Ok(Self { ring, depth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::squeue::Entry;
    use io_uring::types::Fd;

    /// Has a ring do something, and returns what came of it.
    fn done(ring: &mut QueueRing, entry: &Entry) -> i32 {
        let mut queue = ring.ring.submission();
        #[expect(unsafe_code, reason = "as the queue's own entries")]
        // SAFETY: no entry of these tests has an address of memory in it but that of a string that lives for ever.
        unsafe {
            queue.push(entry).unwrap();
        }
        drop(queue);
        ring.ring.submit_and_wait(1).unwrap();
        ring.ring.completion().next().unwrap().result()
    }

    #[test]
    fn it_takes_polls_and_commands_and_nothing_else() {
        let mut ring = QueueRing::new(4).unwrap();
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        for (name, entry) in [
            ("nothing", opcode::Nop::new().build()),
            ("a socket", socket),
            ("a file", open),
        ] {
            assert_eq!(done(&mut ring, &entry), -libc::EACCES, "{name}");
        }
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let one = Fd(std::os::fd::AsRawFd::as_raw_fd(&one));
        let writable = libc::POLLOUT.cast_unsigned().into();
        let polled = done(&mut ring, &opcode::PollAdd::new(one, writable).build());
        assert!(polled & i32::from(libc::POLLOUT) != 0, "{polled}");
        // It gets as far as to the file, which knows no such command.
        let command = done(&mut ring, &opcode::UringCmd16::new(one, 0x1234).build());
        assert!(command < 0 && command != -libc::EACCES, "{command}");
        let again = ring.ring.submitter().register_enable_rings();
        again.unwrap_err();
        let files = ring.ring.submitter().register_files(&[0]);
        assert_eq!(files.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
