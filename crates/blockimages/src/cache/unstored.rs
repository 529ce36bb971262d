//! Chunks that came and could not be written: the newest are kept in memory, for those who wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ranges::Server;

/// Bytes of all chunks together.
const ROOM: usize = 16 << 20;

/// Bytes of these that may have come for plans: what is on its way then has room, too, and drives out nothing that somebody
/// is about to read.
pub(super) const AHEAD_BYTES: u64 = ROOM as u64 - super::ROOM_BYTES;

/// The number of a blob, and of a chunk of it.
pub(super) type Name = (u64, u32);

#[derive(Debug)]
struct Kept {
    content: Arc<[u8]>,
    from: Server,
    /// Its place in the order.
    turn: u64,
}

/// The chunks of all blobs of a cache that are in no file.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    chunks: BTreeMap<Name, Kept>,
    /// In the order in which they came.
    order: BTreeMap<u64, Name>,
    turns: u64,
    bytes: usize,
}

impl Unstored {
    pub(super) fn keep(&mut self, name: Name, content: &[u8], from: Server) {
        self.remove(name);
        self.turns += 1;
        let turn = self.turns;
        self.bytes += content.len();
        let content = content.into();
        let kept = Kept {
            content,
            from,
            turn,
        };
        self.chunks.insert(name, kept);
        self.order.insert(turn, name);
        while self.bytes > ROOM
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.remove(oldest);
        }
    }

    pub(super) fn get(&self, name: Name) -> Option<Arc<[u8]>> {
        Some(Arc::clone(&self.chunks.get(&name)?.content))
    }

    /// Removes a chunk, and returns who sent it.
    pub(super) fn remove(&mut self, name: Name) -> Option<Server> {
        let kept = self.chunks.remove(&name)?;
        self.order.remove(&kept.turn);
        self.bytes -= kept.content.len();
        Some(kept.from)
    }

    /// Removes all chunks of a blob.
    pub(super) fn forget(&mut self, blob: u64) {
        let of_blob = self.chunks.range((blob, 0)..=(blob, u32::MAX));
        let names: Vec<_> = of_blob.map(|(name, _)| *name).collect();
        for name in names {
            self.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_no_more_than_there_is_room_for() {
        let mut unstored = Unstored::default();
        let chunk = vec![1; ROOM / 4];
        for number in 0..6 {
            unstored.keep((7, number), &chunk, Server(1));
        }
        unstored.keep((7, 2), &[2], Server(2));
        let here = |unstored: &Unstored| (0..6).filter(|n| unstored.get((7, *n)).is_some()).count();
        assert_eq!((here(&unstored), unstored.bytes), (4, ROOM / 4 * 3 + 1));
        unstored.keep((8, 0), &chunk, Server(3));
        assert!(unstored.get((7, 3)).is_none(), "the oldest");
        assert_eq!(unstored.remove((7, 2)), Some(Server(2)));
        unstored.forget(7);
        assert_eq!((here(&unstored), unstored.bytes), (0, ROOM / 4));
        assert_eq!(unstored.remove((8, 0)), Some(Server(3)));
        assert_eq!((unstored.bytes, unstored.order.len()), (0, 0));
    }
}
