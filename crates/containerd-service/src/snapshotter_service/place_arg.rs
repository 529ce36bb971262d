//! Where a fast place is, and how much may be there: what the settings `upper` and `layers_fast` name.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use nix::sys::statvfs::statvfs;
use snapshotter::FastPlace;

use host::size::Size;

/// `tmpfs` or a directory, and perhaps `,max=SIZE` or `,max=PERCENT%`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastPlaceSpec {
    place: FastPlace,
    max: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Bytes(Size),
    /// Of the directory's file system.
    Percent(u64),
}

impl FastPlaceSpec {
    /// Returns the place, as an absolute path, and its maximum size: `default` if none was
    /// given. `setting` is the name of the setting, for errors.
    pub fn open(&self, setting: &str, default: Size) -> anyhow::Result<(FastPlace, u64)> {
        let max = self.max.unwrap_or(Bound::Bytes(default));
        let FastPlace::Directory(dir) = &self.place else {
            return Ok((FastPlace::Tmpfs, max.of(Path::new("/"))?));
        };
        rawio::private::make_dir(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize();
        let dir = dir.with_context(|| format!("resolving the directory of `{setting}`"))?;
        let max_bytes = max.of(&dir)?;
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
            Self::Bytes(Size(0)) | Self::Percent(0) => bail!("max= must be more than 0"),
            Self::Percent(101..) => bail!("a percentage is at most 100"),
            bound => Ok(bound),
        }
    }
}

impl FromStr for FastPlaceSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (place, max) = match text.split_once(',') {
            None => (text, None),
            Some((place, option)) => {
                let max = option.strip_prefix("max=");
                let max = max.with_context(|| format!("not max=SIZE: {option:?}"))?;
                (place, Some(max.parse()?))
            }
        };
        let place = match (place, max) {
            ("", _) => bail!("name tmpfs or a directory"),
            ("tmpfs", Some(Bound::Percent(_))) => {
                bail!("a tmpfs needs a size, as in tmpfs,max=4G")
            }
            ("tmpfs", _) => FastPlace::Tmpfs,
            (dir, _) => FastPlace::Directory(PathBuf::from(dir)),
        };
        Ok(Self { place, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_place_and_its_bound() {
        let read = |text: &str| text.parse::<FastPlaceSpec>().unwrap();
        let of = |dir: Option<&str>, max| FastPlaceSpec {
            place: dir.map_or(FastPlace::Tmpfs, |dir| FastPlace::Directory(dir.into())),
            max,
        };
        assert_eq!(read("tmpfs"), of(None, None));
        let four = Some(Bound::Bytes(Size(4 << 30)));
        assert_eq!(read("tmpfs,max=4G"), of(None, four));
        assert_eq!(read("/nvme/layers"), of(Some("/nvme/layers"), None));
        assert_eq!(read("/nvme/layers,max=4G"), of(Some("/nvme/layers"), four));
        let fifth = Some(Bound::Percent(20));
        assert_eq!(read("/x,max=20%"), of(Some("/x"), fifth));
        for bad in [
            "",
            ",max=1G",
            "tmpfs,1G",
            "tmpfs,max=",
            "tmpfs,max=0",
            "tmpfs,max=20%",
            "/x,max=0",
            "/x,max=0%",
            "/x,max=101%",
            "/x,max=%",
            "/x,max=1G,x",
        ] {
            assert!(bad.parse::<FastPlaceSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_place_without_a_bound_has_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("{}/new", dir.path().display());
        let (place, max_bytes) = text
            .parse::<FastPlaceSpec>()
            .unwrap()
            .open("x", Size(7))
            .unwrap();
        let made = dir.path().canonicalize().unwrap().join("new");
        assert_eq!((place, max_bytes), (FastPlace::Directory(made), 7));
    }

    #[test]
    fn a_part_of_a_file_system_is_some_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let all = Bound::Percent(100).of(dir.path()).unwrap();
        assert!(all > 0);
        assert_eq!(Bound::Percent(50).of(dir.path()).unwrap(), all / 2);
    }
}
