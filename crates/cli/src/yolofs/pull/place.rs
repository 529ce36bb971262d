//! Where a layer goes, told when its download begins (docs/tiering.md).

use std::collections::BTreeMap;

use tiering::Rate;
use tiering::lass::{Arriving, Disk, Line, Place, streamed};

/// What a layer unpacks to for each byte, until some have shown it.
const RATIO: u64 = 3;
/// Bytes of layers that show it.
const TELLING: u64 = 1 << 20;

/// A layer whose download has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// Bytes of its blob that came.
    pub(super) came: u64,
    /// Bytes of its tar that were unpacked.
    pub(super) unpacked: u64,
    /// Where it goes.
    pub(super) place: Place,
}

/// Returns the place of the layer `at`, whose download is about to begin: fast memory, if the disk would
/// not be done with it when all of the download is. Of the layers, whose blobs have these `sizes`, some
/// have `begun`. `None` if it cannot be told.
pub(super) fn weighed(
    at: usize,
    sizes: &[u64],
    begun: &BTreeMap<usize, Begun>,
    line: &Line,
    disk: &Disk,
    room: u64,
) -> Option<Place> {
    let (came, unpacked) = begun.values().fold((0, 0), |(came, unpacked), of| {
        (came + of.came, unpacked + of.unpacked)
    });
    let unpacks_to = |archive: u64| match came {
        ..TELLING => archive.saturating_mul(RATIO),
        _ => {
            let bytes = u128::from(archive) * u128::from(unpacked) / u128::from(came);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        }
    };
    let (mut layers, mut ours) = (Vec::new(), None);
    for (index, size) in sizes.iter().enumerate() {
        let known = begun.get(&index);
        let archive = size.saturating_sub(known.map_or(0, |of| of.came));
        if known.is_some() && archive == 0 {
            continue;
        }
        if index == at {
            ours = Some(layers.len());
        }
        layers.push(Arriving {
            archive,
            unpacked: unpacks_to(archive),
            placed: known.map(|of| of.place),
        });
    }
    let placed = streamed(&layers, line, disk, room).ok()?;
    placed.places.get(ours?).copied()
}

/// Returns the rate of a network that has brought so many bytes since some moment, if that tells
/// something.
pub(super) fn line_rate(came: u64, since: std::time::Instant) -> Option<Rate> {
    Rate::measured(came, since.elapsed()).filter(|_| came >= TELLING)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    const MB: u64 = 1_000_000;

    fn rate(megabytes: u64) -> Rate {
        Rate::per_second(megabytes * MB).unwrap()
    }

    fn place(disk: u64, begun: &BTreeMap<usize, Begun>) -> Option<Place> {
        let line = Line {
            rate: rate(100),
            concurrent: NonZeroUsize::new(3).unwrap(),
        };
        let disk = Disk {
            rate: rate(disk),
            waiting: 0,
        };
        let sizes = [50, 50, 50, 100].map(|size| size * MB);
        weighed(3, &sizes, begun, &line, &disk, u64::MAX)
    }

    fn begun(place: Place) -> BTreeMap<usize, Begun> {
        let one = Begun {
            came: 50 * MB,
            unpacked: 150 * MB,
            place,
        };
        BTreeMap::from([(0, one), (1, one), (2, one)])
    }

    #[test]
    fn a_layer_goes_to_the_disk_if_that_is_done_with_it_in_time() {
        // All that is left are its 100 MB, which come in a second and unpack to 300.
        let begun = begun(Place::Fast);
        assert_eq!(place(1000, &begun), Some(Place::Slow));
        assert_eq!(place(310, &begun), Some(Place::Slow));
        assert_eq!(place(100, &begun), Some(Place::Fast));
    }

    #[test]
    fn what_is_not_known_yet_is_three_times_as_much() {
        assert_eq!(place(1000, &BTreeMap::new()), Some(Place::Slow));
        assert_eq!(place(1, &BTreeMap::new()), Some(Place::Fast));
    }

    #[test]
    fn a_rate_takes_bytes_and_time() {
        let now = std::time::Instant::now();
        assert_eq!(line_rate(TELLING - 1, now), None);
        assert!(line_rate(TELLING, now - std::time::Duration::from_secs(1)).is_some());
    }
}
