//! Messages between our own processes, with descriptors beside them: a header (protocol, length), JSON, and
//! beside the header of some the descriptors. Both sides give up when a deadline passes.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of this conversation; raised with every change that an older side would not
/// understand.
pub const PROTOCOL: u32 = 1;

/// The longest JSON, in bytes: a mount takes some 2 KiB in a status, and a worker has 64 of them.
pub const MESSAGE_MAX: usize = 8 << 20;

/// The most descriptors that go with a message: those of a mount are four. One that brings more
/// would have this process open whatever the other side likes.
pub const DESCRIPTORS_MAX: usize = 8;

/// The header of a message: the protocol and the length of the JSON, 32 bits each, the lowest
/// byte first.
pub const HEADER: usize = 8;

/// How much is sent at a time: the system waits as long as it may for each part that a socket takes.
const PIECE: usize = 64 << 10;

/// Sends one message, within `deadline`.
///
/// # Errors
/// If the other side has closed the connection, or does not accept it in time.
pub fn send<T: Serialize>(
    stream: &UnixStream,
    message: &T,
    beside: &[BorrowedFd<'_>],
    deadline: Instant,
) -> anyhow::Result<()> {
    let json = serde_json::to_vec(message).context("writing JSON")?;
    let length = u32::try_from(json.len()).context("the message is too long")?;
    let mut bytes = PROTOCOL.to_le_bytes().to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.extend(json);
    let (mut sent, mut beside) = (0, beside);
    while sent < bytes.len() {
        stream
            .set_write_timeout(Some(left(deadline)?))
            .context("setting a deadline")?;
        let piece = &bytes[sent..bytes.len().min(sent + PIECE)];
        match rawio::passing::send(stream.as_fd(), piece, beside) {
            Ok(len) => sent += len,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error).context("sending"),
        }
        beside = &[];
    }
    Ok(())
}

/// Waits for a message of the other side, without a deadline; returns `false` if there will be no more.
///
/// # Errors
/// If the system refuses.
pub fn is_there(stream: &UnixStream) -> anyhow::Result<bool> {
    loop {
        let mut wait = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wait, PollTimeout::NONE) {
            Ok(_) => {
                let events = wait[0].revents().unwrap_or(PollFlags::empty());
                return Ok(!events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("waiting for the other side"),
        }
    }
}

/// Receives one message, and the descriptors that came beside it, within `deadline`.
///
/// # Errors
/// If the other side closes the connection, takes too long, or does not use this protocol.
pub fn receive<T: DeserializeOwned>(
    stream: &UnixStream,
    deadline: Instant,
) -> anyhow::Result<(T, Vec<OwnedFd>)> {
    let mut descriptors = Vec::new();
    let mut header = [0; HEADER];
    fill(stream, &mut header, &mut descriptors, deadline)?;
    let number = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u32::from_le_bytes(bytes)
    };
    let (protocol, length) = (number(0), number(4));
    if protocol != PROTOCOL {
        bail!("the other side speaks protocol version {protocol}, this program version {PROTOCOL}");
    }
    let length = usize::try_from(length).context("the length of the message")?;
    if length > MESSAGE_MAX {
        bail!("a message of {length} bytes exceeds the limit");
    }
    let mut json = vec![0; length];
    fill(stream, &mut json, &mut descriptors, deadline)?;
    let message = serde_json::from_slice(&json).context("decoding the message")?;
    Ok((message, descriptors))
}

/// Fills the buffer whole.
fn fill(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    deadline: Instant,
) -> anyhow::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        stream
            .set_read_timeout(Some(left(deadline)?))
            .context("setting a deadline")?;
        match rawio::passing::receive(stream.as_fd(), &mut buffer[filled..]) {
            Ok((0, _none)) => bail!("the other side ended in the middle of a message"),
            Ok((len, files)) => {
                filled += len;
                descriptors.extend(files);
                if descriptors.len() > DESCRIPTORS_MAX {
                    bail!("received more descriptors than a message may have");
                }
            }
            // What is left of the time, which may be nothing, says how it goes on.
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error).context("receiving"),
        }
    }
    Ok(())
}

/// Whether a call ended early or its time was over.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}

fn left(deadline: Instant) -> anyhow::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        bail!("no response in time");
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_message_that_is_taken_byte_by_byte_has_one_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            // Ends when nobody writes any more.
            while theirs.read(&mut [0; 4 << 10]).is_ok_and(|read| read > 0) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let message = "x".repeat(64 << 20);
        let deadline = Instant::now() + Duration::from_millis(50);
        send(&ours, &message, &[], deadline).unwrap_err();
        drop(ours);
        reader.join().unwrap();
    }
}
