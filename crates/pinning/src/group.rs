//! The memory cgroup that is charged with locked pages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::talk::{Bound, BoundKind, GroupStatus};

/// The files of a memory cgroup.
#[derive(Debug)]
struct Files {
    /// The limit.
    limit: &'static str,
    /// What is used.
    used: &'static str,
    /// The lines of `memory.stat` that say how much of that is pages of files that can be reclaimed, not locked ones.
    cached: [&'static str; 2],
}

/// Of cgroup v2 and of cgroup v1.
const FILES: [Files; 2] = [
    Files {
        limit: "memory.max",
        used: "memory.current",
        cached: ["inactive_file", "active_file"],
    },
    Files {
        limit: "memory.limit_in_bytes",
        used: "memory.usage_in_bytes",
        cached: ["total_inactive_file", "total_active_file"],
    },
];

/// The part of a limit that stays free for what this process and others of the cgroup need meanwhile, and the most that this is.
/// The kernel's counts may also be late by some MiB.
const FREE_PART: u64 = 8;
const FREE_MAX: u64 = 32 << 20;

/// Above this, cgroup v1 means that there is no limit.
const UNLIMITED: u64 = 1 << 62;

/// A memory cgroup that this process is in.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    files: &'static Files,
}

impl Group {
    /// Returns the one with this directory, if it has a file for a limit.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let has = |files: &&Files| path.join(files.limit).is_file();
        Some(Self {
            path: path.to_owned(),
            files: FILES.iter().find(has)?,
        })
    }

    /// Moves this process into an existing memory cgroup.
    ///
    /// # Errors
    /// If it is not a cgroup, or refuses the process.
    pub fn join(path: &Path) -> anyhow::Result<Self> {
        let group = Self::at(path).with_context(|| {
            format!(
                "{} is no memory cgroup with a limit: name the directory of one",
                path.display()
            )
        })?;
        let procs = path.join("cgroup.procs");
        fs::write(&procs, std::process::id().to_string())
            .with_context(|| format!("moving this process into {}", path.display()))?;
        Ok(group)
    }

    /// Returns how much a process in this cgroup that has locked `held` bytes may lock in all; `None` without a limit.
    pub(crate) fn bound(&self, held: u64) -> Option<(u64, Bound)> {
        let limit = self.limit().ok()??;
        let used = self.number(self.files.used).ok()??;
        let used = used.saturating_sub(self.cached());
        let free = (limit / FREE_PART).min(FREE_MAX);
        let most = match limit.checked_sub(used) {
            // What is free beyond that part. If that is used, too, nothing is given back: counts vary.
            Some(left) => held.saturating_add(left.saturating_sub(free)),
            None => held.saturating_sub(used - limit),
        };
        let bound = Bound {
            kind: BoundKind::Cgroup,
            path: Some(self.path.clone()),
            limit_bytes: limit,
            used_bytes: used,
        };
        Some((most, bound))
    }

    /// Returns how much it uses.
    pub(crate) fn status(&self) -> GroupStatus {
        GroupStatus {
            path: self.path.clone(),
            limit_bytes: self.limit().ok().flatten(),
            charged_bytes: self.number(self.files.used).ok().flatten().unwrap_or(0),
        }
    }

    fn limit(&self) -> anyhow::Result<Option<u64>> {
        Ok(self
            .number(self.files.limit)?
            .filter(|limit| *limit < UNLIMITED))
    }

    /// Returns the size of the pages that the kernel can reclaim.
    fn cached(&self) -> u64 {
        let stat = fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let cached = lines.filter(|(name, _)| self.files.cached.contains(name));
        cached
            .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
            .sum()
    }

    fn number(&self, file: &str) -> anyhow::Result<Option<u64>> {
        let path = self.path.join(file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        match text.trim() {
            "max" => Ok(None),
            number => number
                .parse()
                .map(Some)
                .with_context(|| format!("reading {}", path.display())),
        }
    }
}
