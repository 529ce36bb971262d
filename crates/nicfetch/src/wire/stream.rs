//! Frames read from and written to a byte stream, each within a deadline.

use std::io::{self, IoSlice};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Frame, FrameError, HEAD_BYTES, Head, Seal};

/// How long a frame may take from its first byte to its last. On a link that brings a chunk in
/// less than a second: who takes longer sends a byte now and then to hold a connection.
pub(crate) const FRAME_PATIENCE: Duration = Duration::from_secs(10);

/// Why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The other side closed the connection between two frames.
    #[error("the connection was closed")]
    Closed,
    /// A frame was begun and not finished in time.
    #[error("a frame was not finished in time")]
    Slow,
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// It is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads the next frame; waits for its first byte as long as it takes.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(
    from: &mut R,
    seal: &mut Seal,
) -> Result<Frame, ReadError> {
    let mut head = [0; HEAD_BYTES];
    if from.read(&mut head[..1]).await? == 0 {
        return Err(ReadError::Closed);
    }
    let rest = async {
        from.read_exact(&mut head[1..]).await?;
        let head = Head::parse(&head)?;
        let mut body = vec![0; head.body_len()];
        from.read_exact(&mut body).await?;
        let mut data = vec![0; head.data_len()];
        from.read_exact(&mut data).await?;
        Ok(Frame::parse(&head, &body, data, seal)?)
    };
    timeout(FRAME_PATIENCE, rest)
        .await
        .unwrap_or(Err(ReadError::Slow))
}

/// Writes a frame: head, body and data in one call where the stream can.
pub(crate) async fn write_frame<W: AsyncWrite + Unpin>(
    to: &mut W,
    frame: &Frame,
    seal: &mut Seal,
) -> io::Result<()> {
    let head = frame.encode(seal);
    let (mut at, len) = (0, head.len() + frame.data.len());
    while at < len {
        let head_left = head.get(at..).unwrap_or_default();
        let data_left = &frame.data[at.saturating_sub(head.len())..];
        let parts = [IoSlice::new(head_left), IoSlice::new(data_left)];
        let from = usize::from(head_left.is_empty());
        let written = to.write_vectored(&parts[from..]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        at += written;
    }
    to.flush().await
}
