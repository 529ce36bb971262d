//! Descriptors that are sent over unix sockets with bytes, and the sender of a message.

#![expect(
    unsafe_code,
    reason = "nix loses descriptors when the kernel cuts a message short"
)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The most descriptors that the kernel lets one message carry (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

/// The sender of a message, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its process, as this process's PID namespace names it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// A message that came in.
#[derive(Debug)]
pub struct Received {
    /// How many bytes of the buffer it filled.
    pub len: usize,
    /// The received descriptors; each is closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// The sender, on a socket with `SO_PASSCRED`.
    pub sender: Option<Sender>,
    /// Bytes or descriptors did not fit, or this process has too many open.
    pub truncated: bool,
}

/// Room for the control part of a message: credentials and as many descriptors as there can be.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; CONTROL_BYTES]);

#[expect(clippy::cast_possible_truncation, reason = "two small constants")]
// SAFETY: both only compute with their argument.
const CONTROL_BYTES: usize = unsafe {
    libc::CMSG_SPACE((MAX_DESCRIPTORS * size_of::<RawFd>()) as u32) as usize
        + libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) as usize
};

impl Control {
    const fn new() -> Self {
        Self([MaybeUninit::zeroed(); CONTROL_BYTES])
    }
}

/// Sends bytes, with descriptors attached to the first of them, and returns how many bytes the socket
/// accepted. The descriptors are sent if it accepted any.
///
/// # Errors
/// As `sendmsg(2)`; a closed peer is `EPIPE`, not a signal. More than [`MAX_DESCRIPTORS`]
/// are refused.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control = Control::new();
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut header = header(&mut iov, &mut control);
    if descriptors.is_empty() {
        header.msg_controllen = 0;
    } else {
        let payload = u32::try_from(size_of::<RawFd>() * descriptors.len()).map_err(invalid)?;
        // SAFETY: the control buffer is aligned, zeroed, and has room for MAX_DESCRIPTORS; the
        // header points to it, so that the first control header is inside it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(payload) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (place, descriptor) in descriptors.iter().enumerate() {
                data.add(place).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_NOSIGNAL;
    // SAFETY: the header names a buffer of bytes and one of control data, both with their true
    // lengths; the kernel only reads them, and keeps no pointer.
    retried(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
}

/// Receives bytes, and whatever descriptors came beside them; they are closed on exec. No bytes
/// mean that the other side has ended.
///
/// # Errors
/// As `recvmsg(2)`; `ENOBUFS` if this process may not open as many descriptors as came.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let received = receive_message(socket, buffer)?;
    match received.truncated {
        true => Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
        false => Ok((received.len, received.descriptors)),
    }
}

/// Receives one message into `buffer`, with its descriptors and sender.
///
/// # Errors
/// As `recvmsg(2)`; truncation is no error.
pub fn receive_message(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control::new();
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut header = header(&mut iov, &mut control);
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names two writable buffers with their true lengths, and the kernel keeps
    // no pointer.
    let len = retried(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    let mut received = Received {
        len,
        descriptors: Vec::new(),
        sender: None,
        truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
    };
    // SAFETY: the kernel has filled the control buffer and set its length in the header; the
    // macros walk within it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    // SAFETY: as above; a pointer that is not NULL is to a whole control header.
    while let Some(message) = unsafe { next.as_ref() } {
        // SAFETY: as above; its length covers its header, which CMSG_LEN(0) is the size of.
        let (data, payload) = unsafe {
            let data = libc::CMSG_DATA(next);
            // Its type is `size_t` of one C library and `socklen_t` of another.
            let len: usize = message.cmsg_len as _;
            (data, len - libc::CMSG_LEN(0) as usize)
        };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                let rights = data.cast::<RawFd>();
                for place in 0..payload / size_of::<RawFd>() {
                    // SAFETY: the payload is descriptors that the kernel has just opened for this
                    // process, so nobody else owns them; the place is within the payload.
                    let fd = unsafe { OwnedFd::from_raw_fd(rights.add(place).read_unaligned()) };
                    received.descriptors.push(fd);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload >= size_of::<libc::ucred>() => {
                // SAFETY: the payload is a `ucred`, checked for its length.
                let who = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                received.sender = Some(Sender {
                    // Zero is a process that this namespace has no name for.
                    pid: u32::try_from(who.pid).unwrap_or(0),
                    uid: who.uid,
                });
            }
            _ => (),
        }
        // SAFETY: `next` is a control header of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    Ok(received)
}

/// The header of a message with these two buffers and no address.
fn header(iov: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: a `msghdr` of zeros is one without buffers.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    header
}

/// Calls again what a signal has interrupted.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

fn invalid(_: std::num::TryFromIntError) -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use nix::sys::socket::{setsockopt, sockopt::PassCred};

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (here, there) = UnixDatagram::pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(here.as_fd(), b"take this", &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut buffer = [0; 64];
        let mut received = receive_message(there.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..received.len], b"take this");
        assert!(!received.truncated);
        assert_eq!(received.sender, None);
        let sent = received.descriptors.pop().unwrap();
        assert!(received.descriptors.is_empty());
        std::fs::File::from(sent).write_all(b"still open").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still open");
    }

    #[test]
    fn the_kernel_says_who_sent_it() {
        let (here, there) = UnixDatagram::pair().unwrap();
        setsockopt(&there, PassCred, &true).unwrap();
        let many = vec![here.as_fd(); MAX_DESCRIPTORS];
        send(here.as_fd(), b"x", &many).unwrap();
        let received = receive_message(there.as_fd(), &mut [0; 8]).unwrap();
        let me = Sender {
            pid: std::process::id(),
            uid: nix::unistd::getuid().as_raw(),
        };
        assert_eq!(received.sender, Some(me));
        assert_eq!(received.descriptors.len(), MAX_DESCRIPTORS);
        assert!(send(here.as_fd(), b"x", &vec![here.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let (here, there) = UnixDatagram::pair().unwrap();
        send(here.as_fd(), b"more than four", &[here.as_fd()]).unwrap();
        let received = receive_message(there.as_fd(), &mut [0; 4]).unwrap();
        assert!(received.truncated);
        assert_eq!((received.len, received.descriptors.len()), (4, 1));
        there.set_nonblocking(true).unwrap();
        let empty = receive_message(there.as_fd(), &mut [0; 4]).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }
    #[test]
    fn a_file_arrives_with_the_bytes_beside_it() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        assert_eq!(send(one.as_fd(), b"look", &[file.as_fd()]).unwrap(), 4);
        assert_eq!(send(one.as_fd(), b"!", &[]).unwrap(), 1);
        let mut buffer = [0; 16];
        let (len, mut files) = receive(other.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..4], files.len()), (&b"look"[..], 1));
        assert!((4..=5).contains(&len));
        let mut arrived = std::fs::File::from(files.remove(0));
        arrived.rewind().unwrap();
        let mut text = String::new();
        arrived.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
    }

    #[test]
    fn the_end_is_no_bytes_and_a_peer_that_is_gone_no_signal() {
        let (one, other) = UnixStream::pair().unwrap();
        drop(one);
        let mut buffer = [0; 16];
        let (len, files) = receive(other.as_fd(), &mut buffer).unwrap();
        assert_eq!((len, files.len()), (0, 0));
        let error = send(other.as_fd(), b"x", &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
