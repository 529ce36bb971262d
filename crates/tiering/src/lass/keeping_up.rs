//! Whether the disk keeps up with the network, seen from one layer of a pull.

use std::time::Duration;

use super::pulls::Part;
use super::streamed::{Disk, TOLERANCE};
use crate::Rate;

/// The rest of a pull's download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes that are yet to come.
    pub bytes: u64,
    /// The rate at which the network has brought data of this pull so far, whatever else it transferred.
    pub rate: Rate,
    /// How long the download has taken already.
    pub elapsed: Duration,
}

impl Disk {
    /// Returns whether the disk will have written `bytes`, and what waits for it already, when the
    /// download ends, or no more than a hundredth of the download later.
    ///
    /// That is equation 2 of the paper without its assumption: after the download `T_Disk =
    /// max(0, α·(W + S) − T)` is left for the disk, with the waiting data `W`, the layer `S`, and the
    /// remaining `T` of `T_D`.
    #[must_use]
    pub fn is_done_with(&self, bytes: u64, left: &Left) -> bool {
        let writing = self.rate.time_for(self.waiting.saturating_add(bytes));
        let coming = left.rate.time_for(left.bytes);
        let download = coming.saturating_add(left.elapsed).as_nanos();
        writing.as_nanos() <= coming.as_nanos() + download / TOLERANCE
    }
}

/// Decides for a layer of `bytes` that is below the last downloading one whether the disk can write it
/// while the network brings what is [left](Left). For other layers, and if the disk's or the network's
/// rate is not known, the result is `part`.
#[must_use]
pub fn weigh(part: Part, bytes: u64, disk: Option<&Disk>, left: Option<&Left>) -> Part {
    match (part, disk, left) {
        (Part::Below, Some(disk), Some(left)) if !disk.is_done_with(bytes, left) => Part::Late,
        _ => part,
    }
}

/// What layers that go to one disk have it write, of all pulls: until it can have been written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// When the disk is done, on the caller's clock.
    done: Duration,
}

impl Promised {
    /// Promises that `bytes` more are going to be written from `now` on.
    pub fn add(&mut self, now: Duration, bytes: u64, rate: Rate) {
        let begins = self.done.max(now);
        self.done = begins.saturating_add(rate.time_for(bytes));
    }

    /// Returns the bytes that a disk with this rate has yet to write.
    #[must_use]
    pub fn waiting(&self, now: Duration, rate: Rate) -> u64 {
        rate.bytes_in(self.done.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MB: u64 = 1_000_000;

    fn rate(bytes: u64) -> Rate {
        Rate::per_second(bytes).unwrap()
    }

    fn disk(of: u64, waiting: u64) -> Disk {
        let rate = rate(of);
        Disk { rate, waiting }
    }

    fn left(bytes: u64, of: u64, secs: u64) -> Left {
        Left {
            bytes,
            rate: rate(of),
            elapsed: Duration::from_secs(secs),
        }
    }

    #[test]
    fn a_disk_has_the_time_that_the_network_needs_and_a_hundredth() {
        // The base of the images that came too late: 138 MB at 45 in a second, of the download 1.5 s
        // are left of 8.
        let base = 138 * MB;
        let download = left(18_750_000, 12_500_000, 6);
        assert!(!disk(45 * MB, 0).is_done_with(base, &download));
        assert!(disk(92 * MB, 0).is_done_with(base, &download));
        assert!(!disk(92 * MB, 8 * MB).is_done_with(base, &download));
        // 1.575 s: a hundredth of 7.5 s later than 1.5.
        let just = 157_500_000;
        assert!(disk(100 * MB, 0).is_done_with(just, &download));
        assert!(!disk(100 * MB, 0).is_done_with(just + 1, &download));
    }

    #[test]
    fn only_what_is_below_the_last_layer_can_be_late_and_only_if_all_is_known() {
        let (slow, soon) = (disk(1, 0), left(1, 1000, 1));
        let weighed = |part| weigh(part, 100, Some(&slow), Some(&soon));
        assert_eq!(weighed(Part::Below), Part::Late);
        for part in [Part::LastOrAbove, Part::Unknown, Part::Late] {
            assert_eq!(weighed(part), part);
        }
        assert_eq!(weigh(Part::Below, 100, None, Some(&soon)), Part::Below);
        assert_eq!(weigh(Part::Below, 100, Some(&slow), None), Part::Below);
        assert_eq!(weigh(Part::Below, 0, Some(&slow), Some(&soon)), Part::Below);
    }

    #[test]
    fn what_was_promised_waits_until_it_can_have_been_written() {
        let at = Duration::from_secs;
        let mut promised = Promised::default();
        assert_eq!(promised.waiting(at(0), rate(10)), 0);
        promised.add(at(5), 100, rate(10));
        assert_eq!(promised.waiting(at(5), rate(10)), 100);
        assert_eq!(promised.waiting(at(8), rate(10)), 70);
        // Another pull's comes after it.
        promised.add(at(9), 30, rate(10));
        assert_eq!(promised.waiting(at(10), rate(10)), 80);
        assert_eq!(promised.waiting(at(18), rate(10)), 0);
        promised.add(at(100), 10, rate(10));
        assert_eq!(promised.waiting(at(100), rate(10)), 10);
        promised.add(at(100), u64::MAX, rate(1));
        promised.add(at(100), u64::MAX, rate(1));
        assert_eq!(promised.waiting(at(0), rate(u64::MAX)), u64::MAX);
    }

    /// Two pulls share the line and the disk: layers of both, in the order in which they are opened.
    fn pulls() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((1u64..300 * MB, 0u64..200 * MB), 1..30)
    }

    proptest! {
        /// Whatever else goes to the disk meanwhile, what it was given is written in time.
        #[test]
        fn the_disk_is_done_with_all_that_it_was_given_in_time(
            layers in pulls(), of_disk in 1u64..400, of_line in 1u64..200, step in 0u64..2000,
        ) {
            let (disk_rate, line) = (rate(of_disk * MB), rate(of_line * MB));
            let mut promised = Promised::default();
            let (mut now, mut written) = (Duration::ZERO, Duration::ZERO);
            for (bytes, to_come) in layers {
                now += Duration::from_millis(step);
                let waiting = promised.waiting(now, disk_rate);
                let disk = Disk { rate: disk_rate, waiting };
                let left = Left { bytes: to_come, rate: line, elapsed: now };
                if weigh(Part::Below, bytes, Some(&disk), Some(&left)) == Part::Late {
                    continue;
                }
                promised.add(now, bytes, disk_rate);
                // A disk that works off what it is given, in turn.
                written = written.max(now) + disk_rate.time_for(bytes);
                let ends = now + line.time_for(to_come);
                let tolerated = ends / 100 + Duration::from_micros(1);
                prop_assert!(written <= ends + tolerated, "{written:?} after {ends:?}");
            }
        }

        #[test]
        fn a_faster_disk_is_never_late_where_a_slower_one_is_not(
            bytes: u64, waiting: u64, to_come: u64, secs: u32,
            mut rates in prop::array::uniform2(1..=u64::MAX), line in 1..=u64::MAX,
        ) {
            rates.sort_unstable();
            let left = left(to_come, line, u64::from(secs));
            let [slow, fast] = rates.map(|of| disk(of, waiting).is_done_with(bytes, &left));
            prop_assert!(fast || !slow);
        }
    }
}
