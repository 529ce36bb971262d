//! Clients that take nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may read nothing of a response.
const TAKE_DEADLINE: Duration = Duration::from_secs(60);

/// A stream that fails when its peer takes nothing for too long: hyper has a deadline for what
/// comes, and none for what goes.
pub(super) struct WriteTimeout<S, F, G> {
    stream: S,
    begin: F,
    waiting: Option<(Pin<Box<Sleep>>, G)>,
}

impl<S, F: Fn() -> G, G> WriteTimeout<S, F, G> {
    /// While the peer is waited for, what `begin` returns is kept.
    pub(super) const fn new(stream: S, begin: F) -> Self {
        Self {
            stream,
            begin,
            waiting: None,
        }
    }

    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let (deadline, _) = self
            .waiting
            .get_or_insert_with(|| (Box::pin(sleep(TAKE_DEADLINE)), (self.begin)()));
        deadline
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin, F: Unpin, G: Unpin> AsyncRead for WriteTimeout<S, F, G> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S, F, G> AsyncWrite for WriteTimeout<S, F, G>
where
    S: AsyncWrite + Unpin,
    F: Fn() -> G + Unpin,
    G: Unpin,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
