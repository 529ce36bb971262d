//! The tiers file: which tiers there are, the fastest first.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use host::size::Size;
use rawio::regular::{self, Links};

/// Bytes of the file: it has a few lines.
const FILE_MAX: u64 = 64 << 10;
/// Tiers that a journal has room for (docs/tiering-journal-format.md).
const TIERS_MAX: usize = 8;
/// Letters of a name: it is shown in tables, and is a label of metrics.
const NAME_MAX: usize = 32;

/// A tier, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSpec {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Its capacity for objects.
    pub room: SpaceLimit,
}

/// The capacity of a tier for objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLimit {
    /// This many bytes.
    Bytes(u64),
    /// Such a part of the file system, in hundredths.
    Percent(u64),
}

impl SpaceLimit {
    /// Returns the bytes, of a file system that has `capacity`.
    pub fn bytes(self, capacity: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let bytes = u128::from(capacity) * u128::from(percent) / 100;
                u64::try_from(bytes).unwrap_or(capacity)
            }
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || format!("size = \"{text}\": say \"8G\" or \"50%\"");
        if let Some(percent) = text.trim().strip_suffix('%') {
            let percent = percent.trim().parse().ok();
            let percent = percent.filter(|percent| (1..=100).contains(percent));
            return Ok(Self::Percent(percent.with_context(wrong)?));
        }
        let Size(bytes) = text.parse().ok().with_context(wrong)?;
        ensure!(bytes > 0, wrong());
        Ok(Self::Bytes(bytes))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    tier: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    dir: PathBuf,
    size: String,
}

/// Reads a tiers file.
///
/// # Errors
/// If it cannot be read, or is invalid.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<TierSpec>> {
    read_if_there(path)?.with_context(|| {
        format!(
            "there is no tiers file {} (`tiers` names another)",
            path.display()
        )
    })
}

/// Reads a tiers file; `None` if it does not exist.
///
/// # Errors
/// As [`read`].
pub(super) fn read_if_there(path: &Path) -> anyhow::Result<Option<Vec<TierSpec>>> {
    let context = || format!("reading the tiers file {}", path.display());
    let text = match read_bounded(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(context)?,
    };
    parse(&text).map(Some).with_context(context)
}

fn read_bounded(path: &Path) -> io::Result<String> {
    let bytes = regular::read(path, Links::Followed, FILE_MAX)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn parse(text: &str) -> anyhow::Result<Vec<TierSpec>> {
    let document: Document = toml::from_str(text)?;
    let entries = document.tier;
    ensure!(
        (1..=TIERS_MAX).contains(&entries.len()),
        "it names {} tiers: 1 to {TIERS_MAX} are possible, each with [[tier]]",
        entries.len()
    );
    let mut names = HashSet::new();
    let mut dirs = HashSet::new();
    let mut specs = Vec::new();
    for Entry { name, dir, size } in entries {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!(
            (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain),
            "the tier {name:?} has no name: letters, digits, - and _ are possible, up to {NAME_MAX}"
        );
        ensure!(
            dir.is_absolute(),
            "tier {name}: {} is not absolute",
            dir.display()
        );
        ensure!(names.insert(name.clone()), "there are two tiers {name}");
        // The same directory by another name, too.
        let real = fs::canonicalize(&dir).unwrap_or_else(|_| dir.clone());
        ensure!(
            dirs.insert(real),
            "tier {name}: another has {}",
            dir.display()
        );
        let room = SpaceLimit::parse(&size).with_context(|| format!("tier {name}"))?;
        specs.push(TierSpec { name, dir, room });
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    #[test]
    fn a_pipe_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("tiers.toml");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || tell.send(read(&pipe).map(drop)));
        let refused = told.recv_timeout(Duration::from_secs(30));
        let error = format!("{:#}", refused.unwrap().unwrap_err());
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn tiers_are_named_fastest_first() {
        let specs = parse(
            "# what this machine has\n\
             [[tier]]\nname = \"nvm\"\ndir = \"/mnt/pmem0/yolofs\"\nsize = \"50%\"\n\
             [[tier]]\nname = \"ssd\"\ndir = \"/srv/yolofs\"\nsize = \"8G\"\n",
        );
        let specs = specs.unwrap();
        assert_eq!(specs[0].name, "nvm");
        assert_eq!(specs[0].room, SpaceLimit::Percent(50));
        assert_eq!(specs[1].dir, Path::new("/srv/yolofs"));
        assert_eq!(specs[1].room, SpaceLimit::Bytes(8 << 30));
        assert_eq!(specs[0].room.bytes(1000), 500);
        assert_eq!(SpaceLimit::Percent(100).bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let tier = |name: &str, dir: &str, size: &str| {
            format!("[[tier]]\nname = \"{name}\"\ndir = \"{dir}\"\nsize = \"{size}\"\n")
        };
        let cases = [
            (String::new(), "0 tiers"),
            (tier("a", "/a", "1G").repeat(9), "9 tiers"),
            (
                tier("a", "/a", "1G") + &tier("a", "/b", "1G"),
                "two tiers a",
            ),
            (
                tier("a", "/a", "1G") + &tier("b", "/a", "1G"),
                "another has /a",
            ),
            (tier("a b", "/a", "1G"), "has no name"),
            (tier("a", "a", "1G"), "not absolute"),
            (tier("a", "/a", "101%"), "or \"50%\""),
            (tier("a", "/a", "0"), "or \"50%\""),
            (tier("a", "/a", "lots"), "or \"50%\""),
            (tier("a", "/a", "1G") + "speed = 1\n", "unknown field"),
            ("tier = 3".to_owned(), "invalid type"),
        ];
        for (text, reason) in cases {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(reason), "{text}\n{error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_told_from_one_that_is_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiers.toml");
        assert_eq!(read_if_there(&path).unwrap(), None);
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("`tiers`"), "{error}");
        fs::write(&path, "#".repeat(70_000)).unwrap();
        let error = format!("{:#}", read(&path).unwrap_err());
        assert!(error.contains("longer than 65536 bytes"), "{error}");
    }
}
