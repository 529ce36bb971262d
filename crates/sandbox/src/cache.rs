//! What is cached for later use, and which of it is evicted first: decided without any I/O.
//!
//! Zygotes, sandboxes of handlers that wait for their next request, and installed packages are cached. The value of
//! each is the time that it saves, times its recent uses, for each byte that it alone uses.

use std::time::{Duration, Instant};

/// In this time, half of what was of use is forgotten.
const HALF_LIFE: Duration = Duration::from_mins(10);

/// How often something was of use, the longer ago the less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Hits {
    count: f64,
    at: Option<Instant>,
}

impl Hits {
    /// Counts one more use.
    pub fn add(&mut self, now: Instant) {
        self.count = self.count(now) + 1.0;
        self.at = Some(now);
    }

    /// Returns the count.
    pub fn count(&self, now: Instant) -> f64 {
        let age = self
            .at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.count * (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

/// A cached item.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// Its id.
    pub id: String,
    /// The bytes that it alone uses.
    pub bytes: u64,
    /// The time that it saves whenever it is of use, in milliseconds.
    pub saved_ms: f64,
    /// How often it was of use lately.
    pub hits: f64,
    /// The number of cached items that share its memory, which is not freed before they are gone.
    pub children: usize,
}

impl Kept {
    /// The time that it saved for each byte.
    fn worth(&self) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "only the order of quotients counts"
        )]
        let bytes = self.bytes.max(1) as f64;
        self.hits * self.saved_ms / bytes
    }
}

/// Returns which of all is to go first: that which is worth least, of those without children.
pub fn first_to_go(kept: &[Kept]) -> Option<usize> {
    let leaves = kept.iter().enumerate().filter(|(_, one)| one.children == 0);
    let least = leaves.min_by(|(_, a), (_, b)| a.worth().total_cmp(&b.worth()));
    least.map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn kept(bytes: u64, saved_ms: f64, hits: f64, children: usize) -> Kept {
        Kept {
            id: String::new(),
            bytes,
            saved_ms,
            hits,
            children,
        }
    }

    #[test]
    fn who_saves_least_for_its_bytes_goes_first() {
        let all = [
            kept(10, 100.0, 10.0, 0),
            kept(10, 100.0, 2.0, 0),
            kept(10, 10.0, 50.0, 0),
        ];
        assert_eq!(first_to_go(&all), Some(1));
        let all = [kept(1000, 100.0, 10.0, 0), kept(1, 100.0, 2.0, 0)];
        assert_eq!(first_to_go(&all), Some(0));
        // A parent stays, however little it is worth.
        assert_eq!(
            first_to_go(&[kept(1, 0.0, 0.0, 1), kept(1, 9.0, 9.0, 0)]),
            Some(1)
        );
        assert_eq!(first_to_go(&[kept(1, 0.0, 0.0, 1)]), None);
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let start = Instant::now();
        let mut hits = Hits::default();
        assert_eq!(hits.count(start), 0.0);
        hits.add(start);
        hits.add(start);
        assert!((hits.count(start + HALF_LIFE) - 1.0).abs() < 1e-9);
        hits.add(start + HALF_LIFE);
        assert!((hits.count(start + HALF_LIFE) - 2.0).abs() < 1e-9);
    }

    proptest! {
        /// Whatever is kept, in whatever trees: all goes in the end, and nobody before its children.
        #[test]
        fn children_go_before_their_parents(
            nodes in vec((any::<prop::sample::Index>(), any::<bool>(), 0_u64..9, 0.0..9.0, 0.0..9.0), 1..20),
        ) {
            let parents: Vec<Option<usize>> = nodes.iter().enumerate().map(|(place, (parent, has_parent, ..))| {
                (*has_parent && place > 0).then(|| parent.index(place))
            }).collect();
            let mut left: Vec<usize> = (0..nodes.len()).collect();
            while !left.is_empty() {
                let all: Vec<Kept> = left.iter().map(|&place| {
                    let (_, _, bytes, saved_ms, hits) = nodes[place];
                    let children = left.iter().filter(|&&other| parents[other] == Some(place)).count();
                    kept(bytes, saved_ms, hits, children)
                }).collect();
                let first = first_to_go(&all).expect("a tree has leaves");
                let gone = left.remove(first);
                prop_assert!(left.iter().all(|&other| parents[other] != Some(gone)));
            }
        }
    }
}
