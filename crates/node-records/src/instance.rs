//! The node's records: instances, which are the present mounts, and desired mounts, which
//! are made again after a reboot.
//!
//! An instance is of no use after a reboot, when its mount is gone; so it is in the run
//! directory. A desired mount is only a spec, in the state directory, and lasts until somebody
//! unmounts by name. Both are written to a temporary file and renamed: a record is whole or absent.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use yolofs::MountIds;

use crate::company::Company;
use crate::hello::HelloBytes;
use node_api::spec::MountSpec;

/// A mount that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Its name: that of its place.
    pub id: String,
    /// Distinguishes it from all other mounts at the same place: an unmounted one may still be
    /// in use when the next one is made there.
    pub key: String,
    /// The requested specification.
    pub spec: MountSpec,
    /// The mount in the table.
    pub mount: MountRef,
    /// The FUSE handshake (FUSE_INIT) with the kernel.
    pub hello: HelloBytes,
    /// The worker that serves it.
    pub worker: Option<ProcessRef>,
    /// Whether its worker serves no other mount, because it crashed others.
    #[serde(default)]
    pub alone: bool,
    /// Whether the visible mount is gone.
    pub leaving: bool,
    /// How often its worker was replaced, upgrades not counted.
    pub restarts: u64,
    /// Milliseconds from the death of the last worker until its successor served.
    pub last_gap_ms: Option<u64>,
}

impl Instance {
    /// Returns what kind of worker it is to have.
    #[must_use]
    pub fn company(&self) -> Company {
        Company::of(&self.spec, self.alone)
    }
}

/// Distinguishes a mount from all others: [`MountIds`] in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRef {
    id: u64,
    major: u32,
    minor: u32,
}

impl From<MountIds> for MountRef {
    fn from(ids: MountIds) -> Self {
        let MountIds { id, major, minor } = ids;
        Self { id, major, minor }
    }
}

impl From<MountRef> for MountIds {
    fn from(mount: MountRef) -> Self {
        let MountRef { id, major, minor } = mount;
        Self { id, major, minor }
    }
}

/// A process, and not a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRef {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
}

/// A mount that shall be there after a reboot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredMount {
    /// The requested specification.
    pub spec: MountSpec,
}

/// Where instances are, in the run directory.
const INSTANCES: &str = "node";

/// Returns the instances in a run directory, for other processes than its node: none if it never had
/// a node.
///
/// # Errors
/// If the directory cannot be read.
pub fn instances_in(run_dir: &Path) -> anyhow::Result<Found<Instance>> {
    let dir = run_dir.join(INSTANCES);
    if !dir.exists() {
        return Ok(Found {
            records: Vec::new(),
            damaged: Vec::new(),
        });
    }
    read(&dir)
}

/// The contents of a directory of records.
#[derive(Debug)]
pub struct Found<T> {
    /// Those that can be read, by the names of their files.
    pub records: Vec<(String, T)>,
    /// Records that cannot be read.
    pub damaged: Vec<PathBuf>,
}

/// The directories of the records.
#[derive(Clone, Debug)]
pub struct Records {
    instances: PathBuf,
    desired_mounts: PathBuf,
}

impl Records {
    /// Opens the directories, and creates them if they are missing.
    ///
    /// # Errors
    /// If they cannot be created.
    pub fn open(run_dir: &Path, state_dir: &Path) -> anyhow::Result<Self> {
        let records = Self {
            instances: run_dir.join(INSTANCES),
            desired_mounts: state_dir.join("mounts"),
        };
        private_dir(&records.instances)?;
        private_dir(&records.desired_mounts)?;
        Ok(records)
    }

    /// Returns the directory of the mounts that are to be made again after a reboot.
    #[must_use]
    pub fn desired_dir(&self) -> &Path {
        &self.desired_mounts
    }

    /// Writes an instance.
    ///
    /// # Errors
    /// If the run directory cannot be written.
    pub fn keep(&self, instance: &Instance) -> anyhow::Result<()> {
        write(&self.instances, &instance.key, instance, Lasts::UntilReboot)
    }

    /// Removes an instance with its names.
    pub fn forget(&self, key: &str) {
        for suffix in ["json", "names"] {
            remove(&self.instances.join(format!("{key}.{suffix}")));
        }
    }

    /// Returns all instances.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn instances(&self) -> anyhow::Result<Found<Instance>> {
        read(&self.instances)
    }

    /// Opens the file in which the workers of an instance write down its names.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn names(&self, key: &str) -> anyhow::Result<OwnedFd> {
        let path = self.instances.join(format!("{key}.names"));
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path);
        let file = file.with_context(|| format!("making {}", path.display()))?;
        Ok(file.into())
    }

    /// Writes down that a mount is desired.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub fn keep_desired(&self, id: &str, spec: &MountSpec) -> anyhow::Result<()> {
        let desired = DesiredMount { spec: spec.clone() };
        write(&self.desired_mounts, id, &desired, Lasts::ForEver)
    }

    /// Removes the record that a mount is desired, and returns whether there was one.
    pub fn forget_desired(&self, id: &str) -> bool {
        remove(&self.desired_mounts.join(format!("{id}.json")))
    }

    /// Returns whether a mount is desired.
    pub fn is_desired(&self, id: &str) -> bool {
        self.desired_mounts.join(format!("{id}.json")).exists()
    }

    /// Returns all desired mounts.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn desired_mounts(&self) -> anyhow::Result<Found<DesiredMount>> {
        read(&self.desired_mounts)
    }
}

/// Creates a directory that only its owner can read, if it is missing: names of files are
/// private.
///
/// # Errors
/// If it cannot be created.
pub fn private_dir(dir: &Path) -> anyhow::Result<()> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("making {}", dir.display()))
}

/// How long a record must last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lasts {
    UntilReboot,
    ForEver,
}

pub(crate) fn write<T: Serialize>(
    dir: &Path,
    name: &str,
    record: &T,
    lasts: Lasts,
) -> anyhow::Result<()> {
    let path = dir.join(format!("{name}.json"));
    let aside = dir.join(format!(".{name}.new"));
    let written = || {
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(record)?)?;
        if lasts == Lasts::ForEver {
            file.sync_all()?;
        }
        fs::rename(&aside, &path)?;
        if lasts == Lasts::ForEver {
            File::open(dir)?.sync_all()?;
        }
        std::io::Result::Ok(())
    };
    written().with_context(|| format!("writing {}", path.display()))
}

pub(crate) fn remove(path: &Path) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                log::warn!("cannot remove {}: {error}", path.display());
            }
            false
        }
    }
}

pub(crate) fn read<T: DeserializeOwned>(dir: &Path) -> anyhow::Result<Found<T>> {
    let mut found = Found {
        records: Vec::new(),
        damaged: Vec::new(),
    };
    let entries = fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", dir.display()))?
            .path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| {
            path.extension().is_some_and(|suffix| suffix == "json") && !name.starts_with('.')
        }) else {
            continue;
        };
        let record = fs::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(serde_json::from_slice(&text)?));
        match record {
            Ok(record) => found.records.push((name.to_owned(), record)),
            Err(error) => {
                log::warn!("{} is damaged and left out: {error:#}", path.display());
                found.damaged.push(path);
            }
        }
    }
    found.records.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(place: &str) -> MountSpec {
        let spec = serde_json::json!({"source": "/srv", "mountpoint": place, "store": "/store"});
        serde_json::from_value(spec).unwrap()
    }

    /// An earlier release refuses a record, a request or an adoption that has a field which it does not
    /// know; so a field that came later is there only when it is asked for.
    #[test]
    fn a_spec_that_asks_for_nothing_new_is_read_by_earlier_releases() {
        let mut spec = spec("/mnt");
        let text = serde_json::to_string(&spec).unwrap();
        assert!(!text.contains("all_xattrs"), "{text}");
        spec.all_xattrs = true;
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<MountSpec>(&text).unwrap(), spec);
    }

    #[test]
    fn records_come_back_and_damaged_ones_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (run, state) = (dir.path().join("run"), dir.path().join("state"));
        let records = Records::open(&run, &state).unwrap();
        let instance = Instance {
            id: "a".to_owned(),
            key: "a-47".to_owned(),
            spec: spec("/mnt"),
            mount: MountRef {
                id: 31,
                major: 0,
                minor: 47,
            },
            hello: HelloBytes::default(),
            worker: None,
            alone: true,
            leaving: false,
            restarts: 3,
            last_gap_ms: None,
        };
        records.keep(&instance).unwrap();
        assert!(!records.is_desired("a"));
        records.keep_desired("a", &spec("/mnt")).unwrap();
        assert!(records.is_desired("a"));
        fs::write(run.join("node/b-1.json"), "{\"half\":").unwrap();
        fs::write(run.join("node/.c-1.new"), "{").unwrap();
        let found = records.instances().unwrap();
        assert_eq!(found.records, [("a-47".to_owned(), instance)]);
        assert_eq!(found.damaged, [run.join("node/b-1.json")]);
        let desired_mounts = records.desired_mounts().unwrap();
        assert_eq!(desired_mounts.records[0].1.spec, spec("/mnt"));
        assert!(records.forget_desired("a"));
        assert!(!records.forget_desired("a"));
        assert!(records.desired_mounts().unwrap().records.is_empty());
        let _names = records.names("a-47").unwrap();
        records.forget("a-47");
        assert!(records.instances().unwrap().records.is_empty());
        assert!(!run.join("node/a-47.names").exists());
    }
}
