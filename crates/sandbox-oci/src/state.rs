//! The state of a container between two commands: a file in the directory that the engine names.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use oci_spec::runtime::Hook;
use rawio::pidfd::PidFd;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cgroup::Groups;
use crate::error::{OciError, Result, at, invalid};

/// The file of a container. `runc` has another one in a directory of the same name.
const FILE: &str = "sandbox-oci.json";
/// Where its process waits to be started.
const SOCKET: &str = "start.sock";
/// A longer name is no container's.
const ID_MAX_BYTES: usize = 1024;

/// The state of a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) id: String,
    /// The version of its specification.
    pub(crate) version: String,
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: PathBuf,
    /// When it was made, as RFC 3339 writes it.
    pub(crate) created: String,
    /// Its first process, and when that began; 0 before there is one.
    pub(crate) pid: u32,
    pub(crate) began: u64,
    pub(crate) groups: Groups,
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
    /// Its process as the specification has it, which those that are executed beside it resemble.
    pub(crate) process: Value,
    /// Its filter, which they have, too.
    pub(crate) seccomp: Value,
    pub(crate) poststart: Vec<Hook>,
    pub(crate) poststop: Vec<Hook>,
}

/// The status of a container, in the terms of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Created,
    Running,
    Paused,
    Stopped,
}

impl Status {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

/// The place of a container's files.
#[derive(Clone, Debug)]
pub(crate) struct Home(PathBuf);

impl Home {
    /// Returns where the files of a container are.
    pub(crate) fn of(root: &Path, id: &str) -> Result<Self> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
        if id.is_empty()
            || id.len() > ID_MAX_BYTES
            || matches!(id, "." | "..")
            || !id.bytes().all(good)
        {
            return invalid(format!("invalid container id format: {id:?}"));
        }
        Ok(Self(root.join(id)))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }

    /// Returns whether a container of this program is stored there.
    pub(crate) fn is_ours(&self) -> bool {
        self.0.join(FILE).exists()
    }

    /// Reserves the name of a new container.
    pub(crate) fn make(&self) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt as _;
        if let Some(root) = self.0.parent() {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(root);
            made.map_err(at("making", root))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let id = self.0.file_name().unwrap_or_default().to_string_lossy();
                Err(OciError::Exists(id.into_owned()))
            }
            made => made.map_err(at("making", &self.0)),
        }
    }

    /// Stores a container atomically.
    pub(crate) fn save(&self, saved: &Saved) -> Result<()> {
        let path = self.0.join(FILE);
        let new = self.0.join(format!("{FILE}.new"));
        let text = serde_json::to_vec(saved)
            .map_err(|error| at("writing", &path)(io::Error::from(error)))?;
        let mut file = rawio::private::open_or_create(&new).map_err(at("making", &new))?;
        file.set_len(0).map_err(at("writing", &new))?;
        file.write_all(&text).map_err(at("writing", &new))?;
        fs::rename(&new, &path).map_err(at("renaming", &new))
    }

    /// Returns the stored container.
    pub(crate) fn load(&self) -> Result<Saved> {
        let path = self.0.join(FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = self.0.file_name().unwrap_or_default().to_string_lossy();
                return Err(OciError::Unknown(id.into_owned()));
            }
            text => text.map_err(at("reading", &path))?,
        };
        serde_json::from_slice(&text).map_err(|error| at("reading", &path)(io::Error::from(error)))
    }

    /// Removes everything.
    pub(crate) fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(at("removing", &self.0)(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns what a container is doing.
    pub(crate) fn status(&self, saved: &Saved) -> Result<Status> {
        if saved.process()?.is_none() {
            return Ok(Status::Stopped);
        }
        if self.socket().exists() {
            return Ok(Status::Created);
        }
        match saved.groups.is_frozen()? {
            true => Ok(Status::Paused),
            false => Ok(Status::Running),
        }
    }
}

impl Saved {
    /// Returns its first process, if that has not ended: the one of its number that began when it did.
    pub(crate) fn process(&self) -> Result<Option<PidFd>> {
        if self.pid == 0 {
            return Ok(None);
        }
        let Ok(process) = PidFd::open(self.pid) else {
            return Ok(None);
        };
        // Asked once it is held: the number cannot have been given to another meanwhile.
        let own = began(self.pid).is_some_and(|(began, runs)| began == self.began && runs);
        Ok(own.then_some(process))
    }

    /// Returns the state for hooks and engines.
    pub(crate) fn state(&self, status: Status) -> Value {
        let pid = match status {
            Status::Stopped => 0,
            _ => self.pid,
        };
        json!({
            "ociVersion": self.version,
            "id": self.id,
            "pid": pid,
            "status": status.word(),
            "bundle": self.bundle,
            "rootfs": self.rootfs,
            "created": self.created,
            "annotations": self.annotations,
            "owner": "",
        })
    }
}

/// Returns when a process began, in the kernel's ticks, and whether it runs, or is a zombie.
pub(crate) fn began(pid: u32) -> Option<(u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, in parentheses, may have spaces and parentheses itself.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let runs = !matches!(fields.next()?, "Z" | "X" | "x");
    Some((fields.nth(18)?.parse().ok()?, runs))
}

/// Returns now, as RFC 3339 writes it.
pub fn now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    written(since.as_secs(), since.subsec_nanos())
}

fn written(seconds: u64, nanos: u32) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut left) = (1970, days);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
    ] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z",
        left + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_people_and_engines_read_them() {
        assert_eq!(written(0, 1), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(written(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(written(1_795_564_799, 0), "2026-11-24T23:59:59.000000000Z");
        assert_eq!(written(1_767_225_599, 0), "2025-12-31T23:59:59.000000000Z");
    }

    #[test]
    fn a_name_stays_in_the_directory() {
        for id in ["", ".", "..", "a/b", "a b", "../x"] {
            assert!(Home::of(Path::new("/run"), id).is_err(), "{id}");
        }
        assert_eq!(
            Home::of(Path::new("/run"), "a.b+c_d-1").unwrap().dir(),
            Path::new("/run/a.b+c_d-1")
        );
    }

    #[test]
    fn a_process_is_known_by_when_it_began() {
        let (own, runs) = began(std::process::id()).unwrap();
        assert!(own > 0 && runs);
    }
}
