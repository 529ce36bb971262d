//! What things are called: contents, sources, files and the versions of files.

use std::fmt;
use std::str::FromStr;

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

/// What tells one version of a file from the next: when all four are equal, so is the content.
///
/// Size, mtime and inode alone miss an edit in place that puts the mtime back; ctime cannot be
/// put back.
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

/// A file of a source in the version it had. What is cached under a key can be stale only if
/// the version lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Which file.
    pub file: FileId,
    /// Which version of it.
    pub version: Version,
}
