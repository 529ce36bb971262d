//! Identifiers of contents, sources, files and versions of files.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// The BLAKE3 hash of some bytes: their name everywhere in yolofs.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub [u8; 32]);

impl ContentId {
    /// Returns the name of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the first 12 hexadecimal digits: enough for a person to tell images apart.
    #[must_use]
    pub fn short(&self) -> String {
        let mut hex = self.to_string();
        hex.truncate(12);
        hex
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a content id: 64 hexadecimal digits are needed")]
pub struct ParseContentIdError;

impl FromStr for ContentId {
    type Err = ParseContentIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut id = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(ParseContentIdError);
        }
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| ParseContentIdError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ParseContentIdError)?;
        }
        Ok(Self(id))
    }
}

/// Which tree or disk something belongs to: the hash of a label such as `dir:/srv/root` or, for
/// a container layer, of its digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub ContentId);

impl SourceId {
    /// Returns the id of the source that `label` names.
    #[must_use]
    pub fn of_label(label: &[u8]) -> Self {
        Self(ContentId::of(label))
    }
}

/// A file of a source: its index in the source's [`Tree`](crate::Tree). The root is 0.
///
/// Indices are never reused while a mount lives, and a scan of an unchanged source gives every
/// file the index it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

impl FileId {
    /// The root directory of a source.
    pub const ROOT: Self = Self(0);

    /// Returns the id as an index into a table of files.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A moment, in seconds and nanoseconds since 1970; before it, seconds are negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, rounded towards the past.
    pub secs: i64,
    /// Nanoseconds after `secs`, below 1 000 000 000.
    pub nanos: u32,
}

impl Timestamp {
    /// Returns a moment as file systems write it; 1970 for one before.
    #[must_use]
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        let since = since.unwrap_or_default();
        Self {
            secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        }
    }

    /// Returns the time from `earlier` to this moment in nanoseconds; negative if that is later.
    const fn nanos_since(self, earlier: Self) -> i128 {
        let secs = self.secs as i128 - earlier.secs as i128;
        secs * 1_000_000_000 + self.nanos as i128 - earlier.nanos as i128
    }
}

/// Distinguishes versions of a file: when all four are equal, so is the content,
/// unless it was read too [recently](Version::is_recent) after a change.
///
/// Size, mtime and inode alone miss an edit in place that restores the mtime; ctime cannot be
/// restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Inode number on the source's own file system.
    pub inode: u64,
}

impl Version {
    /// The step of file times that the kernel takes from its clock tick: 10 ms at `CONFIG_HZ=100`.
    /// We want to be well beyond it.
    const TICK: Duration = Duration::from_millis(20);

    /// The longest step of times that are whole seconds: FAT's.
    const COARSE_TICK: Duration = Duration::from_secs(2);

    /// By how much the clock of a file server may be ahead of ours.
    const SKEW: Duration = Duration::from_secs(60);

    /// Returns how long two changes of the file may be apart that leave it the same times.
    ///
    /// A file system that keeps whole seconds shows that: one in a thousand million of other times
    /// looks like it.
    #[must_use]
    pub const fn tick(&self) -> Duration {
        if self.ctime.nanos == 0 {
            Self::COARSE_TICK
        } else {
            Self::TICK
        }
    }

    /// Returns whether, at the moment `now`, the last change is so recent that another one could
    /// leave the same version behind.
    ///
    /// Data that is read in that time is valid only if the version is still the same after a
    /// [tick](Self::tick).
    #[must_use]
    pub fn is_recent(&self, now: Timestamp) -> bool {
        let since = now.nanos_since(self.ctime);
        let (tick, skew) = (self.tick().as_nanos(), Self::SKEW.as_nanos());
        match u128::try_from(since) {
            Ok(since) => since <= tick,
            Err(_) => since.unsigned_abs() <= skew,
        }
    }
}

/// A file of a source in a version. Data that is cached under a key can be stale only if
/// the version is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// The file.
    pub file: FileId,
    /// The version.
    pub version: Version,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    fn changed(ctime: Timestamp) -> Version {
        Version {
            ctime,
            ..Version::default()
        }
    }

    #[test]
    fn a_change_is_recent_for_as_long_as_another_may_look_like_it() {
        let fine = changed(at(100, 5));
        for (now, recent) in [
            (at(100, 5), true),
            (at(100, 20_000_005), true),
            (at(100, 20_000_006), false),
            (at(101, 0), false),
            (at(100, 4), true),
            (at(40, 5), true),
            (at(40, 4), false),
            (at(-1, 0), false),
        ] {
            assert_eq!(fine.is_recent(now), recent, "{now:?}");
        }
        let coarse = changed(at(100, 0));
        assert!(coarse.is_recent(at(101, 999_999_999)));
        assert!(coarse.is_recent(at(102, 0)));
        assert!(!coarse.is_recent(at(102, 1)));
        let extreme = changed(at(i64::MAX, 1));
        assert!(!extreme.is_recent(at(i64::MIN, 0)));
        assert!(!changed(at(i64::MIN, 0)).is_recent(at(i64::MAX, 1)));
    }
}
