//! The node's side: connects to the services of one mount, as often as the mount's worker asks.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, setsockopt, socket,
    socketpair, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::{CONNECT, REQUEST, RESPOND, RESPONSE, SEND, SERVICE_SHIFT};

/// A worker gets this many connections at once: two to each service for its client, which is patient after some
/// attempts.
const BURST: u32 = 16;
/// And then one in this time.
const INTERVAL: Duration = Duration::from_millis(250);

/// Responses that a worker has not read, in bytes of the kernel's: some ten. The node waits no longer than
/// [`SEND`] for one that reads none.
const UNREAD: usize = 8 << 10;

/// Connects to `services` from now on for the holder of the returned end of a pair, until that end is closed.
///
/// # Errors
/// If there is no pair or no thread to be had.
pub(crate) fn serve(services: &[&Path]) -> anyhow::Result<OwnedFd> {
    let services: Vec<_> = services.iter().map(|path| path.to_path_buf()).collect();
    let making = || format!("making connections to {services:?} for a worker");
    let (link, workers) = pair().with_context(making)?;
    let named = services.clone();
    std::thread::Builder::new()
        .name("connector".to_owned())
        .spawn(move || {
            if let Err(error) = answer_all(&link, &named) {
                log::warn!("a worker gets no more connections to its block service: {error:#}");
            }
        })
        .with_context(making)?;
    Ok(workers)
}

/// Returns both ends, the node's first.
fn pair() -> nix::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (link, workers) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    for end in [&link, &workers] {
        setsockopt(end, sockopt::SendTimeout, &time(SEND))?;
    }
    setsockopt(&link, sockopt::SndBuf, &UNREAD)?;
    setsockopt(&workers, sockopt::ReceiveTimeout, &time(RESPOND))?;
    Ok((link, workers))
}

fn time(duration: Duration) -> TimeVal {
    TimeVal::seconds(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

/// Answers requests until the worker's end is closed, which the kernel does when the worker dies.
fn answer_all(link: &OwnedFd, services: &[PathBuf]) -> anyhow::Result<()> {
    let mut rate = Rate::new(Instant::now());
    loop {
        // Without room for descriptors: the kernel drops those that a broken worker sends.
        let mut request = [0; REQUEST + 1];
        let len = match recv(link.as_raw_fd(), &mut request, MsgFlags::empty()) {
            Ok(0) | Err(Errno::ECONNRESET) => return Ok(()),
            Err(Errno::EINTR) => continue,
            other => other.context("receiving")?,
        };
        let [number @ .., _] = request;
        anyhow::ensure!(len == REQUEST, "it sent what is no request");
        // Its other requests wait in the socket, and it waits when that is full.
        std::thread::sleep(rate.pause(Instant::now()));
        let service = usize::try_from(u32::from_le_bytes(number) >> SERVICE_SHIFT);
        let service = service.ok().and_then(|service| services.get(service));
        let service = service.context("it asked for a service that its mount does not have")?;
        let made = connect_to(service);
        let errno = made.as_ref().err().map_or(0, |error| *error as i32);
        let mut response = [0; RESPONSE];
        response[..REQUEST].copy_from_slice(&number);
        response[REQUEST..].copy_from_slice(&errno.to_le_bytes());
        let beside: Vec<_> = made.iter().map(|connection| connection.as_fd()).collect();
        match rawio::passing::send(link.as_fd(), &response, &beside) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                return Err(error).context("it does not take the connections that it asked for");
            }
        }
    }
}

fn connect_to(service: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let connection = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    setsockopt(&connection, sockopt::SendTimeout, &time(CONNECT))?;
    connect(connection.as_raw_fd(), &UnixAddr::new(service)?)?;
    Ok(connection)
}

/// How often a worker may be answered.
struct Rate {
    /// When all that was answered so far would be due at one in each [`INTERVAL`].
    due: Instant,
}

impl Rate {
    const fn new(now: Instant) -> Self {
        Self { due: now }
    }

    /// Counts one more request, and returns how long its response has to wait.
    fn pause(&mut self, now: Instant) -> Duration {
        let ahead = self.due.saturating_duration_since(now);
        self.due = self.due.max(now) + INTERVAL;
        ahead.saturating_sub(INTERVAL * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_answered_at_once_and_then_one_in_an_interval() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        for _ in 0..BURST {
            assert_eq!(rate.pause(start), Duration::ZERO);
        }
        assert_eq!(rate.pause(start), INTERVAL);
        assert_eq!(rate.pause(start), INTERVAL * 2);
        let later = start + INTERVAL * 100;
        for _ in 0..BURST {
            assert_eq!(rate.pause(later), Duration::ZERO);
        }
        assert_eq!(rate.pause(later), INTERVAL);
    }
}
