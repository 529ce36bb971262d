//! The messages between the daemon and a Zygote; `docs/zygote-protocol.md` describes them.
//!
//! A Zygote runs code of packages, so its messages are hostile input: bounded, and only facts that the
//! kernel confirms are trusted.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rawio::passing;
use serde::{Deserialize, Serialize};

/// The longest message, either way.
pub(super) const MESSAGE_MAX_BYTES: usize = 128 << 10;

/// The longest text of an error that is taken from a Zygote.
const ERROR_MAX_BYTES: usize = 4096;

/// What a Zygote is started with, as its first argument.
#[derive(Debug, Serialize)]
pub(super) struct Settings<'a> {
    /// Modules of the base that it imports.
    pub(super) modules: &'a [String],
    /// The directories of its packages.
    pub(super) paths: Vec<String>,
    /// Modules that it imports afterwards, if it can.
    pub(super) learned: &'a [String],
    /// The last filter of a child, in hexadecimal digits.
    pub(super) filter: String,
}

/// A request to fork.
#[derive(Debug, Default, Serialize)]
pub(super) struct ForkRequest<'a> {
    pub(super) id: u64,
    pub(super) user: u32,
    pub(super) command: &'a [String],
    pub(super) environment: BTreeMap<&'a str, &'a str>,
    pub(super) paths: Vec<String>,
    pub(super) dir: &'a str,
    pub(super) places: Vec<&'a str>,
    pub(super) groups: usize,
    pub(super) limits: BTreeMap<&'a str, u64>,
    pub(super) tmp_bytes: u64,
    /// The child is forked in advance: what it is to run comes in a request of its own.
    pub(super) spare: bool,
    /// The child waits for its network before it runs its command.
    pub(super) waits: bool,
    /// The child is to be a Zygote, and not a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) zygote: Option<Derived<'a>>,
}

/// What a Zygote's child is that is a Zygote, too.
#[derive(Debug, Serialize)]
pub(super) struct Derived<'a> {
    /// Which of the Zygote's own users it gets: the first one, and how many.
    pub(super) users: [u32; 2],
    /// The directories of the packages that it imports besides.
    pub(super) paths: Vec<String>,
    /// Modules that it imports afterwards, if it can.
    pub(super) learned: &'a [String],
}

/// The response.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    pub(super) id: u64,
    pub(super) error: Option<String>,
    /// How long packages took to import, in milliseconds; in the first message only.
    pub(super) times: BTreeMap<String, f64>,
}

/// Our end of the socket.
#[derive(Debug)]
pub(super) struct Control(OwnedFd);

impl Control {
    /// Makes a socket. Returns our end and the Zygote's.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let kind = SockType::SeqPacket;
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, kind, None, flags)?;
        Ok((Self(ours), theirs))
    }

    /// Sends a request. A Zygote has one at a time, so there is always room.
    pub(super) fn send(
        &self,
        request: &ForkRequest<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = serde_json::to_vec(request)?;
        if bytes.len() > MESSAGE_MAX_BYTES {
            let message = format!("the request has more than {MESSAGE_MAX_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        passing::send(self.0.as_fd(), &bytes, descriptors).map(drop)
    }

    /// Waits for a response, and the descriptors with it.
    pub(super) fn receive(&self, patience: Duration) -> io::Result<(Answer, Vec<OwnedFd>)> {
        if !readable(self.0.as_fd(), patience)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut buffer = vec![0; MESSAGE_MAX_BYTES];
        let (len, descriptors) = passing::receive(self.0.as_fd(), &mut buffer)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((read_answer(&buffer[..len])?, descriptors))
    }
}

/// Reads an answer.
fn read_answer(bytes: &[u8]) -> io::Result<Answer> {
    let mut answer: Answer = serde_json::from_slice(bytes)?;
    if let Some(error) = &mut answer.error {
        let end = error.floor_char_boundary(ERROR_MAX_BYTES);
        error.truncate(end);
    }
    answer
        .times
        .retain(|_, time| time.is_finite() && *time >= 0.0);
    Ok(answer)
}

/// Waits until there is data to read, or the other side has closed the connection.
pub(super) fn readable(fd: BorrowedFd<'_>, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_and_may_be_anything() {
        assert!(read_answer(b"").is_err());
        assert!(read_answer(b"7").is_err());
        assert!(read_answer(&[0xff; 10]).is_err());
        let answer =
            read_answer(br#"{"id": 3, "times": {"a": -1, "b": 2.5}, "more": []}"#).unwrap();
        assert_eq!((answer.id, answer.times.len()), (3, 1));
        let long = format!(r#"{{"error": "{}"}}"#, "é".repeat(5000));
        let error = read_answer(long.as_bytes()).unwrap().error.unwrap();
        assert_eq!(error.len(), ERROR_MAX_BYTES);
    }

    #[test]
    fn a_zygote_that_says_nothing_or_is_gone_is_an_error() {
        let (ours, theirs) = Control::pair().unwrap();
        let error = ours.receive(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        let error = ours.receive(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
