//! What the content of layers has to be, computed from the blobs that a registry has.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use oci::registry::{Access, RegistryConfig, Repository, Target, Transport};
use oci::{Platform, Reference};
use serde_json::Value;

const CONTENT_ROOT: &str = "org.yolofs.block.content";

/// Where the blob begins behind the headers of its tar, and the blocks behind the header of a ZFile.
const TAR_HEADERS: usize = 3 * 512;
const ZFILE_HEADER: usize = 512;

fn number(bytes: &[u8]) -> usize {
    let digits = bytes.iter().rev();
    digits.fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Decompresses a block of LZ4.
fn decompressed(block: &[u8]) -> Vec<u8> {
    let mut bytes = block.iter().map(|byte| usize::from(*byte));
    let mut next = || bytes.next();
    let mut out = Vec::new();
    while let Some(token) = next() {
        for _ in 0..length(token >> 4, &mut next) {
            out.push(next().unwrap());
        }
        // The last one has literals only.
        let Some(low) = next() else { break };
        let back = low | next().unwrap() << 8;
        for _ in 0..4 + length(token & 15, &mut next) {
            out.push(out[out.len() - back]);
        }
    }
    { out.into_iter() }
        .map(|byte| u8::try_from(byte).unwrap())
        .collect()
}

fn length(nibble: usize, next: &mut impl FnMut() -> Option<usize>) -> usize {
    let mut len = nibble;
    let mut more = nibble == 15;
    while more {
        let byte = next().unwrap();
        len += byte;
        more = byte == 255;
    }
    len
}

/// Hashes the content of a blob as docs/block-image-format.md describes it, with nothing of what wrote it.
fn hashed(blob: &[u8]) -> String {
    let zfile = &blob[TAR_HEADERS..];
    assert_eq!(zfile[..5], *b"ZFile");
    let field = |at: usize, len: usize| number(&zfile[at..at + len]);
    let (index, blocks, size) = (field(40, 8), field(48, 8), field(56, 8));
    let (mut content, mut at) = (Vec::new(), ZFILE_HEADER);
    for block in 0..blocks {
        let end = at + field(index + 4 * block, 4);
        // Its checksum is the end of it.
        content.extend(decompressed(&zfile[at..end - 4]));
        at = end;
    }
    assert_eq!(content.len(), size);
    assert_eq!(content[..4], *b"LSMT");
    format!("blake3:{}", blake3::hash(&content))
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
