//! The content of a layer, with what the data of a start has of it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use lsmt::{Expected, ReadAt};

use super::{LayerPieces, StartData};

/// A layer's content: from the data of the start what is there, and all else from the layer.
pub(crate) struct StartedContent {
    pub(crate) data: Arc<StartData>,
    pub(crate) pieces: LayerPieces,
    pub(crate) rest: Arc<dyn ReadAt>,
    /// Is called when something had to be read of the layer that should be in the data.
    pub(crate) missed: Box<dyn Fn() + Send + Sync>,
}

impl ReadAt for StartedContent {
    fn size(&self) -> io::Result<u64> {
        Ok(self.pieces.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.pieces.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let (mut at, mut left) = (offset, buffer);
        for piece in self.pieces.within(&(offset..end)) {
            let (from, to) = (piece.range.start.max(at), piece.range.end.min(end));
            let (before, others) = left.split_at_mut(len(at..from));
            let (part, others) = others.split_at_mut(len(from..to));
            if !before.is_empty() {
                self.rest.read_at(before, at)?;
            }
            match self.data.frames.read(piece, from, part) {
                Ok(()) => {}
                // It comes, and this thread may not wait for it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {
                    self.rest.read_at(part, from)?;
                    (self.missed)();
                }
            }
            (at, left) = (to, others);
        }
        match left.is_empty() {
            true => Ok(()),
            false => self.rest.read_at(left, at),
        }
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        // What is in the data comes in its order; a read that is ahead of it asks for its frame.
        let is_late = self.data.frames.is_late();
        let missing = |range: &&Range<u64>| is_late || self.pieces.within(range).is_empty();
        let missing: Vec<_> = ranges.iter().filter(missing).cloned().collect();
        (!missing.is_empty()).then(|| self.rest.expect(&missing))?
    }
}

fn len(range: Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}
