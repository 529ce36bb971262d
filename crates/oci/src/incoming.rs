//! Layers that are unpacked while they are being downloaded: after the last byte little work is
//! left.
//!
//! One thread downloads and hashes the blob, the caller's thread decompresses it, hashes the tar and
//! writes its files. A bounded part of the blob is queued between them.

use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use blocks::Digest;

use crate::Descriptor;
use crate::registry::{RegistryError, Repository};
use crate::unpack::{Implied, Limits, UnpackError, Unpacked, unpack_stream};

/// Bytes that are handed over at once: a network brings some kilobytes at a time, and each hand-over
/// wakes a thread.
const PIECE: usize = 256 << 10;
/// Pieces that wait to be unpacked, 32 MiB in all: a network continues while a disk is slow for a moment.
const PIECES: usize = 128;

/// A layer that is to be downloaded.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// Its blob, as the manifest has it.
    pub blob: &'a Descriptor,
    /// The digest of its tar, as the image's configuration has it.
    pub diff_id: Digest,
    /// The empty directory that it is unpacked into.
    pub into: &'a Path,
    /// The limits of the layer.
    pub limits: Limits,
}

/// Receives the progress of a layer's download, and may cancel it. Called by two threads.
pub trait DownloadWatch: Sync {
    /// Called several times a second with the received bytes of the blob; breaks to cancel.
    fn at(&self, came: u64) -> ControlFlow<()>;

    /// Is given the next bytes of the blob. Nothing is verified before the end.
    fn came(&self, bytes: &[u8]) -> ControlFlow<()>;

    /// Called with the bytes of the tar that were unpacked.
    fn unpacked(&self, bytes: u64) -> ControlFlow<()>;
}

/// Why fetching a layer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IncomingError {
    /// It could not be downloaded.
    #[error(transparent)]
    Registry(RegistryError),
    /// It could not be unpacked.
    #[error(transparent)]
    Unpack(UnpackError),
    /// No thread could be started.
    #[error("cannot start a thread for a download")]
    Thread(#[source] io::Error),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// Downloads a layer and unpacks it meanwhile. Blob and tar are verified when this returns without an
/// error; otherwise, the content of the directory must be discarded.
///
/// # Errors
/// If the registry does not send the blob or sends another one, if the tar is damaged, hostile or
/// larger than allowed, if the directory cannot be written to, or if `watch` cancels.
pub fn fetch_layer(
    repository: &Repository,
    layer: &Incoming<'_>,
    watch: &dyn DownloadWatch,
) -> Result<(Unpacked, Implied), IncomingError> {
    let (sender, pieces) = sync_channel(PIECES);
    std::thread::scope(|scope| {
        let download = Builder::new()
            .name("download".to_owned())
            .spawn_scoped(scope, move || {
                download(repository, layer.blob, &sender, watch)
            })
            .map_err(IncomingError::Thread)?;
        let mut pipe = Pipe::new(pieces);
        let unpacked = unpack_stream(
            &mut pipe,
            layer.diff_id,
            layer.into,
            &layer.limits,
            &mut |bytes| watch.unpacked(bytes),
        );
        let was_cut = pipe.was_cut;
        drop(pipe); // so that a download that nobody takes ends
        let downloaded = download.join().unwrap_or(Err(RegistryError::Cancelled));
        match (downloaded, unpacked) {
            (Ok(()), Ok(unpacked)) => Ok(unpacked),
            (_, Err(UnpackError::Cancelled)) => Err(IncomingError::Cancelled),
            // It was cancelled because of this.
            (Ok(()) | Err(RegistryError::Cancelled), Err(error)) if !was_cut => {
                Err(IncomingError::Unpack(error))
            }
            (Err(RegistryError::Cancelled), _) | (Ok(()), Err(_)) => Err(IncomingError::Cancelled),
            (Err(error), _) => Err(IncomingError::Registry(error)),
        }
    })
}

/// What the thread that downloads hands over.
enum Piece {
    Bytes(Vec<u8>),
    /// The end: all of it was read and verified.
    End,
}

fn download(
    repository: &Repository,
    blob: &Descriptor,
    sender: &SyncSender<Piece>,
    watch: &dyn DownloadWatch,
) -> Result<(), RegistryError> {
    let mut gathered = Vec::with_capacity(PIECE);
    let mut take = |bytes: &[u8]| {
        watch.came(bytes)?;
        gathered.extend_from_slice(bytes);
        if gathered.len() < PIECE {
            return ControlFlow::Continue(());
        }
        let piece = std::mem::replace(&mut gathered, Vec::with_capacity(PIECE));
        match sender.send(Piece::Bytes(piece)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    repository.stream_blob(blob, &mut take, &mut |came| watch.at(came))?;
    for piece in [Piece::Bytes(gathered), Piece::End] {
        // Whoever takes no more has failed, and says why.
        sender.send(piece).map_err(|_| RegistryError::Cancelled)?;
    }
    Ok(())
}

/// The end of the blob where it is read.
struct Pipe {
    pieces: Receiver<Piece>,
    piece: io::Cursor<Vec<u8>>,
    ended: bool,
    /// Whether the other side ended too early.
    was_cut: bool,
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipe")
            .field("ended", &self.ended)
            .field("was_cut", &self.was_cut)
            .finish_non_exhaustive()
    }
}

impl Pipe {
    fn new(pieces: Receiver<Piece>) -> Self {
        Self {
            pieces,
            piece: io::Cursor::default(),
            ended: false,
            was_cut: false,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.piece.read(into)?;
            if count > 0 || self.ended || into.is_empty() {
                return Ok(count);
            }
            match self.pieces.recv() {
                Ok(Piece::Bytes(bytes)) => self.piece = io::Cursor::new(bytes),
                Ok(Piece::End) => self.ended = true,
                Err(_) => {
                    self.was_cut = true;
                    let why = "the download ended too early";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
            }
        }
    }
}
