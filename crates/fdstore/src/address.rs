//! Where a service manager listens: the value of `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

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

    /// Makes a socket that is connected to it.
    pub(crate) fn connect(&self) -> Result<UnixDatagram> {
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&self.socket_address()?)?;
            Ok::<_, std::io::Error>(socket)
        };
        connect().map_err(StoreError::step("connecting to the service manager"))
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
    fn both_kinds_come_from_the_environment() {
        let parse = |text: &str| Address::parse(OsStr::new(text));
        assert_eq!(parse("/run/x").unwrap(), Address::Path("/run/x".into()));
        assert_eq!(parse("@x").unwrap(), Address::Abstract(b"x".to_vec()));
        for text in [
            "",
            "/",
            "@",
            "run/x.sock",
            "vsock:2:1234",
            crate::link::ADDRESS,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_manager_is_told_at_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listening = UnixDatagram::bind(&path).unwrap();
        let address = Address::Path(path);
        address.connect().unwrap().send(b"hello").unwrap();
        assert_eq!(listening.recv(&mut [0; 16]).unwrap(), 5);
    }
}
