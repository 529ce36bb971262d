//! An image, independent of its storage.

use std::io::{self, Read};
use std::path::Path;

use blocks::Digest;

use crate::file_range::FileRange;
use crate::{ImageConfig, Verified};

/// An image in a layout or an archive.
#[derive(Clone, Debug)]
pub struct Image {
    /// What the layout or archive calls it, as it is written there: often only a tag.
    pub name: Option<String>,
    /// The digest of its manifest for this platform; archives of old Docker releases have none.
    pub manifest: Option<Digest>,
    /// The digest of its configuration: what Docker calls the image's ID.
    pub id: Digest,
    /// How its containers start.
    pub config: ImageConfig,
    /// The configuration as it is written: what hashes to the ID.
    pub config_bytes: Vec<u8>,
    /// Its layers, the lowest first: as many as there are diff IDs, and in the same order.
    pub layers: Vec<LayerBlob>,
}

/// The tar of a layer, compressed or not.
#[derive(Clone, Debug)]
pub struct LayerBlob {
    /// The digest of the uncompressed tar.
    pub diff_id: Digest,
    /// The media type in its manifest; empty if there is none.
    pub media_type: String,
    /// The digest of the stored bytes, if it is known.
    pub(crate) digest: Option<Digest>,
    pub(crate) place: FileRange,
}

impl LayerBlob {
    /// Returns the layer whose tar, compressed or not, is a separate file.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn from_file(path: &Path, diff_id: Digest) -> io::Result<Self> {
        let place = FileRange {
            path: path.into(),
            offset: 0,
            len: path.metadata()?.len(),
        };
        Ok(Self {
            diff_id,
            media_type: String::new(),
            digest: None,
            place,
        })
    }

    /// Returns its length in bytes, compressed as it is.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.place.len
    }

    /// Returns the digest of the stored bytes, if it is known.
    #[must_use]
    pub const fn stored_digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Returns the file that it is, if it is all of one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        let about = self.place.path.metadata().ok()?;
        let whole = self.place.offset == 0 && about.len() == self.place.len;
        whole.then_some(&self.place.path)
    }

    /// Opens it. The data is verified at its end if its digest is known; the unpacker verifies the diff
    /// ID.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        let file = self.place.open()?;
        Ok(match self.digest {
            Some(digest) => Box::new(Verified::new(file, digest, Some(self.size()))),
            None => Box::new(file),
        })
    }
}
