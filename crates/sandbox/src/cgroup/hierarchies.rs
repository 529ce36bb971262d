//! Which hierarchies of control groups the machine has, and our place in them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{made, put};
use crate::error::{Result, SandboxError, at};

/// The directories that sandboxes' groups are made in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchies {
    /// In the hierarchy of version 2.
    pub(crate) unified: PathBuf,
    /// Whether that has the controllers of memory and CPU time.
    pub(crate) has_controllers: bool,
    /// In the hierarchy of version 1 that limits memory, if it is mounted.
    pub(crate) memory: Option<PathBuf>,
    /// In that which bounds CPU time.
    pub(crate) cpu: Option<PathBuf>,
}

/// The controllers that are used where version 2 has them.
const CONTROLLERS: &[&str] = &["memory", "cpu"];

impl Hierarchies {
    /// Finds the hierarchies, and makes the group `name` in each that is used.
    pub(crate) fn open(name: &str) -> Result<Self> {
        if name.is_empty() || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(SandboxError::Invalid(format!(
                "{name:?} is no path of a control group: it is relative, such as yolofs/sandboxes"
            )));
        }
        let table = "/proc/self/mountinfo";
        let table = fs::read_to_string(table).map_err(at("reading", table))?;
        let mounts = Mounts::read(&table);
        let Some(root) = mounts.unified else {
            return Err(SandboxError::Invalid(
                "no hierarchy of control groups of version 2 is mounted, which freezes and kills \
                 sandboxes: mount -t cgroup2 none DIRECTORY"
                    .to_owned(),
            ));
        };
        let unified = root.join(name);
        fs::create_dir_all(&unified).map_err(at("making the control group", &unified))?;
        let has_controllers = delegate(&root, &unified)?;
        let legacy = |root: Option<PathBuf>| match root {
            Some(root) if !has_controllers => {
                let dir = root.join(name);
                fs::create_dir_all(&dir).map_err(at("making the control group", &dir))?;
                made(dir).map(Some)
            }
            _ => Ok(None),
        };
        Ok(Self {
            unified,
            has_controllers,
            memory: legacy(mounts.memory)?,
            cpu: legacy(mounts.cpu)?,
        })
    }
}

/// Enables the controllers for the groups below `dir`, which is one of ours.
pub(super) fn delegate_below(hierarchies: &Hierarchies, dir: &Path) -> Result<()> {
    match hierarchies.has_controllers {
        true => put(&dir.join("cgroup.subtree_control"), "+memory +cpu"),
        false => Ok(()),
    }
}

/// Has the groups below `dir` bound what they can. Returns whether they bound all of it.
fn delegate(root: &Path, dir: &Path) -> Result<bool> {
    let path = root.join("cgroup.controllers");
    let known = fs::read_to_string(&path).map_err(at("reading", path))?;
    let known: Vec<_> = known.split_whitespace().collect();
    if !CONTROLLERS.iter().all(|name| known.contains(name)) {
        return Ok(false);
    }
    let wanted: Vec<_> = CONTROLLERS.iter().map(|name| format!("+{name}")).collect();
    // Each on the way down, and `dir` itself.
    let mut way: Vec<_> = dir.ancestors().take_while(|dir| *dir != root).collect();
    way.push(root);
    for dir in way.iter().rev() {
        put(&dir.join("cgroup.subtree_control"), &wanted.join(" "))?;
    }
    Ok(true)
}

/// Where hierarchies are mounted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    unified: Option<PathBuf>,
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
}

impl Mounts {
    /// Reads `/proc/self/mountinfo`.
    fn read(table: &str) -> Self {
        let mut mounts = Self::default();
        for line in table.lines() {
            let Some((place, fs)) = line.split_once(" - ") else {
                continue;
            };
            let mut fs = fs.split(' ');
            let (kind, options) = (fs.next(), fs.nth(1).unwrap_or(""));
            let dir = place.split(' ').nth(4).map(PathBuf::from);
            let has = |name| options.split(',').any(|option| option == name);
            match kind {
                Some("cgroup2") => mounts.unified = mounts.unified.or(dir),
                Some("cgroup") if has("memory") => mounts.memory = mounts.memory.or(dir),
                Some("cgroup") if has("cpu") => mounts.cpu = mounts.cpu.or(dir),
                _ => {}
            }
        }
        mounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_in_the_table_of_mounts() {
        let table = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
34 31 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
35 31 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
36 31 0:32 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
a line that is none";
        let expected = Mounts {
            unified: Some("/sys/fs/cgroup/unified".into()),
            memory: Some("/sys/fs/cgroup/memory".into()),
            cpu: Some("/sys/fs/cgroup/cpu,cpuacct".into()),
        };
        assert_eq!(Mounts::read(table), expected);
        assert_eq!(Mounts::read(""), Mounts::default());
    }

    #[test]
    fn a_name_stays_below_the_hierarchies() {
        for name in ["", "/a", "../a", "a//b", "a/."] {
            assert!(matches!(
                Hierarchies::open(name),
                Err(SandboxError::Invalid(_))
            ));
        }
    }
}
