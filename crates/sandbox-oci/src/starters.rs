//! Those who come to start a container: one of them says so, and whoever says nothing keeps nobody waiting.
//!
//! The process that waits is the first one of the container, which has one thread until it is its program.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How many may be connected at a time. Each is a descriptor, of which an engine may allow 1 024.
const CONNECTED_MAX: usize = 128;
/// How long each has to say what it wants.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long it has while there is no room for others.
const PATIENCE: Duration = Duration::from_millis(50);

/// Waits until somebody starts the container, by the byte `go`: only root reaches the socket.
pub(crate) fn wait(listener: &UnixListener, go: u8) -> io::Result<UnixStream> {
    wait_with(listener, go, DEADLINE)
}

fn wait_with(listener: &UnixListener, go: u8, deadline: Duration) -> io::Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let mut connected = Vec::new();
    loop {
        // Those whose time is over by now have been looked at since.
        let now = Instant::now();
        if let Some(starter) = that_starts(&mut connected, go) {
            starter.set_nonblocking(false)?;
            return Ok(starter);
        }
        let room = accept(listener, &mut connected)?;
        let patience = match room {
            Room::Left => deadline,
            Room::None => PATIENCE,
        };
        let before = connected.len();
        connected.retain(|one| now.saturating_duration_since(one.since) < patience);
        if connected.len() == before {
            sleep(listener, &connected, room, patience)?;
        }
    }
}

struct Connected {
    since: Instant,
    stream: UnixStream,
}

/// Whether another one can be accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Left,
    None,
}

/// Takes out who says that the container is to start, and drops those who say something else, or have left.
fn that_starts(connected: &mut Vec<Connected>, go: u8) -> Option<UnixStream> {
    let mut at = 0;
    while at < connected.len() {
        let mut byte = [0];
        match (&connected[at].stream).read(&mut byte) {
            Ok(1) if byte == [go] => return Some(connected.remove(at).stream),
            Err(error) if is_passing(&error) => at += 1,
            _ => drop(connected.remove(at)),
        }
    }
    None
}

/// Accepts those that have come, as far as there is room.
fn accept(listener: &UnixListener, connected: &mut Vec<Connected>) -> io::Result<Room> {
    while connected.len() < CONNECTED_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                let since = Instant::now();
                connected.push(Connected { since, stream });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Room::Left),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => break,
                Some(Errno::EINTR | Errno::ECONNABORTED) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(Room::None)
}

/// Waits until one says something, another one comes if there is room for it, or the time of one is over.
fn sleep(
    listener: &UnixListener,
    connected: &[Connected],
    room: Room,
    patience: Duration,
) -> io::Result<()> {
    let interest = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds: Vec<_> = connected
        .iter()
        .map(|one| interest(one.stream.as_fd()))
        .collect();
    if room == Room::Left {
        fds.push(interest(listener.as_fd()));
    }
    let first = connected.iter().map(|one| one.since).min();
    let left = match (first, room) {
        (Some(first), _) => Some((first + patience).saturating_duration_since(Instant::now())),
        (None, Room::None) => Some(patience),
        (None, Room::Left) => None,
    };
    // A millisecond more, so that it is over then.
    let timeout = left.map_or(PollTimeout::NONE, |left| {
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::channel;

    use super::*;

    const GO: u8 = b'G';
    /// Longer than anything takes here; reached only by a failure.
    const LONG: Duration = Duration::from_secs(60);

    /// Has as many come as `come` returns, and then one that starts the container, which has to be heard.
    fn starts(come: impl FnOnce(&dyn Fn() -> UnixStream) -> Vec<UnixStream>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("start.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(wait_with(&listener, GO, 60 * LONG)));
        let others = come(&|| UnixStream::connect(&path).unwrap());
        let mut starter = UnixStream::connect(&path).unwrap();
        starter.write_all(&[GO]).unwrap();
        let heard = told.recv_timeout(LONG).expect("it is not heard");
        heard.unwrap().write_all(b"started").unwrap();
        let mut said = String::new();
        starter.read_to_string(&mut said).unwrap();
        assert_eq!(said, "started");
        drop(others);
    }

    #[test]
    fn connections_that_send_nothing_keep_no_container_from_its_start() {
        for count in [1, CONNECTED_MAX, 3 * CONNECTED_MAX] {
            starts(|connect| (0..count).map(|_| connect()).collect());
        }
    }

    #[test]
    fn who_says_nothing_is_let_go_of_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("start.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || wait_with(&listener, GO, Duration::from_millis(20)));
        let mut silent = UnixStream::connect(&path).unwrap();
        silent.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn who_says_something_else_or_leaves_starts_nothing() {
        starts(|connect| {
            let mut other = connect();
            other.write_all(b"X").unwrap();
            // It is let go of, and not started.
            other.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!(other.read(&mut [0]).unwrap(), 0);
            drop(connect());
            vec![other]
        });
    }
}
