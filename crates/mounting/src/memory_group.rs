//! What the memory groups (cgroups) that this process is in leave it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel shows groups: of version 2 alone, beside version 1, and the memory groups of that.
const V2: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const V1: &str = "/sys/fs/cgroup/memory";
/// Memory that is reserved for all else that the process needs while something is locked.
const MARGIN: u64 = 16 << 20;

/// Returns how many more bytes may be locked in memory before a memory cgroup runs short, as far as cgroups are
/// visible; `None` if none of them has a limit.
pub fn room() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .flat_map(places)
        .filter_map(|(top, group)| room_in(top, &group))
        .min()
        .map(|room| room.saturating_sub(MARGIN))
}

/// Returns where a group may be, by its line: `0::/a/b`, or `4:cpu,memory:/a/b`.
fn places(line: &str) -> Vec<(&'static Path, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (_, Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
        return Vec::new();
    };
    let tops = match kinds {
        "" => &V2[..],
        _ if kinds.split(',').any(|kind| kind == "memory") => &[V1],
        _ => &[],
    };
    let group = group.trim_start_matches('/');
    let places = tops
        .iter()
        .map(|top| (Path::new(*top), Path::new(top).join(group)));
    places.collect()
}

/// Returns the least that a group and those around it leave.
fn room_in(top: &Path, group: &Path) -> Option<u64> {
    let groups = group.ancestors().take_while(|dir| dir.starts_with(top));
    groups.filter_map(left_in).min()
}

/// Returns what one group leaves: its limit without what it has that the kernel cannot drop.
fn left_in(group: &Path) -> Option<u64> {
    let number = |names: [&str; 2]| -> Option<u64> {
        let text = |name: &&str| fs::read_to_string(group.join(name)).ok();
        names.iter().find_map(text)?.trim().parse().ok()
    };
    // "max" is no number.
    let limit = number(["memory.max", "memory.limit_in_bytes"])?;
    let has = number(["memory.current", "memory.usage_in_bytes"])?;
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let of = |words: [&str; 2]| -> u64 {
        let line = |word: &&str| stat.lines().find_map(|line| line.strip_prefix(*word));
        let bytes = words.iter().find_map(line);
        bytes
            .and_then(|bytes| bytes.trim().parse().ok())
            .unwrap_or(0)
    };
    // Those of version 1 count what is in groups below only with "total".
    let file =
        of(["total_active_file ", "active_file "]) + of(["total_inactive_file ", "inactive_file "]);
    Some(limit.saturating_sub(has.saturating_sub(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts_and_what_can_be_dropped_is_free() {
        let top = tempfile::tempdir().unwrap();
        let group = top.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let put = |dir: &Path, name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        assert_eq!(room_in(top.path(), &group), None);
        put(&group, "memory.max", "max\n");
        put(&group, "memory.current", "100\n");
        put(
            &group,
            "memory.stat",
            "anon 20\nactive_file 50\ninactive_file 20\n",
        );
        assert_eq!(room_in(top.path(), &group), None);
        put(&group, "memory.max", "1000\n");
        assert_eq!(room_in(top.path(), &group), Some(970));
        // As version 1 has it.
        let around = top.path().join("a");
        put(&around, "memory.limit_in_bytes", "500\n");
        put(&around, "memory.usage_in_bytes", "400\n");
        put(
            &around,
            "memory.stat",
            "active_file 1\ntotal_active_file 10\ntotal_inactive_file 0\n",
        );
        assert_eq!(room_in(top.path(), &group), Some(110));
        assert_eq!(room_in(&group, &group), Some(970));
    }

    #[test]
    fn groups_are_found_by_their_lines() {
        let found = |line: &str| -> Vec<PathBuf> {
            places(line).into_iter().map(|(_, group)| group).collect()
        };
        assert_eq!(
            found("0::/x/y"),
            [
                Path::new("/sys/fs/cgroup/x/y"),
                Path::new("/sys/fs/cgroup/unified/x/y")
            ]
        );
        assert_eq!(
            found("4:cpu,memory:/x"),
            [Path::new("/sys/fs/cgroup/memory/x")]
        );
        assert!(found("9:name=systemd:/").is_empty() && found("").is_empty());
    }
}
