//! The engines of today, which `scripts/engines.sh` builds.

use std::ffi::OsString;
use std::path::PathBuf;

use super::repository;

/// Which engines a test is with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// Debian's: containerd 1.6 and Docker 20.10.
    Debian,
    /// containerd 2.4 and Docker 29.
    Today,
}

impl Engines {
    /// Returns a program of theirs. Panics if it is not there.
    pub fn program(self, name: &str) -> PathBuf {
        match self {
            Self::Debian => PathBuf::from(name),
            Self::Today => {
                let path = bin().join(name);
                let missing = format!("{} is missing: run scripts/engines.sh", path.display());
                assert!(path.exists(), "{missing}");
                path
            }
        }
    }

    /// Returns the path in which they find the programs that belong to them.
    pub fn path(self) -> OsString {
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        if self == Self::Today {
            let mut first = bin().into_os_string();
            first.push(":");
            first.push(path);
            path = first;
        }
        path
    }
}

/// Returns a runc that makes idmapped mounts, which Debian 12's does not. Panics if it is not there.
pub fn runc_that_maps() -> PathBuf {
    let path = repository().join(".cache/runc/runc");
    let missing = format!("{} is missing: run scripts/runc.sh", path.display());
    path.canonicalize().expect(&missing)
}

fn bin() -> PathBuf {
    let dir = std::env::var_os("YOLOFS_ENGINES")
        .map_or_else(|| repository().join(".cache/engines"), PathBuf::from);
    dir.join("bin")
}
