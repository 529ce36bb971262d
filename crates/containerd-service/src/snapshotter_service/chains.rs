//! The map from chain IDs to diff IDs.
//!
//! containerd names a layer's snapshot by its chain ID, a digest of the diff IDs of the layer and
//! all layers below it, from which the diff ID cannot be derived. So it is looked up among the chains
//! of all images in the store.

use std::collections::{HashMap, HashSet};

use blocks::Digest;
use bootimg::Stack;
use engine::containerd::chain_ids;

/// The chains of the images in a store.
#[derive(Debug, Default)]
pub(super) struct Chains {
    layers: HashMap<Digest, Digest>,
    tops: HashSet<Digest>,
    /// The chains of each image, by its name and its digests.
    images: HashMap<String, Vec<Digest>>,
}

impl Chains {
    pub(super) fn of(stacks: &[Stack]) -> Self {
        let mut chains = Self::default();
        for stack in stacks {
            let ids = chain_ids(&stack.layers);
            chains.tops.extend(ids.last());
            let digests = [Some(stack.image), stack.manifest];
            let digests = digests.iter().flatten().map(ToString::to_string);
            for name in digests.chain([stack.reference.clone()]) {
                chains.images.insert(name, ids.clone());
            }
            chains
                .layers
                .extend(ids.into_iter().zip(stack.layers.iter().copied()));
        }
        chains
    }

    /// Returns the diff ID of the layer at the top of a chain.
    pub(super) fn layer(&self, chain: &Digest) -> Option<Digest> {
        self.layers.get(chain).copied()
    }

    /// Returns the chain IDs of an image, by its recorded name, in full or short form, or by the digest of its
    /// configuration or manifest.
    pub(super) fn image(&self, name: &str) -> &[Digest] {
        let written_out = || {
            let reference = name.parse::<oci::Reference>().ok()?;
            self.images.get(&reference.to_string())
        };
        self.images
            .get(name)
            .or_else(written_out)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns whether the chain is that of a whole image.
    pub(super) fn is_image(&self, chain: &Digest) -> bool {
        self.tops.contains(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(layers: &[Digest]) -> Stack {
        Stack {
            reference: "test".to_owned(),
            image: Digest([0; 32]),
            manifest: None,
            layers: layers.to_vec(),
            recorded_at: 0,
            ready_ms: Vec::new(),
            command: Vec::new(),
        }
    }

    #[test]
    fn finds_each_layer_of_each_image() {
        let [a, b, c] = [1, 2, 3].map(|byte| Digest([byte; 32]));
        let chains = Chains::of(&[stack(&[a, b]), stack(&[a, c]), stack(&[])]);
        let ids = chain_ids(&[a, b]);
        assert_eq!(chains.layer(&ids[0]), Some(a));
        assert_eq!(chains.layer(&ids[1]), Some(b));
        assert_eq!(chains.layer(&chain_ids(&[a, c])[1]), Some(c));
        assert_eq!(chains.layer(&b), None, "a diff ID is no chain");
        assert!(chains.is_image(&ids[1]));
        assert!(!chains.is_image(&ids[0]));
        // Two images of one name: the one that comes last. Both have the same ID here.
        let named = Stack {
            reference: "docker.io/library/app:1".to_owned(),
            manifest: Some(Digest([9; 32])),
            ..stack(&[a, b])
        };
        let chains = Chains::of(&[named]);
        for name in [
            "docker.io/library/app:1",
            "app:1",
            &Digest([9; 32]).to_string(),
            &Digest([0; 32]).to_string(),
        ] {
            assert_eq!(chains.image(name), ids, "{name}");
        }
        assert!(chains.image("app:2").is_empty());
    }
}
