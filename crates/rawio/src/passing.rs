//! Descriptors that travel over a unix socket, beside bytes.

#![expect(
    unsafe_code,
    reason = "a descriptor that arrives is a plain number until somebody owns it"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// The most descriptors that the kernel lets travel in one message (`SCM_MAX_FD`).
const MOST: usize = 253;

/// Sends bytes, with descriptors beside the first of them, and returns how many bytes the socket
/// took. The descriptors are on their way if it took any.
///
/// # Errors
/// As `sendmsg(2)`; a peer that is gone is `EPIPE`, not a signal.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let beside: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    let flags = MsgFlags::MSG_NOSIGNAL;
    Ok(sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        beside,
        flags,
        None,
    )?)
}

/// Receives bytes, and whatever descriptors came beside them; they are closed on exec. No bytes
/// mean that the other side has ended.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut parts = [IoSliceMut::new(buffer)];
    // Room for the most there can be: nothing is cut off, which would leave descriptors open
    // that nobody knows.
    let mut beside = nix::cmsg_space!([RawFd; MOST]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut beside), flags)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            // SAFETY: the kernel has just made these descriptors for this process, and the only
            // one who knows their numbers is this loop.
            descriptors.extend(
                numbers
                    .into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    Ok((message.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

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
