//! `--upper`: where containers write.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use snapshotter::FastPlace;

use crate::size::Size;

/// A bound for those who name none: room for a few dozen containers that write logs, and little
/// enough for a small node.
const DEFAULT_MAX: Size = Size(1 << 30);

/// What `--upper` names: `tmpfs` or a directory, and perhaps `,max=SIZE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UpperArg {
    place: FastPlace,
    max: Size,
}

/// What `--upper-full` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum FullArg {
    /// New containers fail, and are told why
    Refuse,
    /// New containers write to the disk of the root
    Spill,
}

impl UpperArg {
    /// Returns the place, by a path that does not depend on where we are.
    pub(super) fn place(&self) -> anyhow::Result<FastPlace> {
        let FastPlace::Directory(dir) = &self.place else {
            return Ok(FastPlace::Tmpfs);
        };
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize();
        Ok(FastPlace::Directory(dir.context("resolving --upper")?))
    }

    pub(super) const fn max_bytes(&self) -> u64 {
        self.max.0
    }
}

impl FromStr for UpperArg {
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
        if max.0 == 0 {
            bail!("with max=0 nothing has room");
        }
        let place = match place {
            "" => bail!("name tmpfs or a directory"),
            "tmpfs" => FastPlace::Tmpfs,
            dir => FastPlace::Directory(PathBuf::from(dir)),
        };
        Ok(Self { place, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_place_and_its_bound() {
        let read = |text: &str| text.parse::<UpperArg>().unwrap();
        assert_eq!(read("tmpfs").place, FastPlace::Tmpfs);
        assert_eq!(read("tmpfs").max, DEFAULT_MAX);
        assert_eq!(read("tmpfs,max=2G").max, Size(2 << 30));
        let dir = FastPlace::Directory(PathBuf::from("/nvme/upper"));
        assert_eq!(read("/nvme/upper,max=512M").place, dir);
        for bad in [
            "",
            ",max=1G",
            "tmpfs,1G",
            "tmpfs,max=",
            "tmpfs,max=0",
            "tmpfs,max=1G,x",
        ] {
            assert!(bad.parse::<UpperArg>().is_err(), "{bad}");
        }
    }
}
