//! `--layers-fast`: where layers go that a pull waits for.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use nix::sys::statvfs::statvfs;
use snapshotter::FastPlace;

use crate::size::Size;

/// A bound for those who name none: the largest layers of most images, and little enough for a small
/// node.
const DEFAULT_MAX: Bound = Bound::Bytes(Size(2 << 30));

/// What `--layers-fast` names: `tmpfs` or a directory, and perhaps `,max=SIZE` or `,max=PERCENT%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LayersArg {
    dir: Option<PathBuf>,
    max: Bound,
}

/// What `--layers-by` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ByArg {
    /// By what is still being downloaded when containerd opens the layer
    Seen,
    /// By the sizes in the manifest
    Foreseen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Bytes(Size),
    /// Of the directory's file system.
    Percent(u64),
}

impl LayersArg {
    /// Returns the place, by a path that does not depend on where we are, and most bytes there.
    pub(super) fn place(&self) -> anyhow::Result<(FastPlace, u64)> {
        let Some(dir) = &self.dir else {
            return Ok((FastPlace::Tmpfs, self.max.of(Path::new("/"))?));
        };
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize().context("resolving --layers-fast")?;
        let max_bytes = self.max.of(&dir)?;
        Ok((FastPlace::Directory(dir), max_bytes))
    }
}

impl Bound {
    fn of(self, dir: &Path) -> anyhow::Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.0),
            Self::Percent(percent) => {
                let of = statvfs(dir).with_context(|| format!("looking at {}", dir.display()))?;
                let all = u128::from(of.blocks()) * u128::from(of.fragment_size());
                Ok(u64::try_from(all * u128::from(percent) / 100).unwrap_or(u64::MAX))
            }
        }
    }
}

impl FromStr for Bound {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bound = match text.strip_suffix('%') {
            Some(percent) => Self::Percent(percent.parse().context("a percentage is a number")?),
            None => Self::Bytes(text.parse()?),
        };
        match bound {
            Self::Bytes(Size(0)) | Self::Percent(0) => bail!("with max=0 nothing has room"),
            Self::Percent(101..) => bail!("more than all of it"),
            bound => Ok(bound),
        }
    }
}

impl FromStr for LayersArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (place, max) = match text.split_once(',') {
            None => (text, DEFAULT_MAX),
            Some((place, option)) => {
                let max = option.strip_prefix("max=");
                let max = max.with_context(|| format!("not max=SIZE: {option:?}"))?;
                (place, max.parse()?)
            }
        };
        let dir = match (place, max) {
            ("", _) => bail!("name tmpfs or a directory"),
            ("tmpfs", Bound::Percent(_)) => bail!("of a tmpfs name a size, as in tmpfs,max=4G"),
            ("tmpfs", _) => None,
            (dir, _) => Some(PathBuf::from(dir)),
        };
        Ok(Self { dir, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_place_and_its_bound() {
        let read = |text: &str| text.parse::<LayersArg>().unwrap();
        let of = |dir: Option<&str>, max| LayersArg {
            dir: dir.map(PathBuf::from),
            max,
        };
        assert_eq!(read("tmpfs"), of(None, DEFAULT_MAX));
        let four = Bound::Bytes(Size(4 << 30));
        assert_eq!(read("tmpfs,max=4G"), of(None, four));
        assert_eq!(read("/nvme/layers,max=4G"), of(Some("/nvme/layers"), four));
        assert_eq!(read("/x,max=20%"), of(Some("/x"), Bound::Percent(20)));
        for bad in [
            "",
            ",max=1G",
            "tmpfs,1G",
            "tmpfs,max=20%",
            "/x,max=0",
            "/x,max=0%",
            "/x,max=101%",
            "/x,max=%",
            "/x,max=1G,x",
        ] {
            assert!(bad.parse::<LayersArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_of_a_file_system_is_some_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let all = Bound::Percent(100).of(dir.path()).unwrap();
        assert!(all > 0);
        assert_eq!(Bound::Percent(50).of(dir.path()).unwrap(), all / 2);
    }
}
