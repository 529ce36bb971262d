//! Response bodies that are streamed.
//!
//! A task reads the content and sends it through a channel of one piece to the connection: each client
//! costs two pieces of memory, and a slow client slows only its own task.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::blobs::{End, FillError, Growing, SeparateRange};

/// Bytes that are read at a time: a request of the disk that is worth it, and little enough for a
/// thousand clients.
pub(super) const PIECE: u64 = 128 << 10;

/// How long a client waits for the next bytes of a separately fetched range. Longer than a registry that does not answer
/// is waited for, so that the engine can ask once more.
const LOOK: Duration = Duration::from_secs(15);

/// The sending half of a streamed body.
pub(crate) type Pipe = mpsc::Sender<io::Result<Bytes>>;

/// A streamed body of known length.
#[derive(Debug)]
pub(crate) struct Piped {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

impl Piped {
    /// Returns a body of `length` bytes, and its sending half.
    pub(crate) fn new(length: u64) -> (Self, Pipe) {
        let (pipe, pieces) = mpsc::channel(1);
        let left = length;
        (Self { pieces, left }, pipe)
    }
}

impl Body for Piped {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.pieces.poll_recv(context).map(|piece| {
            // Whoever fed it has stopped: the connection must be cut, not ended.
            let cut = || Err(io::ErrorKind::UnexpectedEof.into());
            let piece = piece.unwrap_or_else(cut);
            self.left = match &piece {
                Ok(piece) => self.left.saturating_sub(piece.len() as u64),
                Err(_) => 0,
            };
            Some(piece.map(Frame::data))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The receiver of the body is gone.
#[derive(Debug)]
pub(super) struct Gone;

/// Sends a part of a file. `at` tells how far it came.
pub(super) async fn send_file(
    file: &Arc<File>,
    at: &mut u64,
    end: u64,
    pipe: &Pipe,
) -> Result<(), Gone> {
    while *at < end {
        // Its place first: who reads and then waits for one holds a piece more.
        let place = pipe.reserve().await.map_err(|_| Gone)?;
        let piece = read(file, *at, end).await;
        let length = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let failed = piece.is_err();
        place.send(piece);
        if failed {
            return Err(Gone);
        }
        *at += length;
    }
    Ok(())
}

/// Reads the next piece of a part of a file.
pub(super) async fn read(file: &Arc<File>, at: u64, end: u64) -> io::Result<Bytes> {
    let file = Arc::clone(file);
    let length = usize::try_from(PIECE.min(end - at)).unwrap_or(usize::MAX);
    let read = spawn_blocking(move || {
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, at)?;
        Ok(Bytes::from(piece))
    });
    read.await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Sends a range of a blob while it is downloaded. Returns the error if the download ends before
/// the range is complete.
pub(super) async fn follow(
    growing: &Growing,
    at: &mut u64,
    end: u64,
    pipe: &Pipe,
) -> Result<Option<Arc<FillError>>, Gone> {
    let mut watch = growing.watch();
    while *at < end {
        let progress = watch.borrow_and_update().clone();
        let there = progress.readable.min(end);
        if let Some(file) = growing.file()
            && *at < there
        {
            send_file(&file, at, there, pipe).await?;
            continue;
        }
        if let Some(End::Failed(error)) = progress.end {
            return Ok(Some(error));
        }
        tokio::select! {
            changed = watch.changed() => changed.map_err(|_| Gone)?,
            () = pipe.closed() => return Err(Gone),
        }
    }
    Ok(None)
}

/// Sends a part of a separately fetched range. Returns whether all was sent: it is not if that cannot be fetched, or
/// nothing comes for a while.
pub(super) async fn follow_look(
    look: &mut SeparateRange,
    at: &mut u64,
    end: u64,
    pipe: &Pipe,
) -> Result<bool, Gone> {
    let mut goes_on = true;
    while *at < end {
        let there = look.until(*at, end);
        if *at < there {
            send_file(look.file(), at, there, pipe).await?;
            continue;
        }
        if !goes_on {
            return Ok(false);
        }
        tokio::select! {
            more = timeout(LOOK, look.more()) => goes_on = more.unwrap_or(false),
            () = pipe.closed() => return Err(Gone),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_piece_is_read_when_there_is_a_place_for_it() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let length = usize::try_from(PIECE).unwrap();
        file.write_all_at(&vec![b'a'; 2 * length], 0).unwrap();
        let (mut body, pipe) = Piped::new(2 * PIECE);
        let from = Arc::clone(&file);
        let sending =
            tokio::spawn(async move { send_file(&from, &mut 0, 2 * PIECE, &pipe).await.is_ok() });
        // Until the first waits to be taken; then the task has every chance to read on.
        while body.pieces.is_empty() {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            spawn_blocking(|| ()).await.unwrap();
        }
        file.write_all_at(&vec![b'b'; length], PIECE).unwrap();
        let mut came = Vec::new();
        while let Some(piece) = body.pieces.recv().await {
            came.extend_from_slice(&piece.unwrap());
        }
        assert!(sending.await.unwrap());
        let (first, second) = came.split_at(length);
        assert!(first.iter().all(|byte| *byte == b'a'));
        assert!(second.iter().all(|byte| *byte == b'b'), "it was read ahead");
    }
}
