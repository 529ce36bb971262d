//! Where a service manager listens: the value of `NOTIFY_SOCKET`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

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
    fn a_socket_file_that_was_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let address = Address::Path(dir.path().join("s"));
        drop(address.bind().unwrap());
        let listening = address.bind().unwrap();
        address.connect().unwrap().send(b"hello").unwrap();
        assert_eq!(listening.recv(&mut [0; 16]).unwrap(), 5);
    }
}
