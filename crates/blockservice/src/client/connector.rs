//! Connections that another process makes, for a process that may not connect by itself.

use std::fmt::Debug;
use std::io;
use std::os::unix::net::UnixStream;

use serving::transport::Stream;
use tokio::sync::oneshot;

/// Makes connections to the service in place of the client.
pub trait Connector: Debug + Send + Sync {
    /// Begins to make a connection, and completes `request` when it is made or fails. Does not wait
    /// for either.
    fn connect(&self, request: ConnectionRequest);
}

/// A client that waits for a connection, until its deadline.
#[derive(Debug)]
pub struct ConnectionRequest {
    service: usize,
    made: oneshot::Sender<io::Result<UnixStream>>,
}

/// Receives the result of a [`ConnectionRequest`].
#[derive(Debug)]
pub struct PendingConnection(oneshot::Receiver<io::Result<UnixStream>>);

impl PendingConnection {
    /// Waits for the result.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn made(self) -> io::Result<UnixStream> {
        self.0.await.map_err(|_dropped| dropped())?
    }

    /// Waits for the result, outside of a runtime.
    ///
    /// # Errors
    /// Why there is no connection.
    pub fn wait(self) -> io::Result<UnixStream> {
        self.0.blocking_recv().map_err(|_dropped| dropped())?
    }
}

fn dropped() -> io::Error {
    let why = "the request for a connection was dropped";
    io::Error::new(io::ErrorKind::BrokenPipe, why)
}

impl ConnectionRequest {
    /// Returns a request for a connection to the service of this number, and where its answer arrives.
    #[must_use]
    pub fn new(service: usize) -> (Self, PendingConnection) {
        let (made, answered) = oneshot::channel();
        (Self { service, made }, PendingConnection(answered))
    }

    /// Returns the number of the service: 0 for the first one of the client.
    #[must_use]
    pub const fn service(&self) -> usize {
        self.service
    }

    /// Whether the client waits no longer.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.made.is_closed()
    }

    /// Completes the request with the connection, or with the reason for the failure.
    pub fn answer(self, made: io::Result<UnixStream>) {
        // A client that waits no longer does not miss it.
        let _abandoned = self.made.send(made);
    }
}

/// Has a connection made. The caller sets the deadline.
pub(super) async fn connect_by(
    connector: &dyn Connector,
    service: usize,
) -> io::Result<Box<dyn Stream>> {
    let (request, pending) = ConnectionRequest::new(service);
    connector.connect(request);
    let made = pending.made().await?;
    made.set_nonblocking(true)?;
    Ok(Box::new(tokio::net::UnixStream::from_std(made)?))
}
