//! Where a service manager listens: the value of `NOTIFY_SOCKET`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{setsockopt, sockopt::PassCred};

use crate::{Result, StoreError};

/// The address of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the file system.
    Path(PathBuf),
    /// In the abstract namespace; without the `@`.
    Abstract(Vec<u8>),
}

/// Most bytes of a process's number in a lock file.
const PID_BYTES: u64 = 16;
/// How often it is looked whether an address is free; nothing tells.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The right to listen at an address, until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Claim(
    #[expect(dead_code, reason = "held for its lock")]
    // The kernel lets nobody bind an abstract address twice.
    Option<Flock<File>>,
);

impl Address {
    /// Reads the value of `NOTIFY_SOCKET`.
    ///
    /// # Errors
    /// If it begins with neither `/` nor `@`.
    pub fn parse(value: &OsStr) -> Result<Self> {
        match value.as_bytes() {
            [b'/', _, ..] => Ok(Self::Path(value.into())),
            [b'@', name @ ..] if !name.is_empty() => Ok(Self::Abstract(name.to_vec())),
            _ => Err(StoreError::Address(value.to_string_lossy().into_owned())),
        }
    }

    /// Returns the value for `NOTIFY_SOCKET`.
    #[must_use]
    pub fn to_value(&self) -> OsString {
        match self {
            Self::Path(path) => path.clone().into(),
            Self::Abstract(name) => OsStr::from_bytes(&[b"@", name.as_slice()].concat()).into(),
        }
    }

    /// Makes a socket that is connected to it.
    pub(crate) fn connect(&self) -> Result<UnixDatagram> {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&self.socket_address()?)?;
            Ok::<_, std::io::Error>(socket)
        };
        connect().map_err(StoreError::step("connecting to the service manager"))
    }

    /// Makes a socket that listens there and is told who sends. A socket file that a dead process
    /// has left is replaced.
    pub(crate) fn bind(&self) -> Result<UnixDatagram> {
        let bind = || {
            if let Self::Path(path) = self {
                match std::fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => (),
                }
            }
            let socket = UnixDatagram::bind_addr(&self.socket_address()?)?;
            setsockopt(&socket, PassCred, &true)?;
            Ok(socket)
        };
        bind().map_err(StoreError::step("listening for the service"))
    }

    /// Takes the right to listen here, which one process has at a time, from a lock file beside the
    /// socket. Waits for as long as `patience` for another that may be about to end.
    pub(crate) fn claim(&self, patience: Duration) -> Result<Claim> {
        let Self::Path(path) = self else {
            return Ok(Claim(None));
        };
        let path = path.with_extension("lock");
        let deadline = Instant::now() + patience;
        let step = || StoreError::step::<std::io::Error>("locking the address of its socket");
        loop {
            let mut options = File::options();
            options.create(true).truncate(false).read(true).write(true);
            let mut file = options.open(&path).map_err(step())?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut lock) => {
                    let pid = std::process::id().to_string();
                    let write = lock
                        .set_len(0)
                        .and_then(|()| lock.write_all(pid.as_bytes()));
                    write.map_err(step())?;
                    return Ok(Claim(Some(lock)));
                }
                Err((held, Errno::EWOULDBLOCK)) => file = held,
                Err((_, errno)) => return Err(step()(errno.into())),
            }
            if Instant::now() >= deadline {
                let mut pid = String::new();
                let read = (&mut file).take(PID_BYTES).read_to_string(&mut pid);
                let process = read.ok().and_then(|_| pid.trim().parse().ok());
                return Err(StoreError::Taken { process });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn socket_address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Path(path) => SocketAddr::from_pathname(path),
            Self::Abstract(name) => SocketAddr::from_abstract_name(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_survive_the_environment() {
        for text in ["/run/x.sock", "@name"] {
            let address = Address::parse(OsStr::new(text)).unwrap();
            assert_eq!(address.to_value(), text);
        }
        for text in ["", "/", "@", "run/x.sock", "vsock:2:1234"] {
            assert!(Address::parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_is_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Path(dir.path().join("s.sock"));
        let claim = address.claim(Duration::ZERO).unwrap();
        let taken = address.claim(LOOK_EVERY).unwrap_err();
        assert!(
            matches!(taken, StoreError::Taken { process } if process == Some(std::process::id())),
            "{taken}"
        );
        drop(claim);
        address.claim(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_socket_file_that_was_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Path(dir.path().join("s"));
        drop(address.bind().unwrap());
        let listening = address.bind().unwrap();
        address.connect().unwrap().send(b"hello").unwrap();
        assert_eq!(listening.recv(&mut [0; 16]).unwrap(), 5);
    }
}
