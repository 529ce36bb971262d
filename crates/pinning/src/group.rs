//! The memory cgroup that is charged with locked pages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::talk::GroupStatus;

/// Files of cgroup v2 and of cgroup v1: the limit, and what is used.
const FILES: [(&str, &str); 2] = [
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
];

/// Above this, cgroup v1 means that there is no limit.
const UNLIMITED: u64 = 1 << 62;

/// A memory cgroup that this process is in.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    files: (&'static str, &'static str),
}

impl Group {
    /// Moves this process into an existing memory cgroup.
    ///
    /// # Errors
    /// If it is not a cgroup, may use less than `budget` bytes, or refuses the process.
    pub fn join(path: &Path, budget: u64) -> anyhow::Result<Self> {
        let files = FILES
            .into_iter()
            .find(|(limit, _)| path.join(limit).is_file());
        let files = files.with_context(|| {
            format!(
                "{} is no memory cgroup with a limit: name the directory of one",
                path.display()
            )
        })?;
        let group = Self {
            path: path.to_owned(),
            files,
        };
        if let Some(limit) = group.limit()? {
            ensure!(
                budget <= limit,
                "{} may use {limit} bytes, and {budget} are to be held: choose a smaller `budget` or raise its limit",
                path.display()
            );
        }
        let procs = path.join("cgroup.procs");
        fs::write(&procs, std::process::id().to_string())
            .with_context(|| format!("moving this process into {}", path.display()))?;
        Ok(group)
    }

    /// Returns how much it uses.
    pub(crate) fn status(&self) -> GroupStatus {
        GroupStatus {
            path: self.path.clone(),
            limit_bytes: self.limit().ok().flatten(),
            charged_bytes: self.number(self.files.1).ok().flatten().unwrap_or(0),
        }
    }

    fn limit(&self) -> anyhow::Result<Option<u64>> {
        Ok(self
            .number(self.files.0)?
            .filter(|limit| *limit < UNLIMITED))
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
