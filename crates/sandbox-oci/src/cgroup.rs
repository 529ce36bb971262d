//! The control groups of a container: one in the hierarchy of version 2, which kills, freezes and filters devices, and
//! one in each hierarchy of version 1 that the machine has, for limits.

mod devices;
mod limits;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::error::{OciError, Result, at, invalid};
use crate::plan::resources::Resources;

/// How long a group may take to freeze, and its processes to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The directories of a container's groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Groups {
    /// In the hierarchy of version 2.
    pub(crate) unified: PathBuf,
    /// In those of version 1, by the name that the hierarchy is mounted under.
    pub(crate) legacy: BTreeMap<String, Legacy>,
}

/// A group in a hierarchy of version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Legacy {
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Its controllers.
    pub(crate) controllers: Vec<String>,
}

impl Groups {
    /// Makes the groups at `path` of each hierarchy, and sets their limits.
    ///
    /// # Errors
    /// If there is no hierarchy of version 2; if the groups have processes; or if a limit cannot be set.
    pub(crate) fn make(path: &Path, resources: &Resources) -> Result<Self> {
        let table = "/proc/self/mountinfo";
        let table = fs::read_to_string(table).map_err(at("reading", table))?;
        let Some(groups) = Self::find(&table, path) else {
            return invalid("no hierarchy of control groups of version 2 is mounted");
        };
        let made = groups.make_all(path, resources);
        if made.is_err() {
            groups.remove()?;
        }
        made.map(|()| groups)
    }

    /// Finds where the groups of a container would be.
    fn find(table: &str, path: &Path) -> Option<Self> {
        let below = path.strip_prefix("/").unwrap_or(path);
        let mut unified = None;
        let mut legacy = BTreeMap::new();
        for line in table.lines() {
            let Some((place, fs)) = line.split_once(" - ") else {
                continue;
            };
            let mut fs = fs.split(' ');
            let (kind, options) = (fs.next(), fs.nth(1).unwrap_or(""));
            let Some(mounted) = place.split(' ').nth(4).map(PathBuf::from) else {
                continue;
            };
            let name = mounted
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let dir = mounted.join(below);
            match kind {
                Some("cgroup2") => unified = unified.or(Some(dir)),
                Some("cgroup") => {
                    let controllers = options.split(',').map(str::to_owned).collect();
                    legacy.entry(name).or_insert(Legacy { dir, controllers });
                }
                _ => {}
            }
        }
        unified.map(|unified| Self { unified, legacy })
    }

    fn make_all(&self, path: &Path, resources: &Resources) -> Result<()> {
        make_unified(&self.unified, path)?;
        for legacy in self.legacy.values() {
            fs::create_dir_all(&legacy.dir).map_err(at("making the control group", &legacy.dir))?;
            if legacy.controllers.iter().any(|name| name == "cpuset") {
                limits::inherit_cpuset(&legacy.dir, path)?;
            }
        }
        if self.is_populated()? {
            let dir = self.unified.display();
            return invalid(format!("somebody is in the control group {dir} already"));
        }
        self.limit(resources)?;
        devices::filter(&self.unified, &resources.devices)
    }

    /// Sets the given limits.
    pub(crate) fn limit(&self, resources: &Resources) -> Result<()> {
        limits::Setter(self).set_all(resources)
    }

    /// Opens the directory that a process can be born in.
    pub(crate) fn birthplace(&self) -> Result<File> {
        File::open(&self.unified).map_err(at("opening", &self.unified))
    }

    /// Opens what a process with one thread writes `0` to, to move itself into the groups of version 1.
    pub(crate) fn doors(&self) -> Result<Vec<File>> {
        let open = |legacy: &Legacy| {
            let path = legacy.dir.join("tasks");
            File::options()
                .write(true)
                .open(&path)
                .map_err(at("opening", path))
        };
        self.legacy.values().map(open).collect()
    }

    /// Returns the numbers of all processes.
    pub(crate) fn processes(&self) -> Result<Vec<u32>> {
        let mut pids = Vec::new();
        for dir in below(&self.unified).map_err(at("reading", &self.unified))? {
            let path = dir.join("cgroup.procs");
            let list = fs::read_to_string(&path).map_err(at("reading", path))?;
            pids.extend(list.lines().filter_map(|line| line.parse::<u32>().ok()));
        }
        Ok(pids)
    }

    /// Returns whether there is a process that has not ended.
    pub(crate) fn is_populated(&self) -> Result<bool> {
        self.event("populated")
    }

    /// Returns whether all processes are frozen.
    pub(crate) fn is_frozen(&self) -> Result<bool> {
        self.event("frozen")
    }

    fn event(&self, name: &str) -> Result<bool> {
        let path = self.unified.join("cgroup.events");
        match fs::read_to_string(&path) {
            Ok(events) => Ok(events.lines().any(|line| line == format!("{name} 1"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at("reading", path)(error)),
        }
    }

    /// Freezes or resumes all processes, and waits until that is done.
    pub(crate) fn freeze(&self, frozen: Frozen) -> Result<()> {
        let (value, wanted) = match frozen {
            Frozen::Yes => ("1", true),
            Frozen::No => ("0", false),
        };
        put(&self.unified.join("cgroup.freeze"), value)?;
        self.wait_for("freezing", || Ok(self.is_frozen()? == wanted))
    }

    /// Kills all processes, and waits for their end.
    pub(crate) fn kill(&self) -> Result<()> {
        if !self.unified.exists() {
            return Ok(());
        }
        put(&self.unified.join("cgroup.kill"), "1")?;
        self.wait_for("killing", || Ok(!self.is_populated()?))
    }

    fn wait_for(&self, doing: &'static str, arrived: impl Fn() -> Result<bool>) -> Result<()> {
        let path = self.unified.join("cgroup.events");
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Opened before it is asked: what changes afterwards makes it readable.
            let events = File::open(&path).map_err(at("opening", &path))?;
            let _read = io::read_to_string(&events).map_err(at("reading", &path))?;
            if arrived()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(at(doing, &self.unified)(io::Error::from(
                    io::ErrorKind::TimedOut,
                )));
            }
            let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
            let _woken = poll(&mut fds, 100_u16).map_err(at("waiting for", &path))?;
        }
    }

    /// Removes the groups and what containers made below them. They must be empty.
    pub(crate) fn remove(&self) -> Result<()> {
        let legacy = self.legacy.values().map(|legacy| legacy.dir.as_path());
        let mut failed = None;
        for dir in legacy.chain([self.unified.as_path()]) {
            if let Err(error) = remove_below(dir) {
                failed = Some(at("removing the control group", dir)(error));
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Whether a group is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frozen {
    Yes,
    No,
}

/// Makes a group of version 2, in which those above bound what they can.
fn make_unified(dir: &Path, path: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(at("making the control group", dir))?;
    let depth = path.components().count().saturating_sub(1);
    let above: Vec<_> = dir.ancestors().skip(1).take(depth).collect();
    for dir in above.iter().rev() {
        let known = dir.join("cgroup.controllers");
        let known = fs::read_to_string(&known).map_err(at("reading", known))?;
        let wanted = ["cpu", "cpuset", "memory", "pids"];
        let wanted = known
            .split_whitespace()
            .filter(|name| wanted.contains(name));
        let wanted: Vec<_> = wanted.map(|name| format!("+{name}")).collect();
        if !wanted.is_empty() {
            put(&dir.join("cgroup.subtree_control"), &wanted.join(" "))?;
        }
    }
    Ok(())
}

/// A directory and all below it, each behind those below it.
fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(dir) = found.get(next) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries.collect::<io::Result<Vec<_>>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for entry in entries {
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        next += 1;
    }
    found.reverse();
    Ok(found)
}

fn remove_below(dir: &Path) -> io::Result<()> {
    // The kernel lets go of a process's group a moment after the process was seen to end.
    let deadline = Instant::now() + PATIENCE;
    for dir in below(dir)? {
        loop {
            match fs::remove_dir(&dir) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error)
                    if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

pub(crate) fn put(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(|source| OciError::System {
        doing: "writing to",
        subject: path.to_owned(),
        source,
    })
}
