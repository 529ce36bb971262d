//! The connections of the service: a bounded number, of which those without a request make room for others.
//!
//! containerd keeps one connection, and connects again when it has a request and no connection.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use serving::api::{Closed, Connections, Turn};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::transport::server::Connected;

/// Passes the connections of `listener` to `taken` until `closed` ends. One that is ended is at its end for who
/// has it.
pub(super) async fn take(
    connections: &Connections,
    listener: UnixListener,
    taken: mpsc::Sender<io::Result<Peer>>,
    closed: Closed,
) {
    let accept = async || listener.accept().await.map(|(stream, _)| stream);
    let converse = |stream, turn| {
        let taken = taken.clone();
        async move {
            let (open, over) = oneshot::channel();
            let peer = Peer { stream, turn, open };
            if taken.send(Ok(peer)).await.is_ok() {
                // It is dropped when it is over.
                let _over = over.await;
            }
        }
    };
    connections.take(closed, accept, converse).await;
}

/// A client.
#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    turn: Turn,
    /// Nobody waits for its end any more when it is ended.
    open: oneshot::Sender<()>,
}

impl Connected for Peer {
    type ConnectInfo = Turn;

    fn connect_info(&self) -> Turn {
        self.turn.clone()
    }
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.open.poll_closed(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        pin!(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.open.poll_closed(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        pin!(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(&mut self.stream).poll_shutdown(context)
    }
}

/// A service that says when a connection has a request.
#[derive(Clone, Debug)]
pub(super) struct Answering<S>(pub(super) S);

impl<S: NamedService> NamedService for Answering<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Answering<S>
where
    S: Service<http::Request<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let busy = request.extensions().get().map(Turn::begin);
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(busy);
            answer
        })
    }
}
