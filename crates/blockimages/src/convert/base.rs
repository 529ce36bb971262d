//! The documents of an image that layers are put on.

use blocks::Digest;
use oci::Manifest;

/// An image that layers are put on.
#[derive(Clone, Debug)]
pub struct BaseImage {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its configuration, as it is written.
    pub config: Vec<u8>,
}
