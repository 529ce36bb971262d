//! Clients that take nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long a client may read nothing of a response.
const TAKE_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes per second. A client that is waited for takes at least so many, or what it lacks of them counts as time in which it takes
/// nothing: a little of a response now and then is as good as nothing.
const TAKE_RATE: u64 = 64 << 10;

/// A stream that fails when its peer takes nothing for too long: hyper has a deadline for what
/// comes, and none for what goes.
pub(super) struct WriteTimeout<S, F, G> {
    stream: S,
    begin: F,
    waiting: Option<Waiting<G>>,
    behind: Behind,
}

/// How long a peer has been waited for, less the time that it may have for what it has taken.
#[derive(Clone, Copy, Debug, Default)]
struct Behind(Duration);

impl Behind {
    fn has_waited(&mut self, time: Duration) {
        self.0 += time;
    }

    fn has_taken(&mut self, bytes: usize) {
        let time = Duration::from_micros(bytes as u64 * 1_000_000 / TAKE_RATE);
        self.0 = self.0.saturating_sub(time);
    }
}

struct Waiting<G> {
    since: Instant,
    deadline: Pin<Box<Sleep>>,
    _kept: G,
}

impl<S, F: Fn(Duration) -> G, G> WriteTimeout<S, F, G> {
    /// While the peer is waited for, what `begin` returns is kept. It is told how far the peer is behind.
    pub(super) const fn new(stream: S, begin: F) -> Self {
        Self {
            stream,
            begin,
            waiting: None,
            behind: Behind(Duration::ZERO),
        }
    }

    fn bounded(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let Some(waiting) = self.waiting.take() {
                self.behind.has_waited(waiting.since.elapsed());
            }
            self.behind.has_taken(*written.as_ref().unwrap_or(&0));
            return Poll::Ready(written);
        }
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            since: Instant::now(),
            deadline: Box::pin(sleep(TAKE_DEADLINE)),
            _kept: (self.begin)(self.behind.0),
        });
        waiting
            .deadline
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
    F: Fn(Duration) -> G + Unpin,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_now_and_then_is_as_good_as_nothing() {
        let mut behind = Behind::default();
        for _ in 0..60 {
            behind.has_waited(Duration::from_secs(1));
            behind.has_taken(1 << 10);
        }
        assert!(behind.0 > Duration::from_secs(59), "{behind:?}");
        for _ in 0..60 {
            behind.has_waited(Duration::from_secs(1));
            behind.has_taken(256 << 10);
        }
        assert_eq!(behind.0, Duration::ZERO, "it has caught up");
    }
}
