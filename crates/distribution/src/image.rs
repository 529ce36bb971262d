//! The documents of an image: indexes, manifests, and the configuration of its containers.
//!
//! All code that reads or writes such a document uses these types. They accept documents of older tools,
//! which `oci-spec`'s types refuse, and refuse some that those accept (docs/adr/0014). Only used fields are decoded;
//! others are ignored, as the specification requires.

mod config;
mod document;
mod error;

pub use config::{CONFIG_MAX, HealthCheck, ImageConfig, RunConfig};
pub use document::{
    DOCUMENT_MAX, DOCUMENT_TYPES, Descriptor, Index, LAYERS_MAX, Manifest, OCI_CONFIG, OCI_INDEX,
    OCI_MANIFEST, Platform,
};
pub use error::{DocumentError, shown};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// Decodes a document whose length was bounded before it was read.
fn decode<T: DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, DocumentError> {
    serde_json::from_slice(bytes).map_err(|source| DocumentError::Json { what, source })
}

/// Programs in Go write `null` for an empty list, map or text.
fn null_is_nothing<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
