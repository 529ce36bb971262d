//! A disk: how much it takes with one request, and how much may be read between two places of it before a seek is
//! quicker.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::{major, minor};

/// Nothing is learned from more: at most 130 ms of a hard disk.
pub(super) const SEEKS: usize = 16;
/// More than this between two places is never read: it would fill the memory.
const GAP_BYTES_MAX: u64 = 1 << 20;
/// A read of so many bytes shows how fast the disk is.
const LARGE_BYTES: u64 = 256 << 10;
/// Large reads that are measured, and reads after which nothing more is measured if they were small.
const MEASURED_LARGE: usize = 8;
const MEASURED: usize = 32;
/// What one request has on a disk that does not say how much it takes.
const REQUEST_BYTES: u64 = 1 << 20;
/// Fewer is slow on any disk. More is cut by the kernel: a request has 256 pages at most (`BIO_MAX_VECS`), unless it reads
/// ahead by itself, with larger folios.
const REQUEST_BYTES_RANGE: (u64, u64) = (128 << 10, 1 << 20);

/// A disk, as far as it was measured.
#[derive(Debug)]
pub(super) struct Device {
    request_bytes: u64,
    /// How long the disk takes for a small read with a seek, of several that are in flight.
    seek: Duration,
    /// How many reads were measured, and how many of them were large.
    measured: usize,
    large: usize,
    /// The fastest of them.
    bytes_per_second: u64,
}

impl Device {
    /// Returns the disk with this number, as in `st_dev`.
    pub(super) fn of(number: u64) -> Self {
        let bytes = max_request(Path::new("/sys"), number).unwrap_or(REQUEST_BYTES);
        let (least, most) = REQUEST_BYTES_RANGE;
        Self {
            request_bytes: bytes.clamp(least, most),
            seek: Duration::ZERO,
            measured: 0,
            large: 0,
            bytes_per_second: 0,
        }
    }

    /// Returns how much the disk takes with one request.
    pub(super) const fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// Records how long so many small reads with seeks took, which were in flight together. A hard disk takes one after
    /// the other, and an SSD all at once: there a seek costs next to nothing.
    pub(super) fn seek(&mut self, reads: usize, time: Duration) {
        let reads = u32::try_from(reads).unwrap_or(u32::MAX);
        self.seek = time.checked_div(reads).unwrap_or_default();
    }

    /// Records the duration of a read, beside which nothing else was read.
    pub(super) fn read(&mut self, bytes: u64, time: Duration) {
        self.measured += 1;
        self.large += usize::from(bytes >= LARGE_BYTES);
        let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.bytes_per_second = self.bytes_per_second.max(rate);
    }

    /// Returns whether enough reads were measured: from then on several may be in flight.
    pub(super) const fn is_measured(&self) -> bool {
        self.large >= MEASURED_LARGE || self.measured >= MEASURED
    }

    /// Returns how many bytes the disk reads in the time of a seek.
    pub(super) fn gap_bytes(&self) -> u64 {
        let seek = self.seek.as_nanos();
        let gap = seek.saturating_mul(u128::from(self.bytes_per_second)) / 1_000_000_000;
        u64::try_from(gap).unwrap_or(u64::MAX).min(GAP_BYTES_MAX)
    }
}

/// Returns how much the disk with this number takes with one request; `None` if it does not say, as file systems without
/// one disk do not.
fn max_request(sys: &Path, number: u64) -> Option<u64> {
    let device = format!("dev/block/{}:{}", major(number), minor(number));
    let device = sys.join(device).canonicalize().ok()?;
    // A partition has no queue of its own: its disk has.
    let queues = [device.join("queue"), device.parent()?.join("queue")];
    let kib = queues
        .iter()
        .find_map(|queue| fs::read_to_string(queue.join("max_sectors_kb")).ok())?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::makedev;

    use super::*;

    fn device(seek_us: u64, bytes: u64, read_us: u64) -> Device {
        let mut device = Device::of(0);
        device.seek(16, Duration::from_micros(16 * seek_us));
        // One that waited for a seek says nothing of the rate.
        device.read(bytes, Duration::from_micros(read_us + 8_000));
        device.read(bytes, Duration::from_micros(read_us));
        device
    }

    #[test]
    fn a_gap_is_what_is_read_in_the_time_of_a_seek() {
        // A hard disk: 8 ms, and 100 MB a second. An SSD: 0.1 ms, and 500 MB a second. Memory.
        assert_eq!(device(8_000, 1_000_000, 10_000).gap_bytes(), 800_000);
        assert_eq!(device(100, 1_000_000, 2_000).gap_bytes(), 50_000);
        assert!(device(1, 1_000_000, 200).gap_bytes() < 8_192);
    }

    #[test]
    fn nothing_measured_is_no_gap_and_a_disk_that_stands_still_no_endless_one() {
        assert_eq!(Device::of(0).gap_bytes(), 0);
        let mut unknown = device(1, 1_000_000, 1);
        unknown.seek(0, Duration::ZERO);
        assert_eq!(unknown.gap_bytes(), 0);
        assert_eq!(device(1_000_000, 1_000_000, 1).gap_bytes(), GAP_BYTES_MAX);
    }

    #[test]
    fn eight_large_reads_are_enough_and_many_small_ones() {
        let needed = |bytes: u64| {
            let mut device = Device::of(0);
            let read = |_: &u32| {
                device.read(bytes, Duration::from_millis(1));
                device.is_measured()
            };
            (1..100).find(read).unwrap()
        };
        assert_eq!((needed(LARGE_BYTES), needed(4096)), (8, 32));
    }

    #[test]
    fn a_request_is_what_the_disk_of_a_partition_takes() {
        let sys = tempfile::tempdir().unwrap();
        let partition = sys.path().join("devices/sda/sda1");
        fs::create_dir_all(&partition).unwrap();
        fs::create_dir_all(sys.path().join("devices/sda/queue")).unwrap();
        fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        let limit = sys.path().join("devices/sda/queue/max_sectors_kb");
        fs::write(limit, "512\n").unwrap();
        symlink(partition, sys.path().join("dev/block/8:1")).unwrap();
        assert_eq!(max_request(sys.path(), makedev(8, 1)), Some(512 << 10));
        assert_eq!(max_request(sys.path(), makedev(0, 42)), None);
        assert_eq!(Device::of(0).request_bytes(), REQUEST_BYTES);
    }
}
