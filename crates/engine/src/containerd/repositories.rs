//! Where images came from, as containerd notes it when it pulls them.

use std::collections::BTreeMap;

use blocks::Digest;
use containerd_client::services::v1::{Info, ListContentRequest};

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
}

pub(super) fn manifest(info: Info) -> PulledManifest {
    let mut found = PulledManifest {
        digest: info.digest.parse().ok(),
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
        assert_eq!(found.digest, Some(manifest_digest));
    }
}
