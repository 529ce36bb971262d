//! How much memory processes use. `/proc/PID/status` is cheap: the kernel keeps these counts,
//! while `smaps_rollup` walks every page.

use std::fs;
use std::ops::Add;

/// Memory of one process, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Resident memory, including pages of files, which other processes may share.
    pub(super) resident_bytes: u64,
    /// Memory that is not shared: heap and stacks.
    pub(super) private_bytes: u64,
}

impl Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            resident_bytes: self.resident_bytes + other.resident_bytes,
            private_bytes: self.private_bytes + other.private_bytes,
        }
    }
}

/// Returns the memory of processes. One that has ended uses none.
pub(super) fn memory(pids: impl IntoIterator<Item = u32>) -> Memory {
    let status = |pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let memories = pids.into_iter().map(|pid| parse(&status(pid)));
    memories.fold(Memory::default(), Memory::add)
}

fn parse(status: &str) -> Memory {
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib * 1024)
    };
    Memory {
        resident_bytes: bytes("VmRSS:").unwrap_or(0),
        private_bytes: bytes("RssAnon:").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let status = "Name:\tyolofs\nVmRSS:\t    5220 kB\nRssAnon:\t    1064 kB\nThreads:\t4\n";
        let expected = Memory {
            resident_bytes: 5220 * 1024,
            private_bytes: 1064 * 1024,
        };
        assert_eq!(parse(status), expected);
        assert_eq!(parse("Name:\tzombie\n"), Memory::default());
    }

    #[test]
    fn adds_the_living_up() {
        let own = std::process::id();
        let one = memory([own]);
        assert!(one.private_bytes > 0 && one.resident_bytes > one.private_bytes);
        assert!(memory([own, u32::MAX, own]).resident_bytes > one.resident_bytes);
    }
}
