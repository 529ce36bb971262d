//! Makes ranges of pieces: neighbours together, and over a gap what costs less than another request.

use std::ops::Range;

use fetch::LinkState;

use crate::place::Layout;

/// Returns the longest gap in bytes that costs less than a request: a request takes one of `parallel` turns for a
/// round trip, in which the line could bring as much.
pub(crate) fn cheap_gap(link: LinkState, parallel: usize) -> u64 {
    let micros = u64::try_from(link.rtt.as_micros()).unwrap_or(u64::MAX);
    let round_trip = link.rate.saturating_mul(micros) / 1_000_000;
    round_trip / (parallel as u64).max(1)
}

/// Joins pieces of one blob that follow each other.
pub(crate) fn join(mut pieces: Vec<u32>) -> Vec<Range<u32>> {
    pieces.sort_unstable();
    let mut runs: Vec<Range<u32>> = Vec::new();
    for piece in pieces {
        let next = piece.saturating_add(1);
        match runs.last_mut() {
            Some(run) if run.end == piece => run.end = next,
            _ => runs.push(piece..next),
        }
    }
    runs
}

/// Cuts the bytes of a run into its pieces.
#[derive(Debug)]
pub(crate) struct Cutter {
    layout: Layout,
    next: u32,
    end: u32,
    begun: Vec<u8>,
}

impl Cutter {
    pub(crate) const fn new(layout: Layout, pieces: &Range<u32>) -> Self {
        Self {
            layout,
            next: pieces.start,
            end: pieces.end,
            begun: Vec::new(),
        }
    }

    /// Returns the first piece that did not come.
    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

    /// Takes the next bytes, and calls `whole` for each piece that they complete.
    pub(crate) fn take(&mut self, mut bytes: &[u8], whole: &mut dyn FnMut(u32, Vec<u8>)) {
        while !bytes.is_empty() && self.next < self.end {
            let len = self.layout.len(self.next) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(len - self.begun.len()));
            self.begun.reserve_exact(len - self.begun.len());
            self.begun.extend_from_slice(now);
            bytes = later;
            if self.begun.len() == len {
                whole(self.next, std::mem::take(&mut self.begun));
                self.next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LAYOUT: Layout = Layout {
        size: 95,
        piece_bytes: 10,
    };

    #[test]
    fn neighbours_go_together() {
        assert_eq!(join(vec![3, 1, 2, 7]), [1..4, 7..8]);
        assert_eq!(join(vec![]), []);
    }

    #[test]
    fn a_gap_costs_what_a_request_costs() {
        let link = LinkState {
            rtt: Duration::from_millis(20),
            rate: 3_000_000,
            window_bytes: 0,
            in_flight_bytes: 0,
        };
        assert_eq!(cheap_gap(link, 1), 60_000);
        assert_eq!(cheap_gap(link, 16), 3750);
    }

    #[test]
    fn bytes_are_cut_into_pieces_and_the_last_one_is_short() {
        let mut cutter = Cutter::new(LAYOUT, &(7..10));
        let mut got = Vec::new();
        for part in [&[1; 4][..], &[2; 13], &[3; 8], &[4; 9]] {
            cutter.take(part, &mut |piece, bytes| got.push((piece, bytes.len())));
        }
        assert_eq!(got, [(7, 10), (8, 10), (9, 5)]);
        assert_eq!(cutter.next(), 10);
    }
}
