//! The records of a store of packages: where they came from, and the results of resolutions.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Result, at};

/// A record has at most some hundred names.
const RECORD_MAX_BYTES: u64 = 1 << 20;

/// An installed package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// `NAME==VERSION`.
    pub package: String,
    /// The base that it was installed for.
    pub base: String,
    /// The bytes of its files.
    pub bytes: u64,
    /// How many files it has.
    pub files: u64,
    /// How long its installation took, in milliseconds.
    pub install_ms: u64,
    /// When that was, in milliseconds since 1970.
    pub installed_ms: u64,
}

/// The result of a resolution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// The requirements, in order.
    pub requirements: Vec<String>,
    /// All packages that these need, each `NAME==VERSION`.
    pub packages: BTreeSet<String>,
}

/// Where the resolution of requirements is kept.
pub(crate) fn path_of(dir: &Path, requirements: &[String]) -> PathBuf {
    let mut hash = Sha256::new();
    for requirement in requirements {
        hash.update(requirement.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let name: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    dir.join(format!("{name}.json"))
}

/// Reads a record. A missing, overlong or invalid one is `None`.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    if fs::metadata(path).ok()?.len() > RECORD_MAX_BYTES {
        return None;
    }
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes a record so that a reader finds all of it or the former one, even after a crash.
pub(crate) fn write<T: Serialize>(path: &Path, aside: &Path, record: &T) -> Result<()> {
    let text = serde_json::to_vec_pretty(record).map_err(at("writing", path))?;
    let written = fs::File::create(aside).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.map_err(at("writing", aside))?;
    fs::rename(aside, path).map_err(at("writing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_whole_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let requirements = ["a".to_owned(), "b>1".to_owned()];
        let path = path_of(dir.path(), &requirements);
        assert_ne!(path, path_of(dir.path(), &["ab>1".to_owned()]));
        let record = Resolution {
            requirements: requirements.to_vec(),
            packages: BTreeSet::from(["a==1".to_owned()]),
        };
        write(&path, &dir.path().join("aside"), &record).unwrap();
        assert_eq!(read(&path), Some(record));
        fs::write(&path, b"{\"requirements\":").unwrap();
        assert_eq!(read::<Resolution>(&path), None);
        assert_eq!(read::<Resolution>(&dir.path().join("none")), None);
    }
}
