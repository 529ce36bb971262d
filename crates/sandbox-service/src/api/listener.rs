//! Listeners: the unix socket and the TCP port.

use std::io;

use host::admission::Admission;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A listener.
#[derive(Debug)]
pub(super) enum Listener {
    /// The unix socket: all requests, from root and the user of this process.
    Own(tokio::net::UnixListener),
    /// A port: calls of handlers, from all clients.
    Front(tokio::net::TcpListener),
}

/// The client of a connection.
pub(super) struct Peer {
    pub(super) stream: Box<dyn Stream>,
    /// Why it is refused.
    pub(super) admitted: Result<(), String>,
    pub(super) is_front: bool,
}

impl Listener {
    /// Waits for the next one.
    pub(super) async fn accept(&self) -> io::Result<Peer> {
        match self {
            Self::Own(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Peer {
                    admitted: Admission::own().check_peer(&stream),
                    stream: Box::new(stream),
                    is_front: false,
                })
            }
            Self::Front(listener) => {
                let (stream, _) = listener.accept().await?;
                // An answer is one piece.
                stream.set_nodelay(true)?;
                Ok(Peer {
                    admitted: Ok(()),
                    stream: Box::new(stream),
                    is_front: true,
                })
            }
        }
    }
}
