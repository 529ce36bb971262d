//! Where images came from, as containerd notes it when it pulls them.

use std::collections::BTreeMap;

use blocks::Digest;
use containerd_client::services::v1::{Info, ListContentRequest};
use distribution::image::{DOCUMENT_MAX, Manifest};
use sha2::{Digest as _, Sha256};

use super::Containerd;
use crate::error::EngineError;

/// What the label with the repository of a document begins with; the registry's name follows.
const SOURCE: &str = "containerd.io/distribution.source.";
/// What the label of a manifest begins with that names a layer's blob; its number follows.
const LAYER: &str = "containerd.io/gc.ref.content.l.";
/// Layers of an image: overlaybd's limit, and above overlayfs's in practice.
const LAYERS_MAX: usize = 255;

/// A manifest in containerd, and where it was pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledManifest {
    /// Its digest; `None` if containerd says none that is valid.
    pub digest: Option<Digest>,
    /// Its length in bytes.
    pub size: u64,
    /// The repositories, as in `docker.io/library/nginx`.
    pub repositories: Vec<String>,
    /// The blobs of its layers, the bottom one first.
    pub layers: Vec<Digest>,
}

impl Containerd {
    /// Returns the manifests that have a blob as a layer.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn manifests_with(&self, blob: &Digest) -> Result<Vec<PulledManifest>, EngineError> {
        let doing = format!("asking containerd which image has the layer {blob}");
        let manifests = self.call(&doing, async |client| {
            let filters =
                (0..LAYERS_MAX).map(|number| format!("labels.\"{LAYER}{number}\"=={blob}"));
            let filters = filters.collect();
            let request = self.request(ListContentRequest { filters });
            let mut answers = client.content().list(request).await?.into_inner();
            let mut found = Vec::new();
            while let Some(answer) = answers.message().await? {
                found.extend(answer.info.into_iter().map(manifest));
            }
            Ok(containerd_client::tonic::Response::new(found))
        })?;
        Ok(manifests.unwrap_or_default())
    }

    /// Returns a manifest as it was pulled.
    ///
    /// # Errors
    /// If containerd does not respond or does not have it, if it is too long, or if it is not what its digest says.
    pub fn pulled(&self, manifest: &PulledManifest) -> Result<Manifest, EngineError> {
        let doing = "reading the manifest of an image";
        let failed = |why: &dyn std::fmt::Display| EngineError::Answer {
            doing: doing.to_owned(),
            why: why.to_string(),
        };
        let digest = manifest.digest;
        let digest = digest.ok_or_else(|| failed(&"containerd says no digest of it"))?;
        let bytes = self.document(doing, &digest, manifest.size, DOCUMENT_MAX)?;
        decoded(&bytes, digest).map_err(|error| failed(&error))
    }
}

/// Decodes a manifest that has to have a digest.
fn decoded(bytes: &[u8], digest: Digest) -> Result<Manifest, String> {
    let found = Digest(Sha256::digest(bytes).into());
    if found != digest {
        return Err(format!("{digest} has the digest {found}"));
    }
    Manifest::decode(bytes).map_err(|error| error.to_string())
}

pub(super) fn manifest(info: Info) -> PulledManifest {
    let mut found = PulledManifest {
        digest: info.digest.parse().ok(),
        size: u64::try_from(info.size).unwrap_or_default(),
        repositories: Vec::new(),
        layers: Vec::new(),
    };
    let mut layers = BTreeMap::new();
    for (key, value) in info.labels {
        if let Some(registry) = key.strip_prefix(SOURCE) {
            // One registry may have it in several repositories.
            let names = value.split(',').filter(|name| !name.is_empty());
            found
                .repositories
                .extend(names.map(|name| format!("{registry}/{name}")));
        } else if let Some(number) = key.strip_prefix(LAYER)
            && let (Ok(number), Ok(layer)) = (number.parse::<u32>(), value.parse::<Digest>())
        {
            layers.insert(number, layer);
        }
    }
    found.repositories.sort();
    found.layers = layers.into_values().collect();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_what_its_digest_says() {
        let text = format!(
            r#"{{"schemaVersion": 2, "config": {{"digest": "{}", "size": 2}}, "layers": []}}"#,
            Digest([1; 32])
        );
        let digest = Digest(Sha256::digest(&text).into());
        let found = decoded(text.as_bytes(), digest).unwrap();
        assert_eq!(found.config.digest, Digest([1; 32]));
        let error = decoded(text.replace('2', "3").as_bytes(), digest).unwrap_err();
        assert!(error.contains("has the digest"), "{error}");
        let error = decoded(b"{}", Digest(Sha256::digest(b"{}").into())).unwrap_err();
        assert!(error.contains("manifest"), "{error}");
    }

    #[test]
    fn labels_tell_where_a_manifest_came_from() {
        let [layer, manifest_digest, top] = [3, 4, 5].map(|byte| Digest([byte; 32]));
        let labels = [
            (
                "containerd.io/distribution.source.docker.io",
                "library/app,mine/app",
            ),
            ("containerd.io/distribution.source.localhost:5000", "app"),
            ("containerd.io/gc.ref.content.l.0", &layer.to_string()),
            ("containerd.io/gc.ref.content.l.10", &top.to_string()),
            ("containerd.io/gc.ref.content.l.2", "none"),
            ("containerd.io/gc.ref.content.config", &layer.to_string()),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let found = manifest(Info {
            digest: manifest_digest.to_string(),
            size: 123,
            labels: labels.into(),
            ..Info::default()
        });
        let repositories = [
            "docker.io/library/app",
            "docker.io/mine/app",
            "localhost:5000/app",
        ];
        assert_eq!(found.repositories, repositories);
        assert_eq!(found.layers, [layer, top]);
        assert_eq!((found.digest, found.size), (Some(manifest_digest), 123));
    }
}
