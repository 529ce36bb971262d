//! How the C library's allocator deals with large blocks.

#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "mallopt(3) has no safe wrapper")
)]

/// Makes every allocation of at least `bytes` a separate mapping from now on, so that it uses memory only
/// where it is touched, and is returned to the system when it is freed.
///
/// By default the GNU C library raises this threshold to the size of any mapped block that is
/// freed, up to 32 MiB. A buffer of that size that is meant to be touched at its beginning only is
/// then taken from a heap and cleared: all of it uses memory. With another C library nothing
/// happens.
///
/// A heap keeps what is free at its end up to twice as much, as it would by default. Once the threshold is set the C library
/// would return each free 128 KiB there to the system, and who frees such a block and allocates the next one has
/// the kernel clear the same pages again and again.
pub fn map_blocks_from(bytes: u32) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let kept = bytes.saturating_mul(2);
        for (parameter, value) in [
            (libc::M_MMAP_THRESHOLD, bytes),
            (libc::M_TRIM_THRESHOLD, kept),
        ] {
            // SAFETY: mallopt takes two numbers, touches nothing of ours, and takes the allocator's
            // own lock. An unknown parameter or value changes nothing and is told by the result.
            let _known = unsafe { libc::mallopt(parameter, value) };
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _no_such_threshold = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that this process has written to, of its own.
    fn dirty_kib() -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = smaps
            .lines()
            .find_map(|line| line.strip_prefix("Private_Dirty:"));
        let kib = line.unwrap().split_whitespace().next().unwrap();
        kib.parse().unwrap()
    }

    #[test]
    fn a_large_block_takes_only_what_is_touched() {
        const LEN: usize = 16 << 20;
        map_blocks_from(1 << 20);
        // Freeing one is what raises the threshold otherwise.
        drop(vec![0_u8; LEN]);
        let before = dirty_kib();
        let blocks: Vec<Vec<u8>> = (0..8).map(|_| vec![0; LEN]).collect();
        let grown = dirty_kib().saturating_sub(before);
        assert!(grown < 16 << 10, "8 blocks of 16 MiB took {grown} KiB");
        drop(blocks);
    }

    /// Faults of this thread that needed no disk.
    fn faults() -> i64 {
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
        usage.unwrap().minor_page_faults()
    }

    #[test]
    fn memory_that_is_freed_and_allocated_again_is_not_cleared_each_time() {
        const LEN: usize = 200 << 10;
        const TIMES: i64 = 200;
        map_blocks_from(1 << 20);
        let touch = || {
            std::hint::black_box(vec![1_u8; LEN]);
        };
        // On a thread with a heap of its own.
        let faults = std::thread::spawn(move || {
            touch();
            let before = faults();
            (0..TIMES).for_each(|_| touch());
            faults() - before
        });
        let faults = faults.join().unwrap();
        assert!(
            faults < TIMES * 10,
            "{faults} for {TIMES} blocks of 50 pages"
        );
    }
}
