//! The handshake (FUSE_INIT) on a FUSE device: features of the kernel, and those that we use.
//!
//! The kernel sends one INIT request and accepts one response to it, ever. Later servers receive the
//! request as if it were new, but with no more capabilities in it than the first server requested;
//! if their response would change how the kernel behaves, they cannot serve.

#![expect(
    clippy::host_endian_bytes,
    reason = "the protocol speaks the byte order of the machine"
)]

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long the kernel may take to send its first request, which it does by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// The kernel refuses to write a request to less.
const READ_LEN: usize = 64 << 10;

/// The longest request or answer that is kept. Today they have 104 and 80 bytes.
const LONGEST: usize = 4096;

/// `FUSE_INIT`.
const INIT: u32 = 26;
/// `FUSE_INIT_EXT`: the second word of abilities means something.
const INIT_EXT: u32 = 1 << 30;

/// `FUSE_HAS_RESEND`, in the second word of abilities: Linux 6.9.
const HAS_RESEND: u32 = 1 << 7;

/// Where things are in a request: `struct fuse_in_header` and `struct fuse_init_in`.
mod request {
    pub(super) const OPCODE: usize = 4;
    pub(super) const MINOR: usize = 44;
    pub(super) const ABILITIES: usize = 52;
    pub(super) const MORE_ABILITIES: usize = 56;
    /// Enough for both words of abilities, which kernels have had since 5.17.
    pub(super) const LEAST: usize = 60;
}

/// Where things are in an answer: `struct fuse_out_header` and `struct fuse_init_out`.
mod answer {
    pub(super) const ERROR: usize = 4;
    pub(super) const MAJOR: usize = 16;
    pub(super) const ABILITIES: usize = 28;
    pub(super) const MORE_ABILITIES: usize = 48;
    pub(super) const STACK_DEPTH: usize = 52;
    pub(super) const LEAST: usize = 56;
}

/// The kernel's first request on a device and, once a server has sent it, our response. Raw bytes,
/// so that they mean the same to another process on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    request: Vec<u8>,
    answer: Option<Vec<u8>>,
}

/// Why a handshake is invalid, or why a server cannot take it over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The bytes are not what the kernel sends first.
    #[error("this is not the kernel's first request")]
    Request,
    /// The bytes are not a response to that request.
    #[error("this is not an answer to the kernel's first request")]
    Answer,
    /// The server would not start.
    #[error("the handshake with the kernel (FUSE_INIT) ended with error {0}")]
    Refused(i32),
    /// An earlier server gave the kernel a different response.
    #[error(
        "the kernel was told {what} {told:#x} by an earlier server, and this one wants {wanted:#x}"
    )]
    Differs {
        /// The field that differs.
        what: &'static str,
        /// The parameters that the kernel uses.
        told: u64,
        /// The value of this server.
        wanted: u64,
    },
}

impl From<HelloError> for io::Error {
    fn from(error: HelloError) -> Self {
        Self::other(error)
    }
}

impl Hello {
    /// Waits for the kernel's first request on a device, and keeps it unanswered.
    pub(super) fn hear(device: BorrowedFd<'_>) -> io::Result<Self> {
        wait_readable(device, Instant::now() + PATIENCE)?;
        let mut request = vec![0; READ_LEN];
        let len = nix::unistd::read(device, &mut request)?;
        request.truncate(len);
        request.shrink_to_fit();
        #[cfg(feature = "testing")]
        if crate::testing::kernel_is_old() {
            mask(&mut request, request::MORE_ABILITIES, !HAS_RESEND);
        }
        Ok(Self::from_parts(request, None)?)
    }

    /// Returns the talk that took place elsewhere or earlier.
    ///
    /// # Errors
    /// If the bytes cannot be such a talk.
    pub fn from_parts(request: Vec<u8>, answer: Option<Vec<u8>>) -> Result<Self, HelloError> {
        let fits = |bytes: &[u8], least| {
            bytes.len() <= LONGEST
                && word(bytes, 0).is_some_and(|len| usize::try_from(len) == Ok(bytes.len()))
                && bytes.len() >= least
        };
        if !fits(&request, request::LEAST) || word(&request, request::OPCODE) != Some(INIT) {
            return Err(HelloError::Request);
        }
        match &answer {
            Some(answer) if !fits(answer, answer::LEAST) => return Err(HelloError::Answer),
            // An error has no more than a header: such an answer is not kept.
            Some(answer) if word(answer, answer::ERROR) != Some(0) => {
                return Err(HelloError::Answer);
            }
            _ => (),
        }
        Ok(Self { request, answer })
    }

    /// Returns the kernel's request.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Returns the response to the kernel, or `None` if it is not known here.
    #[must_use]
    pub fn answer(&self) -> Option<&[u8]> {
        self.answer.as_deref()
    }

    /// Returns the minor version of the kernel's protocol: the major one is 7.
    pub(crate) fn kernel_minor(&self) -> u32 {
        word(&self.request, request::MINOR).unwrap_or(0)
    }

    /// Returns whether the kernel sends requests again that a server had read and not answered, when the next
    /// server asks for that: since Linux 6.9.
    #[must_use]
    pub fn resends(&self) -> bool {
        let first = word(&self.request, request::ABILITIES).unwrap_or(0);
        let more = word(&self.request, request::MORE_ABILITIES).unwrap_or(0);
        first & INIT_EXT != 0 && more & HAS_RESEND != 0
    }

    /// Returns the request for a server: after the first response, only with the capabilities that the
    /// kernel was configured to use.
    pub(crate) fn for_server(&self) -> Vec<u8> {
        let mut shown = self.request.clone();
        if let Some(answer) = &self.answer {
            let (first, more) = abilities(answer);
            mask(&mut shown, request::ABILITIES, first);
            mask(&mut shown, request::MORE_ABILITIES, more);
        }
        shown
    }

    /// Returns the handshake with the response of a server. If there was an earlier response, it stays,
    /// and the server's must mean the same.
    pub(crate) fn answered(&self, answer: Vec<u8>) -> Result<Self, HelloError> {
        if let Some(error) = word(&answer, answer::ERROR).filter(|error| *error != 0) {
            return Err(HelloError::Refused(error.cast_signed().wrapping_neg()));
        }
        let new = Self::from_parts(self.request.clone(), Some(answer))?;
        match (&self.answer, &new.answer) {
            (Some(told), Some(wanted)) => agree(told, wanted).map(|()| self.clone()),
            _ => Ok(new),
        }
    }
}

/// Whether two answers make the kernel behave in the same way. Sizes and times may differ: a
/// server copes with any request that the kernel may send.
fn agree(told: &[u8], wanted: &[u8]) -> Result<(), HelloError> {
    let both = |bytes| {
        let (first, more) = abilities(bytes);
        u64::from(more) << 32 | u64::from(first & !INIT_EXT)
    };
    let at = |bytes, at| u64::from(word(bytes, at).unwrap_or(0));
    let pairs = [
        (
            "version",
            at(told, answer::MAJOR),
            at(wanted, answer::MAJOR),
        ),
        ("abilities", both(told), both(wanted)),
        (
            "depth",
            at(told, answer::STACK_DEPTH),
            at(wanted, answer::STACK_DEPTH),
        ),
    ];
    match pairs.into_iter().find(|(_, told, wanted)| told != wanted) {
        Some((what, told, wanted)) => Err(HelloError::Differs { what, told, wanted }),
        None => Ok(()),
    }
}

/// Both words of abilities in an answer.
fn abilities(answer: &[u8]) -> (u32, u32) {
    let first = word(answer, answer::ABILITIES).unwrap_or(0);
    let more = word(answer, answer::MORE_ABILITIES).unwrap_or(0);
    (first, if first & INIT_EXT == 0 { 0 } else { more })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn mask(bytes: &mut [u8], at: usize, by: u32) {
    if let Some(bytes) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = (u32::from_ne_bytes(*bytes) & by).to_ne_bytes();
    }
}

fn wait_readable(device: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut waits = [PollFd::new(device, PollFlags::POLLIN)];
        match poll(
            &mut waits,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        ) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => (),
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of so many bytes with some words in it; the first is its length.
    fn message(len: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let own = (0, u32::try_from(len).unwrap());
        for (at, word) in [own].iter().chain(words) {
            bytes[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn request(first: u32, more: u32) -> Vec<u8> {
        let words = [
            (request::OPCODE, INIT),
            (request::ABILITIES, first),
            (request::MORE_ABILITIES, more),
        ];
        message(104, &words)
    }

    fn answer(first: u32, more: u32) -> Vec<u8> {
        let words = [
            (answer::MAJOR, 7),
            (answer::ABILITIES, first),
            (answer::MORE_ABILITIES, more),
        ];
        message(80, &words)
    }

    #[test]
    fn a_talk_is_kept_whole() {
        let hello = Hello::from_parts(request(5, 1), Some(answer(1, 0))).unwrap();
        let again = Hello::from_parts(hello.request().to_vec(), hello.answer().map(<[u8]>::to_vec));
        assert_eq!(again.as_ref(), Ok(&hello));
    }

    #[test]
    fn what_is_no_talk_is_refused() {
        let short = message(40, &[(request::OPCODE, INIT)]);
        let other = message(104, &[(request::OPCODE, 1)]);
        let mut cut = request(1, 0);
        cut.pop();
        let long = message(LONGEST + 1, &[(request::OPCODE, INIT)]);
        for bytes in [Vec::new(), vec![1], short, other, cut, long] {
            assert_eq!(Hello::from_parts(bytes, None), Err(HelloError::Request));
        }
        let failed = message(80, &[(answer::ERROR, 5)]);
        for bytes in [Vec::new(), message(16, &[]), failed] {
            let hello = Hello::from_parts(request(1, 0), Some(bytes));
            assert_eq!(hello, Err(HelloError::Answer));
        }
    }

    #[test]
    fn the_first_server_sees_the_request_as_it_is() {
        let hello = Hello::from_parts(request(INIT_EXT | 7, 3), None).unwrap();
        assert_eq!(hello.for_server(), request(INIT_EXT | 7, 3));
        let hello = hello.answered(answer(INIT_EXT | 5, 1)).unwrap();
        assert_eq!(hello.answer(), Some(&answer(INIT_EXT | 5, 1)[..]));
    }

    #[test]
    fn later_servers_are_offered_what_the_first_one_took() {
        let told = answer(INIT_EXT | 5, 1);
        let hello = Hello::from_parts(request(INIT_EXT | 7, 3), Some(told.clone())).unwrap();
        assert_eq!(hello.for_server(), request(INIT_EXT | 5, 1));
        // Sizes do not matter, and the first answer stays.
        let mut other = told;
        other[24] = 1;
        assert_eq!(hello.answered(other).unwrap(), hello);
        let less = hello.answered(answer(INIT_EXT | 4, 1)).unwrap_err();
        assert!(matches!(
            less,
            HelloError::Differs {
                what: "abilities",
                ..
            }
        ));
        assert!(hello.answered(answer(INIT_EXT | 5, 0)).is_err());
    }

    #[test]
    fn a_server_that_would_not_start_has_not_answered() {
        let hello = Hello::from_parts(request(1, 0), None).unwrap();
        let refused = message(16, &[(answer::ERROR, (-71_i32).cast_unsigned())]);
        assert_eq!(hello.answered(refused), Err(HelloError::Refused(71)));
        assert_eq!(hello.answered(Vec::new()), Err(HelloError::Answer));
    }

    #[test]
    fn the_version_of_the_kernel_is_in_its_request() {
        let mut bytes = request(1, 0);
        bytes[request::MINOR..][..4].copy_from_slice(&45_u32.to_ne_bytes());
        let hello = Hello::from_parts(bytes, None).unwrap();
        assert_eq!(hello.kernel_minor(), 45);
    }

    #[test]
    fn an_old_kernel_does_not_resend() {
        let resends = |first, more| {
            let hello = Hello::from_parts(request(first, more), None).unwrap();
            hello.resends()
        };
        assert!(resends(INIT_EXT, HAS_RESEND | 1));
        assert!(!resends(INIT_EXT, !HAS_RESEND));
        assert!(!resends(0, HAS_RESEND));
    }

    #[test]
    fn a_device_that_says_nothing_is_given_up() {
        let (device, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let late = wait_readable(std::os::fd::AsFd::as_fd(&device), Instant::now());
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
