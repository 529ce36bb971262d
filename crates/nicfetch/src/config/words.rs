//! Values in the configuration, as text.

use chunks::PolicyKind;
use host::size::Size;
use serde::{Deserialize, Deserializer};
use serving::transport::Address;

/// A size, as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSize(pub(super) u64);

impl<'de> Deserialize<'de> for FileSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: Size = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(size.0))
    }
}

/// The eviction policy of blobs. Images are pulled whole, and few fit: a policy with a probation
/// queue would evict an image while it is being pulled.
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

/// The address of the block service, as text.
#[derive(Clone, Debug)]
pub(super) struct FileAddress(pub(super) Address);

impl<'de> Deserialize<'de> for FileAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(address))
    }
}
