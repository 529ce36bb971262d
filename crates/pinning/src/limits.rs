//! How much this process may lock: the budget, the memory cgroups that it is in, and `RLIMIT_MEMLOCK`.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::group::Group;
use crate::pages::PAGE;
use crate::talk::{Bound, BoundKind};

/// The number of the capability to lock memory without a limit (`CAP_IPC_LOCK`).
const CAP_IPC_LOCK: u32 = 14;

/// The limits of a process.
#[derive(Debug)]
pub(crate) struct Limits {
    budget: u64,
    /// Its memory cgroup, and those above it that have a limit.
    groups: Vec<Group>,
    /// What it may lock without the capability; `None` without a limit.
    memlock: Option<u64>,
}

impl Limits {
    /// Finds the limits of this process, which is to hold at most `budget` bytes.
    pub(crate) fn of_this_process(budget: u64) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let soft = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        let is_free = may_lock_all(&read("/proc/self/status")) || soft == RLIM_INFINITY;
        Self {
            budget,
            groups: dirs(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
                .iter()
                .filter_map(|dir| Group::at(dir))
                .collect(),
            memlock: (!is_free).then_some(soft),
        }
    }

    /// Returns how much may be locked in all by a process that has locked `held` bytes, and what it is that allows no more.
    pub(crate) fn bound(&self, held: u64) -> (u64, Bound) {
        let budget = Bound {
            kind: BoundKind::Budget,
            path: None,
            limit_bytes: self.budget,
            used_bytes: held,
        };
        let mut bound = (self.budget, budget);
        let memlock = self.memlock.map(|limit| {
            let kind = BoundKind::Memlock;
            let (path, used_bytes) = (None, held);
            let limit_bytes = limit;
            (
                limit,
                Bound {
                    kind,
                    path,
                    limit_bytes,
                    used_bytes,
                },
            )
        });
        let groups = self.groups.iter().filter_map(|group| group.bound(held));
        for other in memlock.into_iter().chain(groups) {
            if other.0 < bound.0 {
                bound = other;
            }
        }
        (bound.0 / PAGE * PAGE, bound.1)
    }
}

/// Returns whether a process may lock all memory, from its `/proc/PID/status`.
fn may_lock_all(status: &str) -> bool {
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

/// Returns the directories of the memory cgroup of a process, of version 1 or 2, and of those above it, from its
/// `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
fn dirs(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let mut mounts = mountinfo
            .lines()
            .filter_map(|line| mounted(line, is_unified));
        let below = mounts.find_map(|(root, at)| {
            let below = Path::new(path).strip_prefix(root).ok()?;
            Some((at, at.join(below)))
        });
        if let Some((top, dir)) = below {
            let above = dir.ancestors().take_while(|dir| dir.starts_with(top));
            dirs.extend(above.map(Path::to_owned));
        }
    }
    dirs
}

/// Returns which cgroup is mounted where, if this line of mountinfo is about memory cgroups.
fn mounted(line: &str, is_unified: bool) -> Option<(&Path, &Path)> {
    let (about, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let is_ours = match kind.next()? {
        "cgroup2" => is_unified,
        "cgroup" => !is_unified && kind.next_back()?.split(',').any(|name| name == "memory"),
        _ => false,
    };
    let mut about = about.split(' ').skip(3);
    let (root, at) = (about.next()?, about.next()?);
    is_ours.then_some((Path::new(root), Path::new(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_of_both_versions_are_found() {
        let mounts = "30 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n\
             31 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu\n\
             32 20 0:28 /docker/x /sys/fs/cgroup/memory rw - cgroup none rw,memory\n";
        let found = dirs("4:memory:/docker/x/a/b\n2:cpu:/z\n0::/u\n", mounts);
        let wanted = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/unified/u",
            "/sys/fs/cgroup/unified",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
        assert!(dirs("4:memory:/elsewhere\n", mounts).is_empty());
    }

    #[test]
    fn the_capability_is_a_bit_of_the_status() {
        assert!(may_lock_all("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!may_lock_all("CapEff:\t00000000ffffbfff\n"));
        assert!(!may_lock_all(""));
    }

    /// A cgroup as the kernel shows it, of version 2.
    fn group(dir: &Path, limit: &str, used: u64, cached: u64) -> Group {
        fs::write(dir.join("memory.max"), limit).unwrap();
        fs::write(dir.join("memory.current"), used.to_string()).unwrap();
        let stat = format!("anon 1\ninactive_file {cached}\nactive_file 0\n");
        fs::write(dir.join("memory.stat"), stat).unwrap();
        Group::at(dir).unwrap()
    }

    #[test]
    fn the_tightest_limit_counts() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let mut limits = Limits {
            budget: 100 * MIB,
            groups: vec![group(dir.path(), "max", 50 * MIB, 0)],
            memlock: None,
        };
        let of = |limits: &Limits, held| {
            let (bytes, bound) = limits.bound(held);
            (bytes, bound.kind)
        };
        assert_eq!(of(&limits, 0), (100 * MIB, BoundKind::Budget));
        // Of 64 MiB, 40 are used, of which 16 can be reclaimed; an eighth stays free.
        limits.groups = vec![group(
            dir.path(),
            &(64 * MIB).to_string(),
            40 * MIB,
            16 * MIB,
        )];
        assert_eq!(of(&limits, 0), (32 * MIB, BoundKind::Cgroup));
        assert_eq!(
            of(&limits, 10 * MIB),
            (42 * MIB, BoundKind::Cgroup),
            "what is held is used already"
        );
        // The free eighth is used, too: nothing is given back for that, but nothing is added.
        group(dir.path(), &(64 * MIB).to_string(), 60 * MIB, 0);
        assert_eq!(of(&limits, 10 * MIB), (10 * MIB, BoundKind::Cgroup));
        // The limit was lowered.
        group(dir.path(), &(56 * MIB).to_string(), 60 * MIB, 0);
        assert_eq!(of(&limits, 10 * MIB), (6 * MIB, BoundKind::Cgroup));
        // Of a large limit, 32 MiB stay free.
        limits.budget = 2048 * MIB;
        limits.groups = vec![group(dir.path(), &(1024 * MIB).to_string(), 0, 0)];
        assert_eq!(of(&limits, 0), (992 * MIB, BoundKind::Cgroup));
        group(dir.path(), &(56 * MIB).to_string(), 60 * MIB, 0);
        limits.memlock = Some(MIB + 5);
        assert_eq!(of(&limits, 0), (0, BoundKind::Cgroup));
        limits.groups.clear();
        assert_eq!(of(&limits, 0), (MIB, BoundKind::Memlock), "in whole pages");
    }
}
