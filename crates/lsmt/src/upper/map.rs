//! What a writable layer has, in memory: the latest of each sector.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::segment::{Content, SEGMENT_SECTORS_MAX, Segment};

/// Segments by their first sector; they do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Map {
    segments: BTreeMap<u64, Segment>,
    live: u64,
}

impl Map {
    /// Adds a segment, over existing ones.
    pub(crate) fn insert(&mut self, new: Segment) {
        self.clear(new.offset()..new.end());
        self.add(self.joined(new));
    }

    /// Joins it with the one before, if it begins where that ends, so that the map stays small.
    fn joined(&self, new: Segment) -> Segment {
        match self.segments.range(..new.offset()).next_back() {
            Some((_, &last))
                if last.continued_by(new)
                    && last.sectors() + new.sectors() <= SEGMENT_SECTORS_MAX =>
            {
                let len = last.sectors() + new.sectors();
                Segment::new(last.offset(), len, last.moffset(), last.content())
            }
            _ => new,
        }
    }

    fn add(&mut self, segment: Segment) {
        let live = |segment: &Segment| match segment.content() {
            Content::Data => segment.sectors(),
            Content::Zeros => 0,
        };
        self.live += live(&segment);
        if let Some(old) = self.segments.insert(segment.offset(), segment) {
            self.live -= live(&old);
        }
    }

    fn remove(&mut self, start: u64) {
        if let Some(old) = self.segments.remove(&start)
            && old.content() == Content::Data
        {
            self.live -= old.sectors();
        }
    }

    fn clear(&mut self, sectors: Range<u64>) {
        for old in self.whole(sectors.clone()) {
            self.remove(old.offset());
            if old.offset() < sectors.start {
                self.add(old.clipped(old.offset(), sectors.start));
            }
            if old.end() > sectors.end {
                self.add(old.clipped(sectors.end, old.end()));
            }
        }
    }

    /// Returns the segments that have at least one of the sectors.
    fn whole(&self, sectors: Range<u64>) -> Vec<Segment> {
        if sectors.is_empty() {
            return Vec::new();
        }
        let before = self.segments.range(..sectors.start).next_back();
        let before = before.filter(|(_, segment)| segment.end() > sectors.start);
        let within = self.segments.range(sectors);
        before
            .into_iter()
            .chain(within)
            .map(|(_, &segment)| segment)
            .collect()
    }

    /// Returns the parts of segments within the sectors, in order.
    pub(crate) fn within(&self, sectors: Range<u64>) -> Vec<Segment> {
        let mut parts = self.whole(sectors.clone());
        for part in &mut parts {
            *part = part.clipped(sectors.start, sectors.end);
        }
        parts
    }

    /// Returns all segments, in order.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        self.segments.values().copied().collect()
    }

    /// Returns how many sectors have data.
    pub(crate) fn live_sectors(&self) -> u64 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_what_a_table_of_sectors_is(
            writes in prop::collection::vec((0..60_u64, 1..20_u64, any::<bool>()), 0..40),
        ) {
            let mut map = Map::default();
            let mut table: Vec<Option<(Content, u64)>> = vec![None; 100];
            let mut place = 8;
            for (offset, len, zeros) in writes {
                let content = match zeros {
                    true => Content::Zeros,
                    false => Content::Data,
                };
                map.insert(Segment::new(offset, len, place, content));
                for sector in offset..offset + len {
                    let at = match zeros {
                        true => 0,
                        false => place + sector - offset,
                    };
                    table[usize::try_from(sector).unwrap()] = Some((content, at));
                }
                place += match zeros {
                    true => 0,
                    false => len,
                };
                let mut found = vec![None; 100];
                for part in map.within(0..100) {
                    for sector in part.offset()..part.end() {
                        let at = match part.content() {
                            Content::Zeros => 0,
                            Content::Data => part.moffset() + sector - part.offset(),
                        };
                        found[usize::try_from(sector).unwrap()] = Some((part.content(), at));
                    }
                }
                prop_assert_eq!(&found, &table);
                let data = table.iter().flatten().filter(|(content, _)| *content == Content::Data);
                prop_assert_eq!(map.live_sectors(), data.count() as u64);
            }
        }
    }
}
