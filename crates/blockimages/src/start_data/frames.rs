//! The compressed frames of the data: decompressed and verified as a whole, and kept for a moment, since a start goes
//! through them in their order.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lsmt::ReadAt as _;
use parking_lot::Mutex;

use super::PlacedPiece;
use super::format::{Piece, Tables};
use super::proof::Verifier;
use crate::cache::CachedBlob;
use crate::reads::Reading;

/// Frames that are kept: a start reads a few files in turn.
const KEPT: usize = 4;
/// Frames that are decompressed at the same time.
const DECODED_TOGETHER: usize = 8;

/// How long a reader waits for a frame before it reads the layer. A line of 1 Mbit/s brings one in two seconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long nobody waits for frames after one did not come, at first and at most; twice as long each time.
const PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));

/// All frames.
#[derive(Debug)]
pub(super) struct Frames {
    blob: Arc<CachedBlob>,
    frames: Vec<Frame>,
    kept: Mutex<VecDeque<(u32, Arc<Vec<u8>>)>>,
    /// Who decompresses a frame: the others that want it use what he keeps.
    decoding: [Mutex<()>; DECODED_TOGETHER],
    late: Mutex<Late>,
}

/// Whether what is not in the cache is waited for.
#[derive(Debug, Default)]
struct Late {
    /// Nobody waits for it before.
    until: Option<Instant>,
    /// How often in a row it did not come.
    times: u32,
}

impl Late {
    fn is_now(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Some pieces that are compressed together.
#[derive(Debug)]
pub(super) struct Frame {
    /// Bytes of the blob.
    pub(super) stored: Range<u64>,
    /// What is in it: the length of each piece, and what its bytes have to have.
    pieces: Box<[(usize, Verifier)]>,
    /// It is not what the tables say.
    wrong: AtomicBool,
}

impl Frames {
    pub(super) fn new(blob: Arc<CachedBlob>, frames: Vec<Frame>) -> Self {
        Self {
            blob,
            frames,
            kept: Mutex::default(),
            decoding: Default::default(),
            late: Mutex::default(),
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
        self.stored(&mut stored, frame.stored.start)?;
        let _decoding = self.decoding[number as usize % DECODED_TOGETHER].lock();
        let kept = known(&self.kept.lock());
        if let Some(bytes) = kept {
            return Ok(bytes);
        }
        let bytes = self.decoded(number, &stored);
        let bytes = Arc::new(bytes.ok_or(io::ErrorKind::InvalidData)?);
        let mut kept = self.kept.lock();
        if known(&kept).is_none() {
            kept.truncate(KEPT - 1);
            kept.push_front((number, Arc::clone(&bytes)));
        }
        Ok(bytes)
    }

    /// Returns whether all frames that are used are in the cache, and right.
    pub(super) fn are_right(&self) -> bool {
        let is_right = |(number, frame): (u32, &Frame)| {
            let cached = || {
                let len = usize::try_from(frame.stored.end - frame.stored.start).ok()?;
                let mut stored = vec![0; len];
                let is_here = self.blob.read_cached(&mut stored, frame.stored.start);
                is_here.then(|| self.decoded(number, &stored))?
            };
            frame.verified_bytes() == 0 || cached().is_some()
        };
        (0..).zip(&self.frames).all(is_right)
    }

    /// Decompresses a frame; `None` if it is wrong.
    fn decoded(&self, number: u32, stored: &[u8]) -> Option<Vec<u8>> {
        let frame = &self.frames[number as usize];
        let decoded = frame.decoded(stored);
        if decoded.is_none() && !frame.wrong.swap(true, Ordering::AcqRel) {
            self.note_wrong(number);
        }
        decoded
    }

    /// Reads the bytes of a frame: from the cache, or from who brings them soon.
    fn stored(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        if self.blob.read_cached(buffer, at) {
            return Ok(());
        }
        if self.is_late() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let hint = Reading::of_hint(PATIENCE, self.blob.read_deadline());
        let read = self.blob.read_at(buffer, at);
        drop(hint);
        match &read {
            Ok(()) => *self.late.lock() = Late::default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.note_late(error),
        }
        read
    }

    /// Returns whether nobody waits for what is not in the cache.
    pub(super) fn is_late(&self) -> bool {
        self.late.lock().is_now()
    }

    fn note_late(&self, error: &io::Error) {
        let mut late = self.late.lock();
        if late.is_now() {
            return;
        }
        let pause = PAUSE.0.saturating_mul(1 << late.times.min(10)).min(PAUSE.1);
        *late = Late {
            until: Some(Instant::now() + pause),
            times: late.times.saturating_add(1),
        };
        drop(late);
        log::warn!(
            "the data of a start, {}, does not come: {error}; for {} s the layers are read instead",
            self.blob.digest(),
            pause.as_secs()
        );
    }

    /// Tells, and has it fetched again the next time: the server may have sent something else, or who made it was wrong.
    fn note_wrong(&self, number: u32) {
        let digest = self.blob.digest();
        log::warn!(
            "frame {number} of the data of a start, {digest}, is wrong: its blocks are read from the layers"
        );
        self.blob.forget(&self.frames[number as usize].stored);
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
        // They are in the order of the frames.
        let mut pieces = tables.pieces.iter().zip(verifiers).peekable();
        let frame = |(number, stored)| {
            let own = |(piece, _): &(&Piece, _)| piece.frame == number;
            let own = std::iter::from_fn(|| pieces.next_if(own));
            Self {
                stored,
                pieces: own
                    .map(|(piece, verifier)| (tables.len_of(piece), verifier))
                    .collect(),
                wrong: AtomicBool::new(false),
            }
        };
        (0..).zip(stored).map(frame).collect()
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
