//! The records of running sandboxes, from which the next daemon finds them.
//!
//! A record is one file, named by the slot of its sandbox, and is written when its process runs. A
//! sandbox without a complete record was never reported to a client: it is ended.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Result, at, step};
use crate::request::Request;

/// The longest record: a request has at most a megabyte of strings, which JSON may spell six times as
/// long.
const RECORD_MAX_BYTES: u64 = 8 << 20;

/// A running sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) pid: u32,
    /// When that started, in clock ticks since the machine did.
    pub(crate) started: u64,
    /// In milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// The user that it is.
    pub(crate) user: u32,
    /// The inodes of the pipes of its output, if they are ours.
    pub(crate) pipes: Option<[u64; 2]>,
    /// The Zygotes that it descends from, the first one first.
    #[serde(default)]
    pub(crate) ancestry: Vec<String>,
    /// Its address on the bridge.
    #[serde(default)]
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) request: Request,
}

/// The directory of records.
#[derive(Debug)]
pub(crate) struct Records(PathBuf);

impl Records {
    pub(crate) fn open(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).map_err(at("making", &dir))?;
        Ok(Self(dir))
    }

    fn path(&self, slot: u32) -> PathBuf {
        self.0.join(format!("{slot}.json"))
    }

    /// Writes a record, in one call: a reader finds all of it or ignores it.
    pub(crate) fn write(&self, slot: u32, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).map_err(step("writing a record"))?;
        fs::write(self.path(slot), text).map_err(at("writing", self.path(slot)))
    }

    /// Removes a record, if there is one.
    pub(crate) fn remove(&self, slot: u32) {
        let path = self.path(slot);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                log::warn!("removing {}: {error}", path.display());
            }
            _ => {}
        }
    }

    /// Returns the slots that have a record, each with what could be read.
    pub(crate) fn list(&self) -> Result<Vec<(u32, Option<Record>)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(at("reading", &self.0))? {
            let path = entry.map_err(at("reading", &self.0))?.path();
            let slot = path
                .file_stem()
                .and_then(|stem| stem.to_str()?.parse().ok());
            if let Some(slot) = slot {
                found.push((slot, read(&path)));
            }
        }
        Ok(found)
    }
}

/// Returns a name that no other sandbox has.
pub(crate) fn new_id() -> Result<String> {
    let id = getrandom::u64().map_err(|error| std::io::Error::other(error.to_string()));
    Ok(format!(
        "{:012x}",
        id.map_err(step("choosing a name"))? >> 16
    ))
}

fn read(path: &Path) -> Option<Record> {
    let len = fs::metadata(path).ok()?.len();
    if len > RECORD_MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_and_half_of_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().join("new")).unwrap();
        let record = Record {
            id: "a".to_owned(),
            pid: 1,
            started: 2,
            created_ms: 3,
            user: 6,
            pipes: Some([4, 5]),
            ancestry: vec!["z".to_owned()],
            address: Some(Ipv4Addr::new(10, 0, 0, 2)),
            request: Request::new("base", &["/bin/true"]),
        };
        records.write(7, &record).unwrap();
        records.write(8, &record).unwrap();
        let whole = fs::read(records.path(8)).unwrap();
        fs::write(records.path(8), &whole[..whole.len() / 2]).unwrap();
        fs::write(dir.path().join("new/other"), b"").unwrap();
        let mut list = records.list().unwrap();
        list.sort_by_key(|(slot, _)| *slot);
        assert_eq!(list, [(7, Some(record)), (8, None)]);
        records.remove(7);
        records.remove(7);
        assert_eq!(records.list().unwrap().len(), 1);
    }
}
