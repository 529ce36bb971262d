//! The file of a unix socket: whether a process serves it, and removing one that nobody does.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

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
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

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

    /// A busy daemon must not lose its socket to another one.
    #[test]
    fn a_socket_whose_queue_is_full_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let address = UnixAddr::new(&path).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC;
        let busy = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        nix::sys::socket::bind(busy.as_raw_fd(), &address).unwrap();
        let backlog = nix::sys::socket::Backlog::new(0).unwrap();
        nix::sys::socket::listen(&busy, backlog).unwrap();
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
