//! Where a layer goes that is unpacked while it is downloaded: decided when its download begins.

use std::collections::BTreeMap;
use std::time::Duration;

use tiering::Rate;
use tiering::lass::{Arriving, Disk, Line, Placement, streamed};

use super::sizes::archive_of;

/// Bytes of layers that show what those of this image unpack to.
const TELLING: u64 = 1 << 20;

/// A layer whose download has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    /// Bytes of its blob that came.
    pub(crate) came: u64,
    /// Bytes of its tar that were unpacked.
    pub(crate) unpacked: u64,
    /// Its place.
    pub(crate) place: Placement,
}

/// Returns the place of the layer `at`, whose download is about to begin: fast memory, if the disk would
/// not be done with it at the end of the whole download. Of the layers, whose blobs have these `sizes`, some
/// have `begun`. `None` if it cannot be determined.
pub(crate) fn weighed(
    at: usize,
    sizes: &[u64],
    begun: &BTreeMap<usize, Begun>,
    line: &Line,
    disk: &Disk,
    room: u64,
) -> Option<Placement> {
    let (came, unpacked) = begun.values().fold((0, 0), |(came, unpacked), of| {
        (came + of.came, unpacked + of.unpacked)
    });
    let unpacks_to = |archive: u64| match came {
        ..TELLING => archive_of(archive),
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

/// The kernel's data about a disk, and the rate measured with earlier layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes that it writes in a second.
    pub(crate) rate: Rate,
    /// Bytes that wait for it, as far as that is known.
    pub(crate) waiting: u64,
}

/// Returns the share of a disk for layers in the middle of a pull, `since` its first byte arrived. Data of the
/// pull that the disk cannot have written yet counts as waiting, whether or not the kernel reports it. Blobs
/// that are kept are assumed to go to the disk, too, as fast as the network brings them: where containerd stores
/// them is not known, and a layer too many on fast memory costs space, one too many on the disk costs time.
pub(crate) fn left_of(
    seen: Seen,
    begun: &BTreeMap<usize, Begun>,
    since: Duration,
    blobs: Option<Rate>,
) -> Option<Disk> {
    let given = |of: &Begun| match of.place {
        Placement::Slow => of.unpacked,
        Placement::Fast => 0,
    };
    let kept = |of: &Begun| blobs.map_or(0, |_| of.came);
    let gave: u64 = begun.values().map(|of| given(of) + kept(of)).sum();
    let unwritten = gave.saturating_sub(seen.rate.bytes_in(since));
    let taken = blobs.map_or(0, Rate::bytes_per_second);
    let rate = seen.rate.bytes_per_second().saturating_sub(taken);
    Some(Disk {
        rate: Rate::per_second(rate.max(1))?,
        waiting: seen.waiting.max(unwritten),
    })
}

/// Returns the bytes of blobs that came.
pub(crate) fn came_of(begun: &BTreeMap<usize, Begun>) -> u64 {
    begun.values().map(|of| of.came).sum()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    const MB: u64 = 1_000_000;

    fn rate(megabytes: u64) -> Rate {
        Rate::per_second(megabytes * MB).unwrap()
    }

    fn place(disk: u64, begun: &BTreeMap<usize, Begun>) -> Option<Placement> {
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

    fn begun(place: Placement) -> BTreeMap<usize, Begun> {
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
        let begun = begun(Placement::Fast);
        assert_eq!(place(1000, &begun), Some(Placement::Slow));
        assert_eq!(place(310, &begun), Some(Placement::Slow));
        assert_eq!(place(100, &begun), Some(Placement::Fast));
    }

    #[test]
    fn what_is_not_known_yet_is_estimated() {
        assert_eq!(place(1000, &BTreeMap::new()), Some(Placement::Slow));
        assert_eq!(place(1, &BTreeMap::new()), Some(Placement::Fast));
    }

    #[test]
    fn the_disk_has_what_the_pull_gave_it_and_it_had_no_time_for() {
        let seen = |waiting| Seen {
            rate: rate(100),
            waiting: waiting * MB,
        };
        let after = Duration::from_secs(2);
        let left = |waiting, begun: &_, blobs| {
            let disk = left_of(seen(waiting), begun, after, blobs).unwrap();
            (disk.rate.bytes_per_second() / MB, disk.waiting / MB)
        };
        let (fast, slow) = (begun(Placement::Fast), begun(Placement::Slow));
        assert_eq!(left(0, &fast, None), (100, 0));
        // Of 450 MB it has written 200.
        assert_eq!(left(0, &slow, None), (100, 250));
        assert_eq!(left(300, &slow, None), (100, 300));
        // 150 MB of blobs, too, and what is yet to come of them.
        assert_eq!(left(0, &slow, Some(rate(30))), (70, 400));
        assert_eq!(left(0, &fast, Some(rate(300))), (0, 0), "next to nothing");
    }
}
