//! Closing a stream so that the peer receives what was sent last.
//!
//! A socket that is closed while received bytes are unread resets the connection, and the peer loses
//! what it has not read by then: most likely the response with the reason why the connection ends.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// The most bytes that are read and discarded: more than the buffers of both sides hold.
const BYTES: u64 = 16 << 20;
/// The deadline for that.
const PATIENCE: Duration = Duration::from_secs(2);
/// The size of a read.
const PIECE: usize = 16 << 10;

/// Shuts the stream down for writing, and discards what is received until the peer closes it,
/// within bounds. Then the stream can be dropped without a reset.
pub async fn part<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let parted = async {
        // It may be closed already, or gone.
        let _ended = stream.shutdown().await;
        drain(stream).await;
    };
    let _in_time = timeout(PATIENCE, parted).await;
}

/// Reads and discards what is received until the peer closes the stream, within bounds.
pub async fn drain<R: AsyncRead + Unpin>(from: &mut R) {
    let drained = async {
        let mut piece = vec![0; PIECE];
        let mut left = BYTES;
        while left > 0 {
            match from.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(read) => left = left.saturating_sub(read as u64),
            }
        }
    };
    let _in_time = timeout(PATIENCE, drained).await;
}
