//! What the content of layers has to be, computed from the blobs that a registry has.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use lsmt::{MemoryStorage, Storage as _};
use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use oci::{Platform, Reference};
use serde_json::Value;

const CONTENT_ROOT: &str = "org.yolofs.block.content";

/// Hashes the content of a blob.
fn hashed(blob: &[u8]) -> String {
    let storage = MemoryStorage::default();
    storage.write_at(blob, 0).unwrap();
    let content = lsmt::open_content(Arc::new(storage)).unwrap();
    let mut bytes = vec![0; usize::try_from(content.size().unwrap()).unwrap()];
    content.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..4], *b"LSMT");
    format!("blake3:{}", blake3::hash(&bytes))
}

/// Returns the hashes of the layers' contents of an image in a registry, the lowest first. Its manifest has to have them.
pub(crate) fn roots_of(image: &str) -> Vec<String> {
    let reference: Reference = image.parse().unwrap();
    let config = RegistryConfig {
        transport: Transport::Plain,
        ..RegistryConfig::default()
    };
    let repository = Repository::open(&reference, Access::Pull, &config).unwrap();
    let mut watch = |_| ControlFlow::Continue(());
    let found = repository.image(&Target::of(&reference), &Platform::host(), &mut watch);
    let (_, manifest) = found.unwrap().unwrap();
    let mut roots = Vec::new();
    for layer in &manifest.layers {
        let mut blob = Vec::new();
        let mut take = |piece: &[u8]| {
            blob.extend_from_slice(piece);
            ControlFlow::Continue(())
        };
        repository
            .stream_blob(layer, &mut take, &mut watch)
            .unwrap();
        let root = hashed(&blob);
        assert_eq!(layer.annotations.get(CONTENT_ROOT), Some(&root), "{image}");
        roots.push(root);
    }
    roots
}

/// Returns those that the configuration in a directory has, the lowest first.
pub(crate) fn configured(dir: &Path) -> Vec<String> {
    let config = fs::read(dir.join("config.v1.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let lowers = config["lowers"].as_array().unwrap().iter();
    let roots = lowers.map(|lower| lower["yolofsContent"].as_str().unwrap_or("none"));
    roots.map(str::to_owned).collect()
}
