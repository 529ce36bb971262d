//! What is known of a layer of a block image.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use blocks::Digest;
use serde::{Deserialize, Serialize};

/// The file with the blob of a layer, also in the tar of it.
pub(crate) const BLOB_NAME: &str = "overlaybd.commit";
/// What a blob begins with: a ZFile, or an LSMT layer that is not compressed.
const MAGICS: [&[u8; 8]; 2] = [b"ZFile\0\x01\0", b"LSMT\0\x01\x02\0"];

/// A layer of a block image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockLayer {
    /// The digest of its blob; `None` if nobody said it, and the blob is in the directory of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The bytes of its blob.
    pub size: u64,
    /// Of a turboOCI layer, whose blob has only metadata: the digest of the layer that has the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Digest>,
    /// Where blobs of its repository are, as [`BlockImages::blobs_of`](crate::BlockImages::blobs_of) has it; `None` if the blob was downloaded, and
    /// is in the directory of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blobs: Option<String>,
}

impl BlockLayer {
    /// Returns which layer was unpacked into a directory, if the only file there is a blob: `ctr` of containerd 1.6
    /// passes no annotations on.
    pub(crate) fn unpacked(dir: &Path) -> Option<Self> {
        let mut entries = fs::read_dir(dir).ok()?;
        let only = entries.next()?.ok()?;
        let is_blob =
            only.file_name() == BLOB_NAME && only.file_type().is_ok_and(|kind| kind.is_file());
        if !is_blob || entries.next().is_some() {
            return None;
        }
        let mut file = File::open(only.path()).ok()?;
        let mut magic = [0; 8];
        file.read_exact(&mut magic).ok()?;
        MAGICS.contains(&&magic).then_some(Self {
            digest: None,
            size: file.metadata().ok()?.len(),
            target: None,
            blobs: None,
        })
    }

    /// Returns whether its directory is empty: its blob is elsewhere.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        self.blobs.is_some() && self.target.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_that_was_unpacked_is_the_only_file() {
        let dir = tempfile::tempdir().unwrap();
        let blob = dir.path().join(BLOB_NAME);
        let found = || BlockLayer::unpacked(dir.path()).map(|layer| layer.size);
        assert_eq!(found(), None);
        for magic in MAGICS {
            fs::write(&blob, [&magic[..], &[0; 92]].concat()).unwrap();
            assert_eq!(found(), Some(100));
        }
        fs::write(dir.path().join("other"), "").unwrap();
        assert_eq!(found(), None);
        fs::remove_file(dir.path().join("other")).unwrap();
        fs::write(&blob, "a file of this name").unwrap();
        assert_eq!(found(), None);
    }
}
