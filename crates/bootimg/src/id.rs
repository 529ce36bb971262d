//! What boot images are called.

use std::fmt;
use std::str::FromStr;

use blocks::ContentId;

use crate::header::{Footer, Header, SectionKind};
use crate::layout::HASH;

/// The id of a boot image: a hash of its content, the same in all variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(pub ContentId);

impl ImageId {
    /// Returns the id of the image with this header and footer: it covers all sections that do
    /// not depend on the variant.
    pub(crate) fn of(header: &Header, footer: &Footer) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"yolofs boot image v1\0");
        hasher.update(&header.data_blocks.to_le_bytes());
        for kind in SectionKind::LOGICAL {
            let index = header.sections.iter().position(|s| s.kind == kind);
            let hash = index.and_then(|index| footer.hashes.get(index));
            // Header::parse saw to it that there is one.
            hasher.update(hash.unwrap_or(&[0; HASH]));
        }
        Self(ContentId(*hasher.finalize().as_bytes()))
    }

    /// Returns the first 12 digits: enough for a person.
    #[must_use]
    pub fn short(&self) -> String {
        self.0.short()
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ImageId {
    type Err = <ContentId as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}
