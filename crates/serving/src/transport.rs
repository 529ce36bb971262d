//! Streams between clients and servers: TCP, unix sockets, TLS over TCP, and vsock. Everything above
//! uses a [`Stream`] and no socket; `docs/nicfetch-rdma.md` describes where RDMA would fit.

mod parting;
mod tls;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rawio::unix_socket;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

pub use parting::drain;
pub use parting::part;
pub use tls::{TlsClient, TlsError, TlsFiles, TlsServer};

/// A reliable stream of bytes in each direction.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host and a port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A context id and a port; with the feature `vsock` only.
    Vsock {
        /// Which machine: 2 is the host.
        cid: u32,
        /// Which port.
        port: u32,
    },
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address: {text:?}; HOST:PORT, unix:PATH or vsock:CID:PORT are")]
pub struct ParseAddressError {
    text: String,
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseAddressError {
            text: text.chars().take(200).collect(),
        })
    }
}

fn parse(text: &str) -> Option<Address> {
    if let Some(path) = text.strip_prefix("unix:") {
        return (!path.is_empty()).then(|| Address::Unix(path.into()));
    }
    if let Some(vsock) = text.strip_prefix("vsock:") {
        let (cid, port) = vsock.split_once(':')?;
        let (cid, port) = (cid.parse().ok()?, port.parse().ok()?);
        return Some(Address::Vsock { cid, port });
    }
    let (host, port) = text.rsplit_once(':')?;
    let _port: u16 = port.parse().ok()?;
    (!host.is_empty()).then(|| Address::Tcp(text.to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

/// The peer of a connection, as far as the transport can identify it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The name in its certificate.
    pub certified: Option<Vec<u8>>,
    /// Its address.
    pub link: PeerAddress,
}

/// The address of a peer, as the kernel of this machine reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// An IP address.
    Address(IpAddr),
    /// The context id of a virtual machine (vsock).
    Context(u32),
    /// The user of a process on this machine.
    User(u32),
    /// Unknown to the system.
    #[default]
    Unknown,
}

/// A stream and its peer.
pub struct Connected {
    /// The stream, after the TLS handshake.
    pub stream: Box<dyn Stream>,
    /// The peer.
    pub peer: Peer,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// Bytes that the kernel takes of what is written beyond what it may send now.
const UNSENT: u32 = 128 << 10;

/// Connects to a service. The caller sets the deadline.
pub async fn connect(address: &Address, tls: Option<&TlsClient>) -> io::Result<Box<dyn Stream>> {
    match address {
        Address::Tcp(host) => {
            let stream = TcpStream::connect(host).await?;
            stream.set_nodelay(true)?;
            match tls {
                Some(tls) => tls.connect(host, stream).await,
                None => Ok(Box::new(stream)),
            }
        }
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Address::Vsock { cid, port } => vsock::connect(*cid, *port).await,
    }
}

/// A socket that listens.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsServer>,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
    #[cfg(feature = "vsock")]
    Vsock(tokio_vsock::VsockListener),
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

/// An accepted connection before the TLS handshake, during which the peer may be slow.
pub enum Accepted {
    /// From a network; the TLS handshake follows if there is one.
    Tcp(TcpStream),
    /// From the same machine, or from a virtual machine on it.
    Other(Box<dyn Stream>, PeerAddress),
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Accepted").field(&self.link()).finish()
    }
}

impl Listener {
    /// Listens at `address`. A unix socket without a listener is replaced.
    ///
    /// # Errors
    /// If the address is in use or not available.
    pub async fn bind(address: &Address, tls: Option<TlsServer>) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(host) => Socket::Tcp(TcpListener::bind(host).await?),
            Address::Unix(path) => {
                unix_socket::remove_dead(path)?;
                Socket::Unix(UnixListener::bind(path)?)
            }
            #[cfg(feature = "vsock")]
            Address::Vsock { cid, port } => Socket::Vsock(vsock::listen(*cid, *port)?),
            #[cfg(not(feature = "vsock"))]
            Address::Vsock { .. } => return Err(vsock::missing()),
        };
        Ok(Self { socket, tls })
    }

    /// Returns where it listens, with the port that the system chose.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn address(&self) -> io::Result<String> {
        match &self.socket {
            Socket::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Socket::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(Path::new(""));
                Ok(Address::Unix(path.to_owned()).to_string())
            }
            #[cfg(feature = "vsock")]
            Socket::Vsock(listener) => Ok(format!("{:?}", listener.local_addr()?)),
        }
    }

    /// Returns the TLS configuration of connections over TCP, if they use TLS.
    #[must_use]
    pub const fn tls(&self) -> Option<&TlsServer> {
        self.tls.as_ref()
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// If it cannot be accepted: most likely descriptors have run out.
    pub async fn accept(&self) -> io::Result<Accepted> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                // Without effect, urgent data waits behind more that was written before.
                let _older_kernels = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
                Ok(Accepted::Tcp(stream))
            }
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let link = match stream.peer_cred() {
                    Ok(peer) => PeerAddress::User(peer.uid()),
                    Err(_) => PeerAddress::Unknown,
                };
                Ok(Accepted::Other(Box::new(stream), link))
            }
            #[cfg(feature = "vsock")]
            Socket::Vsock(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok(Accepted::Other(
                    Box::new(stream),
                    PeerAddress::Context(peer.cid()),
                ))
            }
        }
    }
}

impl Accepted {
    /// Returns the address of the peer.
    pub fn link(&self) -> PeerAddress {
        match self {
            Self::Tcp(stream) => match stream.peer_addr() {
                Ok(address) => PeerAddress::Address(address.ip()),
                Err(_) => PeerAddress::Unknown, // it has left already
            },
            Self::Other(_, link) => *link,
        }
    }

    /// Completes the transport's handshake.
    pub async fn finish(self, tls: Option<&TlsServer>) -> io::Result<Connected> {
        let link = self.link();
        let certified = None;
        match (self, tls) {
            (Self::Tcp(stream), Some(tls)) => tls.accept(stream, link).await,
            (Self::Tcp(stream), None) => Ok(Connected {
                stream: Box::new(stream),
                peer: Peer { certified, link },
            }),
            (Self::Other(stream, _), _) => Ok(Connected {
                stream,
                peer: Peer { certified, link },
            }),
        }
    }
}

#[cfg(feature = "vsock")]
mod vsock {
    use std::io;

    use tokio_vsock::{VsockAddr, VsockListener, VsockStream};

    use super::Stream;

    pub(super) async fn connect(cid: u32, port: u32) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(
            VsockStream::connect(VsockAddr::new(cid, port)).await?,
        ))
    }

    pub(super) fn listen(cid: u32, port: u32) -> io::Result<VsockListener> {
        VsockListener::bind(VsockAddr::new(cid, port))
    }
}

#[cfg(not(feature = "vsock"))]
mod vsock {
    use std::io;

    use super::Stream;

    pub(super) async fn connect(_cid: u32, _port: u32) -> io::Result<Box<dyn Stream>> {
        Err(missing())
    }

    pub(super) fn missing() -> io::Error {
        let why = "this build has no vsock: build it with the feature vsock of nicfetch";
        io::Error::new(io::ErrorKind::Unsupported, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_they_print() {
        for text in [
            "127.0.0.1:7400",
            "[::1]:1",
            "nic:7400",
            "unix:/run/a",
            "vsock:2:7400",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "nic",
            ":7400",
            "nic:x",
            "nic:99999",
            "unix:",
            "vsock:2",
            "vsock:a:b",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
