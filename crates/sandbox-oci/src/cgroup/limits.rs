//! Limits, in the files that either version of control groups has for them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Groups, put};
use crate::error::{Result, at, invalid};
use crate::plan::resources::Resources;

/// Sets the limits of a container's groups.
pub(super) struct Setter<'a>(pub(super) &'a Groups);

/// Where a controller's files are.
enum Place {
    Legacy(PathBuf),
    Unified(PathBuf),
}

impl Setter<'_> {
    pub(super) fn set_all(&self, resources: &Resources) -> Result<()> {
        self.set_memory(resources)?;
        self.set_cpu(resources)?;
        if let Some(cpus) = &resources.cpus {
            self.set("cpuset", "cpuset.cpus", "cpuset.cpus", cpus)?;
        }
        if let Some(mems) = &resources.mems {
            self.set("cpuset", "cpuset.mems", "cpuset.mems", mems)?;
        }
        if let Some(most) = resources.pids {
            self.set("pids", "pids.max", "pids.max", &or_max(most))?;
        }
        Ok(())
    }

    fn set_memory(&self, resources: &Resources) -> Result<()> {
        let (limit, both) = (resources.memory, resources.memory_and_swap);
        if limit.is_none() && both.is_none() && resources.memory_reservation.is_none() {
            return Ok(());
        }
        match self.place("memory")? {
            Place::Legacy(dir) => {
                let limit_file = dir.join("memory.limit_in_bytes");
                let both_file = dir.join("memory.memsw.limit_in_bytes");
                // Neither may be beyond the other at any time, so which comes first depends.
                let first = limit.is_some_and(|limit| is_beyond(&both_file, limit));
                if let Some(both) = both.filter(|_| first) {
                    put(&both_file, &both.to_string())?;
                }
                if let Some(limit) = limit {
                    put(&limit_file, &limit.to_string())?;
                }
                if let Some(both) = both.filter(|_| !first) {
                    put(&both_file, &both.to_string())?;
                }
                if let Some(bytes) = resources.memory_reservation {
                    put(&dir.join("memory.soft_limit_in_bytes"), &bytes.to_string())?;
                }
            }
            Place::Unified(dir) => {
                if let Some(both) = both {
                    let swap = match (both, limit) {
                        (-1, _) => -1,
                        (both, Some(limit)) if limit >= 0 && limit <= both => both - limit,
                        _ => return invalid("memory and swap together need a limit of memory"),
                    };
                    put(&dir.join("memory.swap.max"), &or_max(swap))?;
                }
                if let Some(limit) = limit {
                    put(&dir.join("memory.max"), &or_max(limit))?;
                }
                if let Some(bytes) = resources.memory_reservation {
                    put(&dir.join("memory.low"), &or_max(bytes))?;
                }
            }
        }
        Ok(())
    }

    fn set_cpu(&self, resources: &Resources) -> Result<()> {
        if let Some(shares) = resources.cpu_shares {
            let weight = weight(shares).to_string();
            match self.place("cpu")? {
                Place::Legacy(dir) => put(&dir.join("cpu.shares"), &shares.to_string())?,
                Place::Unified(dir) => put(&dir.join("cpu.weight"), &weight)?,
            }
        }
        let (quota, period) = (resources.cpu_quota, resources.cpu_period);
        if quota.is_none() && period.is_none() {
            return Ok(());
        }
        match self.place("cpu")? {
            Place::Legacy(dir) => {
                if let Some(period) = period {
                    put(&dir.join("cpu.cfs_period_us"), &period.to_string())?;
                }
                if let Some(quota) = quota {
                    put(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
                }
                Ok(())
            }
            Place::Unified(dir) => {
                let quota = quota.map_or("max".to_owned(), or_max);
                let period = period.unwrap_or(100_000);
                put(&dir.join("cpu.max"), &format!("{quota} {period}"))
            }
        }
    }

    fn set(&self, controller: &str, legacy: &str, unified: &str, value: &str) -> Result<()> {
        match self.place(controller)? {
            Place::Legacy(dir) => put(&dir.join(legacy), value),
            Place::Unified(dir) => put(&dir.join(unified), value),
        }
    }

    fn place(&self, controller: &str) -> Result<Place> {
        let bounds = |names: &[String]| names.iter().any(|name| name == controller);
        if let Some(legacy) = self
            .0
            .legacy
            .values()
            .find(|legacy| bounds(&legacy.controllers))
        {
            return Ok(Place::Legacy(legacy.dir.clone()));
        }
        let path = self.0.unified.join("cgroup.controllers");
        let known = fs::read_to_string(&path).map_err(at("reading", path))?;
        match known.split_whitespace().any(|name| name == controller) {
            true => Ok(Place::Unified(self.0.unified.clone())),
            false => invalid(format!(
                "this machine's control groups do not bound {controller}"
            )),
        }
    }
}

fn or_max(value: i64) -> String {
    match value {
        value if value < 0 => "max".to_owned(),
        value => value.to_string(),
    }
}

/// Returns whether a limit is higher than what a file says. -1 is no limit.
fn is_beyond(file: &Path, limit: i64) -> bool {
    let now = fs::read_to_string(file).ok();
    let now = now.and_then(|now| now.trim().parse::<i64>().ok());
    now.is_some_and(|now| limit < 0 || limit > now)
}

/// From 2 to 262144, of which 1024 is normal, to 1 to 10000, of which 100 is: as the other runtimes do it.
const fn weight(shares: u64) -> u64 {
    let shares = if shares < 2 {
        2
    } else if shares > 262_144 {
        262_144
    } else {
        shares
    };
    1 + ((shares - 2) * 9999) / 262_142
}

/// Copies the processors of the parent to a new group of `cpuset`, which has none, so that processes can enter it.
pub(super) fn inherit_cpuset(dir: &Path, path: &Path) -> Result<()> {
    let depth = path.components().count().saturating_sub(1);
    let way: Vec<_> = dir.ancestors().take(depth).collect();
    for dir in way.iter().rev() {
        for name in ["cpuset.cpus", "cpuset.mems"] {
            let file = dir.join(name);
            let own = fs::read_to_string(&file).map_err(at("reading", &file))?;
            if own.trim().is_empty()
                && let Some(parent) = dir.parent()
            {
                let above = parent.join(name);
                let above = fs::read_to_string(&above).map_err(at("reading", above))?;
                put(&file, above.trim())?;
            }
        }
    }
    Ok(())
}
