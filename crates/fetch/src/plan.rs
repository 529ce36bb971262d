//! A plan: pieces in the order in which they are needed, and which of them are lacking.

use std::collections::HashSet;

use crate::exchange::StreamId;
use crate::want::{Key, Piece};

/// The plan of a source.
#[derive(Debug)]
pub(crate) struct Plan<K> {
    pieces: Vec<Piece<K>>,
    lacking: HashSet<K>,
    /// Nothing before this place is lacking.
    first: usize,
    /// The stream that brings it.
    pub(crate) stream: Option<StreamId>,
}

impl<K: Key> Plan<K> {
    /// Returns a plan that lacks the pieces for which `lacks` holds, and the rest of which `stream` brings.
    pub(crate) fn new(
        pieces: &[Piece<K>],
        stream: Option<StreamId>,
        lacks: impl Fn(&K) -> bool,
    ) -> Self {
        let keys = pieces.iter().map(|piece| piece.key);
        Self {
            pieces: pieces.to_vec(),
            lacking: keys.filter(|key| lacks(key)).collect(),
            first: 0,
            stream,
        }
    }

    /// Records that a piece is here.
    pub(crate) fn came(&mut self, key: &K) {
        self.lacking.remove(key);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.lacking.is_empty()
    }

    /// Returns whether a piece is here, or is none of the plan's.
    pub(crate) fn has(&self, key: &K) -> bool {
        !self.lacking.contains(key)
    }

    /// Returns the place of the first lacking piece, and the pieces from there on.
    pub(crate) fn rest(&mut self) -> (usize, Vec<Piece<K>>) {
        let left = self.pieces.iter().skip(self.first);
        self.first += left.take_while(|piece| self.has(&piece.key)).count();
        let rest = self.pieces.get(self.first..).unwrap_or_default();
        (self.first, rest.to_vec())
    }
}
