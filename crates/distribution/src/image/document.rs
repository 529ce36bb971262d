//! The documents that hold an image together: descriptors, indexes and manifests.

use std::collections::BTreeMap;
use std::fmt;

use blocks::Digest;
use serde::{Deserialize, Serialize};

use super::{DocumentError, decode, null_is_nothing, shown};

/// Bytes of a manifest or an index: what registries accept.
pub const DOCUMENT_MAX: u64 = 4 << 20;
/// Layers of an image. Overlayfs stacks at most 500, Docker 125.
pub const LAYERS_MAX: usize = 500;

/// The media type of an index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of a manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of the configuration of a container image.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const CONFIGS: [&str; 2] = [OCI_CONFIG, "application/vnd.docker.container.image.v1+json"];

/// The media types of the manifests and indexes that are understood here.
pub const DOCUMENT_TYPES: [&str; 4] = [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST];

/// The reference of a document to a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Its media type.
    #[serde(default)]
    pub media_type: String,
    /// Its SHA-256.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// What kind of artifact it is the manifest of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Other annotations.
    #[serde(
        default,
        deserialize_with = "null_is_nothing",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// The machines that it is for, if it is the manifest of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

impl Descriptor {
    /// Returns the descriptor of a blob without annotations.
    #[must_use]
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            artifact_type: None,
            annotations: BTreeMap::new(),
            platform: None,
        }
    }

    /// Returns whether it is of an index, which lists manifests.
    #[must_use]
    pub fn is_index(&self) -> bool {
        [OCI_INDEX, DOCKER_LIST].contains(&self.media_type.as_str())
    }
}

/// A kind of machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The architecture as Go calls it: `amd64`, `arm64`.
    pub architecture: String,
    /// The operating system: `linux`.
    pub os: String,
    /// The kind of architecture: `v7`, `v8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Returns the platform that this program was built for.
    #[must_use]
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "loongarch64" => "loong64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: None,
        }
    }

    /// Returns whether images for `other` run here. The variant decides only between images of
    /// the same architecture, and the order of the index prefers the right one.
    fn fits(&self, other: &Self) -> bool {
        (&self.architecture, &self.os) == (&other.architecture, &other.os)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |v| write!(f, "/{v}"))
    }
}

/// A list of manifests: of one image for several platforms, or of several images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// Its media type.
    #[serde(default)]
    pub media_type: String,
    /// The manifests.
    #[serde(default, deserialize_with = "null_is_nothing")]
    pub manifests: Vec<Descriptor>,
}

impl Index {
    /// Decodes an index.
    ///
    /// # Errors
    /// If it is not one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        decode("index", bytes)
    }

    /// Returns the manifests that may be of the image for this platform: including those without a platform.
    pub fn fitting(&self, wanted: &Platform) -> impl Iterator<Item = &Descriptor> {
        let fits = |entry: &&Descriptor| entry.platform.as_ref().is_none_or(|is| wanted.fits(is));
        self.manifests.iter().filter(fits)
    }

    /// Returns the manifest of the image for this platform.
    ///
    /// # Errors
    /// If there is none.
    pub fn for_platform(&self, wanted: &Platform) -> Result<&Descriptor, DocumentError> {
        let is_only = self.manifests.len() == 1; // of the only image nobody needs to say it
        let mut fitting = self.fitting(wanted);
        let found = fitting.find(|entry| is_only || entry.platform.is_some());
        found.ok_or_else(|| {
            let platforms = self.manifests.iter().filter_map(|m| m.platform.as_ref());
            DocumentError::NoSuchPlatform {
                wanted: wanted.to_string(),
                have: shown(platforms.map(ToString::to_string)),
            }
        })
    }
}

/// What an image or another artifact is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// Its media type.
    #[serde(default)]
    pub media_type: String,
    /// The type of an artifact; images have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Its configuration.
    pub config: Descriptor,
    /// Its layers, the lowest first.
    #[serde(default, deserialize_with = "null_is_nothing")]
    pub layers: Vec<Descriptor>,
    /// The manifest that this artifact is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
    /// Other annotations.
    #[serde(
        default,
        deserialize_with = "null_is_nothing",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Returns the manifest of an artifact about the manifest `subject`.
    #[must_use]
    pub fn of_artifact(
        artifact_type: &str,
        config: Descriptor,
        layers: Vec<Descriptor>,
        subject: Descriptor,
    ) -> Self {
        Self {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            artifact_type: Some(artifact_type.to_owned()),
            config,
            layers,
            subject: Some(subject),
            annotations: BTreeMap::new(),
        }
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    /// If it is not one, or has too many layers.
    pub fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        let manifest: Self = decode("manifest", bytes)?;
        if manifest.layers.len() > LAYERS_MAX {
            return Err(DocumentError::Rule {
                what: "manifest",
                rule: "it has more than 500 layers",
            });
        }
        Ok(manifest)
    }

    /// Fails unless it is that of a container image.
    ///
    /// # Errors
    /// If its configuration is of another type.
    pub fn must_be_image(&self) -> Result<(), DocumentError> {
        let media_type = &self.config.media_type;
        if CONFIGS.contains(&media_type.as_str()) {
            return Ok(());
        }
        Err(DocumentError::NotAnImage {
            media_type: media_type.chars().take(120).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Digest(bytes)
    }

    fn entry(text: &str, platform: Option<&str>) -> Descriptor {
        Descriptor {
            media_type: OCI_MANIFEST.to_owned(),
            digest: digest(text),
            size: 1,
            artifact_type: None,
            annotations: BTreeMap::new(),
            platform: platform.map(|architecture| Platform {
                architecture: architecture.to_owned(),
                os: "linux".to_owned(),
                variant: None,
            }),
        }
    }

    #[test]
    fn an_index_is_asked_by_platform() {
        let wanted = entry("", Some("arm64")).platform.unwrap();
        let manifests = vec![entry("a", Some("amd64")), entry("b", Some("arm64"))];
        let mut index = Index {
            manifests,
            ..Index::default()
        };
        assert_eq!(index.for_platform(&wanted).unwrap(), &index.manifests[1]);
        index.manifests.pop();
        let error = index.for_platform(&wanted).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no image for linux/arm64; there is linux/amd64"
        );
    }

    #[test]
    fn other_platforms_are_passed_over() {
        let manifests = vec![
            entry("other", Some("s390x")),
            entry("ours", Some("amd64")),
            entry("attestation", Some("unknown")),
            entry("any", None),
        ];
        let index = Index {
            manifests,
            ..Index::default()
        };
        let wanted = entry("", Some("amd64")).platform.unwrap();
        let found = index.fitting(&wanted).map(|entry| entry.digest);
        assert!(found.eq([digest("ours"), digest("any")]));
    }

    #[test]
    fn the_only_image_needs_no_platform() {
        let wanted = Platform::host();
        let mut index = Index::default();
        assert!(index.for_platform(&wanted).is_err());
        index.manifests.push(entry("a", None));
        assert!(index.for_platform(&wanted).is_ok());
        index.manifests.push(entry("b", None));
        assert!(index.for_platform(&wanted).is_err());
    }

    #[test]
    fn a_thousand_layers_are_refused() {
        let layer = serde_json::to_string(&entry("x", None)).unwrap();
        let layers = vec![layer.clone(); 1000].join(",");
        let text = format!(r#"{{"schemaVersion":2,"config":{layer},"layers":[{layers}]}}"#);
        assert!(matches!(
            Manifest::decode(text.as_bytes()),
            Err(DocumentError::Rule { .. })
        ));
    }

    #[test]
    fn null_is_an_empty_list() {
        let index = Index::decode(br#"{"schemaVersion":2,"manifests":null}"#).unwrap();
        assert_eq!(index.manifests, []);
    }

    #[test]
    fn lengths_and_digests_must_be_such() {
        for bad in [
            r#"{"schemaVersion":2,"config":{"digest":"sha256:12","size":1}}"#,
            r#"{"schemaVersion":2,"config":{"digest":"../../etc/passwd","size":1}}"#,
            r#"{"schemaVersion":2,"layers":[]}"#,
            r#"{"schemaVersion":-2}"#,
            "[]",
            "",
        ] {
            assert!(Manifest::decode(bad.as_bytes()).is_err(), "{bad}");
        }
        let huge = "1".repeat(30);
        let digest = digest("");
        let text =
            format!(r#"{{"schemaVersion":2,"config":{{"digest":"{digest}","size":{huge}}}}}"#);
        assert!(Manifest::decode(text.as_bytes()).is_err());
    }
}
