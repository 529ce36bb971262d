//! The documents of the image to pull, bounded and verified, and its layers.

use std::ops::ControlFlow;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use engine::containerd::chain_ids;
use oci::registry::{FoundImage, Repository, Target};
use oci::{CONFIG_MAX, Descriptor, ImageConfig, Platform, Reference};

use host::interrupt::Interrupt;
use host::size::Size;

/// What the media types of layers begin with.
const LAYERS: [&str; 2] = [
    "application/vnd.oci.image.layer.",
    "application/vnd.docker.image.rootfs.",
];

/// An image that is to be pulled.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) reference: Reference,
    pub(super) image: FoundImage,
    /// Its configuration, as the registry has it.
    pub(super) config: Vec<u8>,
    /// The lowest first.
    pub(super) layers: Vec<Layer>,
}

/// A layer of it.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) blob: Descriptor,
    pub(super) diff_id: Digest,
    /// What containerd calls it: the digest of all up to it.
    pub(super) chain: Digest,
    /// The layer below.
    pub(super) parent: Option<Digest>,
}

impl Wanted {
    /// Downloads all documents of an image from a registry.
    ///
    /// # Errors
    /// If it has no such image, or an invalid one.
    pub(super) fn ask(
        reference: &Reference,
        repository: &Repository,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let mut watch = |_| match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let target = Target::of(reference);
        let found = repository.image_and_index(&target, &Platform::host(), &mut watch)?;
        let image = found.with_context(|| format!("{reference} is not in the registry"))?;
        let described = &image.manifest.config;
        ensure!(
            described.size <= CONFIG_MAX,
            "the configuration of the image is too large: {}",
            Size(described.size)
        );
        let mut config = Vec::new();
        let mut take = |bytes: &[u8]| {
            config.extend_from_slice(bytes);
            ControlFlow::Continue(())
        };
        repository.stream_blob(described, &mut take, &mut watch)?;
        let decoded = ImageConfig::decode(&config).context("the configuration of the image")?;
        let layers = layers(&image.manifest.layers, &decoded.diff_ids)?;
        Ok(Self {
            reference: reference.clone(),
            image,
            config,
            layers,
        })
    }
}

impl Wanted {
    /// Returns the chain IDs of the layers.
    pub(super) fn chains(&self) -> Vec<String> {
        let layers = self.layers.iter();
        layers.map(|layer| layer.chain.to_string()).collect()
    }
}

fn layers(blobs: &[Descriptor], diff_ids: &[Digest]) -> anyhow::Result<Vec<Layer>> {
    ensure!(
        blobs.len() == diff_ids.len(),
        "the image has {} layers by its manifest and {} by its configuration",
        blobs.len(),
        diff_ids.len()
    );
    let mut parent = None;
    let all = blobs.iter().zip(diff_ids).zip(chain_ids(diff_ids));
    all.map(|((blob, diff_id), chain)| {
        ensure!(
            LAYERS.iter().any(|kind| blob.media_type.starts_with(kind)),
            "a layer of the image has an unknown media type: {:?}",
            blob.media_type.chars().take(120).collect::<String>()
        );
        Ok(Layer {
            blob: blob.clone(),
            diff_id: *diff_id,
            chain,
            parent: parent.replace(chain),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use oci::digest_of;

    use super::*;

    fn blob(kind: &str) -> Descriptor {
        Descriptor::new(kind, digest_of(kind.as_bytes()), 1)
    }

    #[test]
    fn each_layer_stands_on_the_one_below() {
        let kinds = ["application/vnd.oci.image.layer.v1.tar+zstd"; 3].map(blob);
        let ids = [b"a", b"b", b"c"].map(|id| digest_of(id));
        let found = layers(&kinds, &ids).unwrap();
        assert_eq!(found[0].parent, None);
        assert_eq!(found[0].chain, ids[0]);
        assert_eq!(found[1].parent, Some(found[0].chain));
        assert_eq!(found[2].parent, Some(found[1].chain));
        assert!(layers(&kinds, &ids[1..]).is_err());
    }

    #[test]
    fn what_is_no_layer_is_refused() {
        let kind = blob("application/vnd.wasm.content.layer.v1+wasm");
        let error = layers(&[kind], &[digest_of(b"a")]).unwrap_err();
        assert!(error.to_string().contains("wasm"), "{error}");
    }
}
