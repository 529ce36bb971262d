//! The key of a blob in the cache: its digest, and the realm that it belongs to.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use blocks::ContentId;

use super::digest::{BlobDigest, ParseBlobDigestError};

/// The directory of content that is not open to all.
pub(super) const APART: &str = "apart";

/// The access domain of content. The same bytes may be cached in several realms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Realm {
    /// All clients of the mirror: a registry that is open to all sent the content.
    Open,
    /// The clients of one registry; the hash of its name. No other registry can grant access by
    /// claiming that it has the content, too.
    Of(ContentId),
}

impl Realm {
    /// Returns the realm of a registry that is not open to all.
    #[must_use]
    pub fn of(registry: &str) -> Self {
        Self::Of(ContentId::of(registry.as_bytes()))
    }

    /// Returns where its blobs are, below the directory of all.
    pub(super) fn dir(self, all: &Path) -> PathBuf {
        match self {
            Self::Open => all.to_owned(),
            Self::Of(id) => all.join(APART).join(id.to_string()),
        }
    }
}

/// The key of cached content. As text it is the digest, or `REALM@DIGEST`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobKey {
    /// Its realm.
    pub realm: Realm,
    /// Its digest.
    pub digest: BlobDigest,
}

impl BlobKey {
    /// Returns the key of content that is open to all.
    #[must_use]
    pub const fn open(digest: BlobDigest) -> Self {
        let realm = Realm::Open;
        Self { realm, digest }
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.realm {
            Realm::Open => self.digest.fmt(f),
            Realm::Of(id) => write!(f, "{id}@{}", self.digest),
        }
    }
}

impl FromStr for BlobKey {
    type Err = ParseBlobDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((realm, digest)) = text.split_once('@') else {
            return Ok(Self::open(text.parse()?));
        };
        let id: ContentId = realm.parse().map_err(|_| ParseBlobDigestError)?;
        let digest = digest.parse()?;
        let key = Self {
            realm: Realm::Of(id),
            digest,
        };
        // One name for each: digits may come in capitals.
        let is_usual = key.to_string() == text;
        is_usual.then_some(key).ok_or(ParseBlobDigestError)
    }
}

#[cfg(test)]
mod tests {
    use super::super::digest::Algorithm;
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        let digest = BlobDigest::of(Algorithm::Sha256, b"1");
        let realm = Realm::of("registry.corp:5000");
        let apart = BlobKey {
            realm,
            digest: digest.clone(),
        };
        for key in [BlobKey::open(digest.clone()), apart.clone()] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        let text = apart.to_string();
        for bad in [
            format!("@{digest}"),
            format!("x@{digest}"),
            text.to_uppercase(),
            format!("{}@{text}", "0".repeat(64)),
            text[..64].to_uppercase() + &text[64..],
        ] {
            assert_eq!(bad.parse::<BlobKey>(), Err(ParseBlobDigestError), "{bad}");
        }
    }
}
