//! Frames read from and written to a byte stream, each within a deadline.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::{Frame, FrameError, HEAD_BYTES, Head, Seal};

/// How long a frame may take from its first byte to its last. A usable link brings a chunk in
/// less than a second: a slower client sends a byte now and then to hold a connection.
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
    /// It is not a valid frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Reads the next frame; waits for its first byte as long as it takes.
pub(crate) async fn read_frame<R: AsyncRead + Unpin>(
    from: &mut R,
    seal: &mut Seal,
) -> Result<Frame, ReadError> {
    Ok(read_frame_timed(from, seal).await?.0)
}

/// Reads the next frame, and returns how long its data took after its head, too.
pub(crate) async fn read_frame_timed<R: AsyncRead + Unpin>(
    from: &mut R,
    seal: &mut Seal,
) -> Result<(Frame, Duration), ReadError> {
    let mut head = [0; HEAD_BYTES];
    if from.read(&mut head[..1]).await? == 0 {
        return Err(ReadError::Closed);
    }
    let rest = async {
        from.read_exact(&mut head[1..]).await?;
        let head = Head::parse(&head)?;
        let mut body = vec![0; head.body_len()];
        from.read_exact(&mut body).await?;
        let began = Instant::now();
        let data = read_data(from, head.data_len()).await?;
        let took = began.elapsed();
        Ok((Frame::parse(&head, &body, data, seal)?, took))
    };
    timeout(FRAME_PATIENCE, rest)
        .await
        .unwrap_or(Err(ReadError::Slow))
}

/// Reads `len` bytes, whose length was compared with its limit, into memory that nobody has to
/// clear before.
async fn read_data<R: AsyncRead + Unpin>(from: &mut R, len: usize) -> io::Result<Vec<u8>> {
    let mut data = Vec::with_capacity(len);
    let mut rest = from.take(len as u64);
    while data.len() < len {
        if rest.read_buf(&mut data).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(data)
}

/// Writes a frame: head, body and data in one call where the stream can.
pub(crate) async fn write_frame<W: AsyncWrite + Unpin>(
    to: &mut W,
    frame: &Frame,
    seal: &mut Seal,
) -> io::Result<()> {
    write_frames(to, std::iter::once(frame), seal).await
}

/// Writes frames, all of them in one call where the stream can.
pub(crate) async fn write_frames<'a, W: AsyncWrite + Unpin>(
    to: &mut W,
    frames: impl Iterator<Item = &'a Frame>,
    seal: &mut Seal,
) -> io::Result<()> {
    let frames: Vec<_> = frames
        .map(|frame| (frame.encode(seal), &frame.data))
        .collect();
    let parts = frames
        .iter()
        .flat_map(|(head, data)| [&head[..], &data[..]]);
    let mut parts: Vec<_> = parts
        .filter(|part| !part.is_empty())
        .map(IoSlice::new)
        .collect();
    let mut left = &mut parts[..];
    while !left.is_empty() {
        let written = to.write_vectored(left).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut left, written);
    }
    to.flush().await
}
