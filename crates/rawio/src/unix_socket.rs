//! The file of a unix socket: connecting to it with a deadline, whether a process serves it, and removing one
//! that nobody does.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// Connects to the socket at `path`. A process that does not accept connections has a queue for them; once that is
/// full, connect(2) waits, and without `patience` it would wait for ever.
///
/// The stream that is returned has no deadlines for reading and writing.
///
/// # Errors
/// As connect(2); `TimedOut` if the queue stays full.
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + patience;
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    loop {
        // connect(2) of a unix socket waits as long as a send may take. Zero would mean without end.
        let left = deadline.saturating_duration_since(Instant::now());
        let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1);
        setsockopt(
            &client,
            sockopt::SendTimeout,
            &TimeVal::microseconds(micros),
        )?;
        match connect(client.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EINTR) if Instant::now() < deadline => {}
            Err(Errno::EINTR | Errno::EAGAIN) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "the process that serves this socket accepted no connection within {patience:?}"
                    ),
                ));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    let stream = UnixStream::from(client);
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// Returns whether a process serves the socket at `path`. It never waits: one that has more clients waiting than
/// it accepts is served, too.
///
/// # Errors
/// If nothing is there, or it cannot be asked: a file of another type, or no right to connect.
pub fn is_served(path: &Path) -> io::Result<bool> {
    let is_socket = path.symlink_metadata()?.file_type().is_socket();
    if !is_socket {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is there",
        ));
    }
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match connect(client.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => Ok(false),
        // Its queue is full, or it has packets instead of a stream: a dead one refuses both.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the socket at `path` that a dead process left, so that another can be bound there. Nothing there is
/// as good.
///
/// # Errors
/// If a process serves it (`AddrInUse`), the file is no socket (`AlreadyExists`), or it cannot be removed. Then it
/// stays.
pub fn remove_dead(path: &Path) -> io::Result<()> {
    let or_gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    match is_served(path) {
        Ok(true) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "a running process serves this socket; stop it, or name another socket",
        )),
        Ok(false) => or_gone(fs::remove_file(path)),
        Err(error) => or_gone(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    fn kind(result: io::Result<()>) -> io::ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn only_a_socket_that_nobody_serves_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        remove_dead(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(kind(remove_dead(&path)), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(path.exists());
        remove_dead(&path).unwrap();
        assert!(!path.exists());
        let datagrams = UnixDatagram::bind(&path).unwrap();
        assert_eq!(kind(remove_dead(&path)), io::ErrorKind::AddrInUse);
        drop(datagrams);
        remove_dead(&path).unwrap();
        assert!(!path.exists());
    }

    /// Listens at a path with room for one connection that waits, and accepts none.
    fn busy_at(path: &Path) -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC;
        let busy = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new(path).unwrap();
        nix::sys::socket::bind(busy.as_raw_fd(), &address).unwrap();
        let backlog = nix::sys::socket::Backlog::new(0).unwrap();
        nix::sys::socket::listen(&busy, backlog).unwrap();
        busy
    }

    #[test]
    fn connecting_to_one_that_accepts_nothing_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let connect = |patience| connect_within(&path, patience);
        let missing = connect(Duration::from_secs(60)).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let busy = busy_at(&path);
        let waiting = connect(Duration::from_secs(60)).unwrap();
        assert_eq!(waiting.write_timeout().unwrap(), None);
        for patience in [Duration::ZERO, Duration::from_millis(20)] {
            let late = connect(patience).unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        }
        drop(busy);
        let refused = connect(Duration::from_secs(60)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    /// A busy daemon must not lose its socket to another one.
    #[test]
    fn a_socket_whose_queue_is_full_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _busy = busy_at(&path);
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(is_served(&path).unwrap());
        assert_eq!(kind(remove_dead(&path)), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    /// Somebody who names a wrong path loses nothing.
    #[test]
    fn no_other_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(kind(remove_dead(&path)), io::ErrorKind::AlreadyExists);
        let dead = dir.path().join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&dead, &link).unwrap();
        assert_eq!(kind(remove_dead(&link)), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert!(link.exists());
    }
}
