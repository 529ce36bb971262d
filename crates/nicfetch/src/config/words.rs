//! Values in the configuration, as people write them.

use chunks::PolicyKind;
use host::size::Size;
use serde::{Deserialize, Deserializer};
use serving::transport::Address;

/// A size as people write it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSize(pub(super) u64);

impl<'de> Deserialize<'de> for FileSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: Size = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(size.0))
    }
}

/// What blobs go by. Images are pulled whole, and few fit: a policy that has an image prove itself
/// before it stays would have it go again while it is pulled.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlobPolicy(pub(super) PolicyKind);

impl Default for BlobPolicy {
    fn default() -> Self {
        Self(PolicyKind::Lru)
    }
}

impl<'de> Deserialize<'de> for BlobPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let kind = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(kind))
    }
}

/// Where blocks are served, as people write it.
#[derive(Clone, Debug)]
pub(super) struct FileAddress(pub(super) Address);

impl<'de> Deserialize<'de> for FileAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(address))
    }
}
