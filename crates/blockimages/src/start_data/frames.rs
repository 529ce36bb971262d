//! The compressed frames of the data: decompressed and verified as a whole, and kept for a moment, since a start goes
//! through them in their order.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lsmt::ReadAt as _;
use parking_lot::Mutex;

use super::PlacedPiece;
use super::format::Tables;
use super::proof::Verifier;
use crate::cache::CachedBlob;

/// Frames that are kept: a start reads a few files in turn.
const KEPT: usize = 4;

/// All frames.
#[derive(Debug)]
pub(super) struct Frames {
    blob: Arc<CachedBlob>,
    frames: Vec<Frame>,
    kept: Mutex<VecDeque<(u32, Arc<Vec<u8>>)>>,
    /// Whether the whole was compared with its digest since a part was wrong.
    compared: AtomicBool,
}

/// Some pieces that are compressed together.
#[derive(Debug)]
pub(super) struct Frame {
    /// Bytes of the blob.
    pub(super) stored: Range<u64>,
    /// What is in it: the length of each piece, and what its bytes have to have.
    pieces: Vec<(usize, Verifier)>,
    /// It is not what the tables say.
    wrong: AtomicBool,
}

impl Frames {
    pub(super) fn new(blob: Arc<CachedBlob>, frames: Vec<Frame>) -> Self {
        Self {
            blob,
            frames,
            kept: Mutex::default(),
            compared: AtomicBool::new(false),
        }
    }

    /// Reads a part of a piece; `from` are bytes of the layer.
    ///
    /// # Errors
    /// If it cannot be read, or is wrong.
    pub(super) fn read(&self, piece: &PlacedPiece, from: u64, buffer: &mut [u8]) -> io::Result<()> {
        let frame = self.frame(piece.frame)?;
        let at = u64::from(piece.at) + (from - piece.range.start);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let part = at
            .checked_add(buffer.len())
            .and_then(|end| frame.get(at..end));
        let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(part);
        Ok(())
    }

    fn frame(&self, number: u32) -> io::Result<Arc<Vec<u8>>> {
        let frame = &self.frames[number as usize];
        if frame.wrong.load(Ordering::Acquire) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let known = |kept: &VecDeque<(u32, Arc<Vec<u8>>)>| {
            let found = kept.iter().find(|(known, _)| *known == number);
            found.map(|(_, bytes)| Arc::clone(bytes))
        };
        let kept = known(&self.kept.lock());
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        let len = usize::try_from(frame.stored.end - frame.stored.start);
        let mut stored = vec![0; len.map_err(io::Error::other)?];
        self.blob.read_at(&mut stored, frame.stored.start)?;
        let Some(bytes) = frame.decoded(&stored) else {
            frame.wrong.store(true, Ordering::Release);
            self.note_wrong(number);
            return Err(io::ErrorKind::InvalidData.into());
        };
        let bytes = Arc::new(bytes);
        let mut kept = self.kept.lock();
        if known(&kept).is_none() {
            kept.truncate(KEPT - 1);
            kept.push_front((number, Arc::clone(&bytes)));
        }
        Ok(bytes)
    }

    /// Tells, and has all of it fetched again the next time if it was not fetched right. If it was, who made it was wrong.
    fn note_wrong(&self, number: u32) {
        let digest = self.blob.digest();
        log::warn!(
            "frame {number} of the data of a start, {digest}, is wrong: its blocks are read from the layers"
        );
        if self.compared.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.blob.is_right() {
            Ok(Some(false)) => self.blob.distrust(&(0..u64::MAX)),
            Ok(_) => {}
            Err(error) => log::warn!("cannot compare {digest} with its digest: {error}"),
        }
    }
}

impl Frame {
    /// Returns the frames, given what each piece has to have.
    pub(super) fn of(tables: &Tables, verifiers: Vec<Verifier>) -> Vec<Self> {
        let mut at = tables.bytes() as u64;
        let stored = tables.frames.iter().map(|bytes| {
            let start = at;
            at += u64::from(*bytes);
            start..at
        });
        let frame = |stored| Self {
            stored,
            pieces: Vec::new(),
            wrong: AtomicBool::new(false),
        };
        let mut frames: Vec<_> = stored.map(frame).collect();
        for (piece, verifier) in tables.pieces.iter().zip(verifiers) {
            let len = tables.len_of(piece);
            frames[piece.frame as usize].pieces.push((len, verifier));
        }
        frames
    }

    /// Returns how many bytes are verified in it.
    pub(super) fn verified_bytes(&self) -> u64 {
        let known = self
            .pieces
            .iter()
            .filter(|(_, verifier)| *verifier != Verifier::Unknown);
        known.map(|(len, _)| *len as u64).sum()
    }

    /// Decompresses it; `None` if a piece is wrong.
    pub(super) fn decoded(&self, stored: &[u8]) -> Option<Vec<u8>> {
        let len = self.pieces.iter().map(|(len, _)| len).sum();
        let bytes = zstd::bulk::decompress(stored, len).ok()?;
        let mut rest = (bytes.len() == len).then_some(&bytes[..])?;
        for (len, verifier) in &self.pieces {
            let (piece, others) = rest.split_at_checked(*len)?;
            rest = others;
            // What is of no layer of this image is never read.
            if *verifier != Verifier::Unknown && !verifier.accepts(piece) {
                return None;
            }
        }
        Some(bytes)
    }
}
