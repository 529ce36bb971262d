//! Addresses of this machine, and the streams between them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;

use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

/// Bytes that a socket takes before anybody reads them. The kernel would take megabytes on loopback, which
/// are on no line yet but which the sender takes for sent.
const TAKEN_AHEAD: usize = 128 << 10;

/// Where a program of this machine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// At `HOST:PORT`, port 0 for any.
    Tcp(SocketAddr),
    /// At a unix socket, written as `unix:PATH`.
    Unix(PathBuf),
}

/// An invalid address.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} is neither IP:PORT nor unix:PATH")]
pub struct BadAddress(String);

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        let address = text.parse().map(Self::Tcp);
        address.map_err(|_| BadAddress(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Waits for connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection to a program.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens, and returns the address with the port that it has.
    pub(crate) fn bind(address: &Address) -> io::Result<(Self, Address)> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let address = Address::Tcp(listener.local_addr()?);
                Ok((Self::Tcp(listener), address))
            }
            Address::Unix(path) => Ok((Self::Unix(UnixListener::bind(path)?), address.clone())),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::of_tcp(listener.accept()?.0),
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }
}

impl Stream {
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => Self::of_tcp(TcpStream::connect(address)?),
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        setsockopt(&stream, RcvBuf, &TAKEN_AHEAD)?;
        Ok(Self::Tcp(stream))
    }

    /// Ends one direction, or both. A connection that is over already has ended them.
    pub(crate) fn end(&self, how: Shutdown) {
        let _over = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buf),
            Stream::Unix(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(buf),
            Stream::Unix(stream) => (&*stream).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["127.0.0.1:80", "unix:/run/x", "[::1]:7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert!("localhost".parse::<Address>().is_err());
    }
}
