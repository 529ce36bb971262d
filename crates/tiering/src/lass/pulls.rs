//! Pulls as they are seen from outside an engine, and where a layer goes that one of them makes.

use std::collections::{BTreeMap, HashSet};

use blocks::Digest;

/// Pulls that are followed at once. Engines run some tens; who begins more never ends them.
const PULLS_MAX: usize = 1024;
/// Blobs of one pull: as many as an image has layers, at most.
pub(super) const BLOBS_MAX: usize = 500;

/// One pull of an image, as long as it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PullId(pub u64);

/// On which side of the boundary a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is stored while the network still has work: below the last downloading layer.
    Below,
    /// Its storing begins while the network is still busy, but the disk would not be done with it
    /// when the download ends. Only [`weigh`](super::weigh) returns this.
    Late,
    /// It is stored after the last download has ended, and waited for: the last downloading
    /// layer, or one above it.
    LastOrAbove,
    /// It is not known which pull it belongs to, and the pulls differ; or no pull is known.
    Unknown,
}

/// Where a layer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To fast memory.
    Fast,
    /// To the disk.
    Slow,
}

/// There are too many pulls, or one has too many blobs. Layers of pulls that are not followed are
/// [unknown](Part::Unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {most} {what}")]
pub struct PullsFull {
    /// The kind of excess.
    pub what: &'static str,
    /// The limit.
    pub most: usize,
}

/// What all pulls of an engine still have to fetch.
///
/// A layer is classified when the first file is made in it, and not when its directory is:
/// containerd makes that before it has the layer. Layers may be stored one after another or
/// several at once; the question is the same: is the network still busy with the pull?
#[derive(Clone, Debug, Default)]
pub struct Pulls {
    missing: BTreeMap<PullId, HashSet<Digest>>,
}

impl Pulls {
    /// Begins to follow a pull that has to fetch `blobs`: those of its layers that the engine
    /// has not yet. One that is followed already begins anew.
    ///
    /// # Errors
    /// If there are too many; the pull is then not followed.
    pub fn begin(
        &mut self,
        pull: PullId,
        blobs: impl IntoIterator<Item = Digest>,
    ) -> Result<(), PullsFull> {
        self.missing.remove(&pull);
        let full = |what, most| Err(PullsFull { what, most });
        if self.missing.len() >= PULLS_MAX {
            return full("pulls at once", PULLS_MAX);
        }
        let mut missing = HashSet::new();
        for blob in blobs {
            missing.insert(blob);
            if missing.len() > BLOBS_MAX {
                return full("blobs in a pull", BLOBS_MAX);
            }
        }
        self.missing.insert(pull, missing);
        Ok(())
    }

    /// Notes that a blob is complete: for every pull that waits for it, as engines fetch it
    /// once.
    pub fn fetched(&mut self, blob: Digest) {
        for missing in self.missing.values_mut() {
            missing.remove(&blob);
        }
    }

    /// Notes that a pull fetches a blob again, because it was damaged or lost.
    pub fn fetches_again(&mut self, pull: PullId, blob: Digest) {
        if let Some(missing) = self.missing.get_mut(&pull)
            && missing.len() < BLOBS_MAX
        {
            missing.insert(blob);
        }
    }

    /// Ends a pull, whether it succeeded or not.
    pub fn end(&mut self, pull: PullId) {
        self.missing.remove(&pull);
    }

    /// Returns how many pulls are followed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.missing.len()
    }

    /// Returns whether no pull is followed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// Classifies a layer in which the first file is made now, and which belongs to `pull`; if that is
    /// unknown, to any pull.
    #[must_use]
    pub fn first_file(&self, pull: Option<PullId>) -> Part {
        let part = |missing: &HashSet<Digest>| match missing.is_empty() {
            true => Part::LastOrAbove,
            false => Part::Below,
        };
        if let Some(pull) = pull {
            return self.missing.get(&pull).map_or(Part::Unknown, part);
        }
        let mut parts = self.missing.values().map(part);
        match parts.next() {
            Some(first) if parts.all(|other| other == first) => first,
            _ => Part::Unknown,
        }
    }
}

/// Decides where a layer goes that takes `layer_bytes`, with `room_bytes` left in the budget of
/// fast memory.
///
/// An unknown layer goes to fast memory while there is space: if that was wrong, it costs space
/// until the layer is moved.
#[must_use]
pub const fn place(part: Part, layer_bytes: u64, room_bytes: u64) -> Placement {
    match part {
        Part::Below => Placement::Slow,
        _ if layer_bytes <= room_bytes => Placement::Fast,
        Part::Late | Part::LastOrAbove | Part::Unknown => Placement::Slow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(number: u8) -> Digest {
        Digest([number; 32])
    }

    fn pulls(of: &[(u64, &[u8])]) -> Pulls {
        let mut pulls = Pulls::default();
        for (pull, blobs) in of {
            let blobs = blobs.iter().map(|number| blob(*number));
            pulls.begin(PullId(*pull), blobs).unwrap();
        }
        pulls
    }

    #[test]
    fn a_layer_is_below_as_long_as_its_pull_misses_something() {
        let mut pulls = pulls(&[(1, &[1, 2])]);
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::Below);
        pulls.fetched(blob(1));
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::Below);
        pulls.fetched(blob(2));
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::LastOrAbove);
        pulls.fetches_again(PullId(1), blob(2));
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::Below);
        pulls.end(PullId(1));
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::Unknown);
        assert!(pulls.is_empty());
    }

    #[test]
    fn a_layer_of_who_knows_which_pull_is_known_where_all_agree() {
        let mut pulls = pulls(&[(1, &[1, 2]), (2, &[2, 3])]);
        assert_eq!(pulls.first_file(None), Part::Below);
        pulls.fetched(blob(1));
        pulls.fetched(blob(2));
        assert_eq!(pulls.first_file(None), Part::Unknown, "they differ");
        assert_eq!(pulls.first_file(Some(PullId(1))), Part::LastOrAbove);
        assert_eq!(pulls.first_file(Some(PullId(2))), Part::Below);
        pulls.fetched(blob(3));
        assert_eq!(pulls.first_file(None), Part::LastOrAbove);
        assert_eq!(Pulls::default().first_file(None), Part::Unknown);
    }

    #[test]
    fn pulls_and_their_blobs_are_bounded() {
        let mut pulls = Pulls::default();
        for pull in 0..1024 {
            pulls.begin(PullId(pull), [blob(1)]).unwrap();
        }
        let full = pulls.begin(PullId(5000), [blob(1)]).unwrap_err();
        assert_eq!(full.to_string(), "more than 1024 pulls at once");
        assert_eq!(pulls.first_file(Some(PullId(5000))), Part::Unknown);
        // One that begins anew needs no more room than it had.
        pulls.begin(PullId(7), [blob(2)]).unwrap();
        assert_eq!(pulls.len(), 1024);
        let many = (0..501u32).map(|number| {
            let mut digest = [0; 32];
            digest[..4].copy_from_slice(&number.to_le_bytes());
            Digest(digest)
        });
        assert!(pulls.begin(PullId(7), many).is_err());
        assert_eq!(pulls.len(), 1023);
    }

    #[test]
    fn what_is_waited_for_goes_to_fast_memory_while_there_is_room() {
        assert_eq!(place(Part::Below, 1, 100), Placement::Slow);
        for part in [Part::Late, Part::LastOrAbove, Part::Unknown] {
            assert_eq!(place(part, 100, 100), Placement::Fast);
            assert_eq!(place(part, 101, 100), Placement::Slow);
        }
    }
}
