//! Waiting for a client, until it is enough.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long a client that has said nothing yet is waited for while another one waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// Ends the waiting when it is dropped.
#[derive(Debug)]
pub(crate) struct Stop {
    _end: UnixStream,
}

/// The side that waits.
#[derive(Debug)]
pub(crate) struct Accepted {
    stop: UnixStream,
}

impl Stop {
    pub(crate) fn new() -> io::Result<(Self, Accepted)> {
        let (end, stop) = UnixStream::pair()?;
        Ok((Self { _end: end }, Accepted { stop }))
    }
}

impl Accepted {
    /// Waits for the next client; `None` when it was stopped.
    pub(crate) fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        loop {
            if !self.wait(listener) {
                return None;
            }
            match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                // Another process that has the socket was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // Too many open files, or a client that left already: it may be better soon.
                    log::warn!("cannot accept a client: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Waits until a client that has just come says something. Returns `false` when it was stopped, or the client says
    /// nothing for `deadline`, or for a moment while another one waits to be accepted.
    pub(crate) fn wait_for_first(
        &self,
        client: &impl AsFd,
        others: &UnixListener,
        deadline: Duration,
    ) -> bool {
        let since = Instant::now();
        loop {
            let waited = since.elapsed();
            let left = match waited < PATIENCE {
                true => PATIENCE.min(deadline).saturating_sub(waited),
                false => deadline.saturating_sub(waited),
            };
            let interest = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = vec![interest(self.stop.as_fd()), interest(client.as_fd())];
            if waited >= PATIENCE {
                fds.push(interest(others.as_fd()));
            }
            // A millisecond more, so that it is over then.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1));
            match poll(&mut fds, timeout.unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    log::error!("cannot wait for a client: {error}");
                    return false;
                }
            }
            let is_there = |at: usize| fds.get(at).is_some_and(|fd| fd.any() == Some(true));
            if is_there(0) || is_there(1) {
                return !is_there(0);
            }
            if is_there(2) || since.elapsed() >= deadline {
                return false;
            }
        }
    }

    /// Waits until there is something to read; returns `false` when it was stopped.
    pub(crate) fn wait(&self, what: &impl AsFd) -> bool {
        loop {
            let interest = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut fds = [interest(self.stop.as_fd()), interest(what.as_fd())];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) if fds[0].any() == Some(true) => return false,
                Ok(_) if fds[1].any() == Some(true) => return true,
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    log::error!("cannot wait for clients: {error}");
                    return false;
                }
            }
        }
    }
}
