//! Closing a stream so that the other side gets what was sent last.
//!
//! A socket that is closed while something lies unread in it resets the connection, and what the
//! other side has not read by then is lost to it: most likely the answer that says why.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

/// What is read and thrown away, at most: more than lies in the buffers of both sides.
const BYTES: u64 = 16 << 20;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is read at once.
const PIECE: usize = 16 << 10;

/// Says that nothing more comes, and reads what still does until the other side has ended, within
/// bounds. Then the stream may be dropped.
pub async fn part<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let parted = async {
        // It may be closed already, or gone.
        let _ended = stream.shutdown().await;
        drain(stream).await;
    };
    let _in_time = timeout(PATIENCE, parted).await;
}

/// Reads, and throws away, what comes until the other side has ended, within bounds.
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
