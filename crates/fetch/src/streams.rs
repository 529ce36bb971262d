//! What streams will bring, and how many bytes are ahead of each piece.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::exchange::{Peer, StreamId};
use crate::want::{Key, Piece};

/// What is known of one place of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It will come.
    Coming,
    /// The sender was notified not to send it.
    Skipped,
    /// It came, or never will.
    Over,
}

/// A stream that a peer sends.
#[derive(Debug)]
struct Stream<K> {
    peer: Peer,
    /// When its first piece comes at the earliest.
    begins: Duration,
    places: Vec<(Piece<K>, Place)>,
    remaining: Remaining,
    coming: usize,
    skips: Vec<K>,
    /// Pieces that the sender is to send next.
    promotions: Vec<K>,
    /// Pieces that it was, or is to be, requested to send first.
    promoted: HashSet<K>,
}

/// All streams, and which of them brings a key.
#[derive(Debug)]
pub(crate) struct Streams<K> {
    streams: BTreeMap<StreamId, Stream<K>>,
    places: HashMap<K, (StreamId, usize)>,
}

impl<K: Key> Streams<K> {
    pub(crate) fn new() -> Self {
        Self {
            streams: BTreeMap::new(),
            places: HashMap::new(),
        }
    }

    /// Records the pieces that a stream will bring, behind those that it promised before, and returns those that were
    /// not promised yet. Pieces beyond `limit` in all are left out.
    pub(crate) fn promise(
        &mut self,
        peer: Peer,
        id: StreamId,
        begins: Duration,
        pieces: &[Piece<K>],
        limit: usize,
    ) -> Vec<Piece<K>> {
        let stream = self.streams.entry(id).or_insert_with(|| Stream {
            peer,
            begins,
            places: Vec::new(),
            remaining: Remaining::default(),
            coming: 0,
            skips: Vec::new(),
            promotions: Vec::new(),
            promoted: HashSet::new(),
        });
        let mut fresh = Vec::new();
        for piece in pieces {
            if self.places.len() >= limit {
                break;
            }
            match self.places.get(&piece.key) {
                None => {
                    self.places.insert(piece.key, (id, stream.places.len()));
                    stream.places.push((*piece, Place::Coming));
                    stream.remaining.push(u64::from(piece.bytes));
                    stream.coming += 1;
                    fresh.push(*piece);
                }
                // Another stream brings it.
                Some((other, _)) if *other != id => stream.skips.push(piece.key),
                Some(_) => {}
            }
        }
        fresh
    }

    /// Returns the sender that will bring a key, and the bytes up to its end that come first.
    pub(crate) fn coming(&self, key: &K) -> Option<(StreamId, Peer, u64)> {
        let &(id, at) = self.places.get(key)?;
        let stream = self.streams.get(&id)?;
        let (piece, place) = stream.places[at];
        let ahead = match stream.promoted.contains(key) {
            true => u64::from(piece.bytes),
            false => stream.remaining.up_to(at),
        };
        (place == Place::Coming).then_some((id, stream.peer, ahead))
    }

    /// Returns when the first piece of a stream comes at the earliest.
    pub(crate) fn begins(&self, id: StreamId) -> Duration {
        let stream = self.streams.get(&id);
        stream.map_or(Duration::ZERO, |stream| stream.begins)
    }

    /// Requests that a key is sent before the rest of its stream, and returns whether that is possible.
    pub(crate) fn promote(&mut self, key: &K) -> bool {
        let Some((id, ..)) = self.coming(key) else {
            return false;
        };
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.promoted.insert(*key)
        {
            stream.promotions.push(*key);
        }
        true
    }

    /// Records that a key is not needed from its stream, and queues the message for the sender. Returns
    /// whether a stream was going to bring it.
    pub(crate) fn skip(&mut self, key: &K) -> bool {
        let Some((id, _)) = self.settle(key, Place::Skipped) else {
            return false;
        };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.skips.push(*key);
        }
        true
    }

    /// Records that a stream brought a key, or reported that it will not; returns its length if it was
    /// expected.
    pub(crate) fn came(&mut self, id: StreamId, key: &K) -> Option<u32> {
        self.places.get(key).filter(|(owner, _)| *owner == id)?;
        let expected = self.settle(key, Place::Over);
        self.places.remove(key);
        expected.map(|(_, bytes)| bytes)
    }

    /// Changes a place that was coming; returns its stream and length if it was.
    fn settle(&mut self, key: &K, to: Place) -> Option<(StreamId, u32)> {
        let &(id, at) = self.places.get(key)?;
        let stream = self.streams.get_mut(&id)?;
        let (piece, place) = &mut stream.places[at];
        if *place != Place::Coming {
            return None;
        }
        *place = to;
        stream.coming -= 1;
        stream.promoted.remove(key);
        stream.remaining.take(at, u64::from(piece.bytes));
        Some((id, piece.bytes))
    }

    /// Removes a stream, and returns the pieces that did not arrive.
    pub(crate) fn end(&mut self, id: StreamId) -> Option<(Peer, Vec<K>)> {
        let stream = self.streams.remove(&id)?;
        let mut missing = Vec::new();
        for (piece, place) in &stream.places {
            if *place != Place::Over {
                self.places.remove(&piece.key);
            }
            if *place == Place::Coming {
                missing.push(piece.key);
            }
        }
        Some((stream.peer, missing))
    }

    /// Returns what a stream will bring.
    pub(crate) fn expected_of(&self, id: StreamId) -> Vec<K> {
        self.streams
            .get(&id)
            .into_iter()
            .flat_map(|stream| &stream.places)
            .filter(|(_, place)| *place == Place::Coming)
            .map(|(piece, _)| piece.key)
            .collect()
    }

    /// Returns the streams of a peer.
    pub(crate) fn ids_of(&self, peer: Peer) -> Vec<StreamId> {
        self.of(peer).map(|(id, _)| *id).collect()
    }

    /// Whether a peer owes something on a stream.
    pub(crate) fn owes(&self, peer: Peer) -> bool {
        self.of(peer).any(|(_, stream)| stream.coming > 0)
    }

    fn of(&self, peer: Peer) -> impl Iterator<Item = (&StreamId, &Stream<K>)> {
        self.streams
            .iter()
            .filter(move |(_, stream)| stream.peer == peer)
    }

    /// Takes up to `most` keys that a sender is to be requested to skip.
    pub(crate) fn next_skip(&mut self, most: usize) -> Option<(Peer, StreamId, Vec<K>)> {
        let (id, stream) = self
            .streams
            .iter_mut()
            .find(|(_, stream)| !stream.skips.is_empty())?;
        let rest = stream.skips.split_off(most.min(stream.skips.len()));
        let keys = std::mem::replace(&mut stream.skips, rest);
        Some((stream.peer, *id, keys))
    }

    /// Takes up to `most` keys that a sender is to be requested to send next.
    pub(crate) fn next_promotion(&mut self, most: usize) -> Option<(Peer, StreamId, Vec<K>)> {
        let (id, stream) = self
            .streams
            .iter_mut()
            .find(|(_, stream)| !stream.promotions.is_empty())?;
        let rest = stream
            .promotions
            .split_off(most.min(stream.promotions.len()));
        let keys = std::mem::replace(&mut stream.promotions, rest);
        Some((stream.peer, *id, keys))
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.places.len()
    }
}

/// Sums of the bytes that remain, as a Fenwick tree: each query and change takes logarithmic time.
#[derive(Debug, Default)]
struct Remaining(Vec<u64>);

impl Remaining {
    /// Appends a place of `bytes`.
    fn push(&mut self, bytes: u64) {
        let at = self.0.len() + 1;
        let covered = at - lowest_bit(at);
        // The nodes below this one cover the rest of its span.
        let mut sum = bytes;
        let mut child = at - 1;
        while child > covered {
            sum += self.0[child - 1];
            child -= lowest_bit(child);
        }
        self.0.push(sum);
    }

    /// Takes `bytes` from the place `index`.
    fn take(&mut self, index: usize, bytes: u64) {
        let mut at = index + 1;
        while at <= self.0.len() {
            self.0[at - 1] -= bytes;
            at += lowest_bit(at);
        }
    }

    /// Returns the bytes of all places up to `index`, which counts.
    fn up_to(&self, index: usize) -> u64 {
        let mut at = index + 1;
        let mut sum = 0;
        while at > 0 {
            sum += self.0[at - 1];
            at -= lowest_bit(at);
        }
        sum
    }
}

const fn lowest_bit(number: usize) -> usize {
    number & number.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_bytes_are_those_of_a_plain_sum() {
        let mut tree = Remaining::default();
        let mut plain: Vec<u64> = Vec::new();
        for place in 0..100 {
            tree.push(place * 7 + 1);
            plain.push(place * 7 + 1);
            for at in (0..plain.len()).step_by(3) {
                assert_eq!(tree.up_to(at), plain[..=at].iter().sum::<u64>());
            }
        }
        for at in (0..100).rev().step_by(7) {
            tree.take(at, plain[at]);
            plain[at] = 0;
            assert_eq!(tree.up_to(99), plain.iter().sum::<u64>());
            assert_eq!(tree.up_to(at), plain[..=at].iter().sum::<u64>());
        }
    }

    #[test]
    fn what_was_skipped_is_not_ahead_any_more() {
        let (peer, id) = (Peer(0), StreamId(1));
        let mut streams = Streams::new();
        let pieces = [10, 20, 40].map(|bytes| Piece { key: bytes, bytes });
        assert_eq!(
            streams
                .promise(peer, id, Duration::ZERO, &pieces, 100)
                .len(),
            3
        );
        assert_eq!(streams.coming(&40), Some((id, peer, 70)));
        assert!(streams.skip(&20));
        assert!(!streams.skip(&20));
        assert_eq!(streams.came(id, &10), Some(10));
        assert_eq!(streams.coming(&40), Some((id, peer, 40)));
        assert_eq!(streams.next_skip(64), Some((peer, id, vec![20])));
        assert_eq!(streams.next_skip(64), None);
        assert!(streams.promote(&40) && streams.promote(&40) && !streams.promote(&20));
        assert_eq!(streams.next_promotion(64), Some((peer, id, vec![40])));
        assert_eq!(streams.next_promotion(64), None);
        // It was sent before the message came.
        assert_eq!(streams.came(id, &20), None);
        assert_eq!(streams.end(id), Some((peer, vec![40])));
        assert_eq!(streams.len(), 0);
    }
}
