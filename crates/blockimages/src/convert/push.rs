//! Pushes converted images to a registry.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use blocks::Digest;
use oci::registry::{Repository, Target};
use oci::{Descriptor, Manifest};

use super::ConvertError;
use super::annotations::TARGET_DIGEST;
use super::layout::{blob_path, read};
use crate::error::file;

/// The result of a push.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pushed {
    /// Blobs that the registry did not have.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Pushes an image of the layout in `dir` as `target`: first the blobs that the registry lacks. The watch
/// receives how many bytes were sent.
///
/// # Errors
/// If a blob cannot be read, if the registry refuses it, or if the watch cancels.
pub fn push(
    dir: &Path,
    manifest: Digest,
    repository: &Repository,
    target: &Target,
    watch: oci::Watch<'_>,
) -> Result<Pushed, ConvertError> {
    let bytes = read(&blob_path(dir, manifest))?;
    let parsed = Manifest::decode(&bytes)?;
    let mut pushed = Pushed::default();
    for layer in &parsed.layers {
        let Some(target) = layer.annotations.get(TARGET_DIGEST) else {
            continue;
        };
        let digest: Digest = target.parse().map_err(|_| ConvertError::Rule {
            rule: "a layer refers to what is no digest",
        })?;
        if !repository.has_blob(digest, &mut |_| watch(0))? {
            return Err(ConvertError::NoTarget { digest });
        }
    }
    for blob in parsed.layers.iter().chain([&parsed.config]) {
        push_blob(dir, blob, repository, &mut pushed, &mut *watch)?;
    }
    repository.push_image(target, &bytes, &mut |_| watch(pushed.bytes))?;
    Ok(pushed)
}

fn push_blob(
    dir: &Path,
    blob: &Descriptor,
    repository: &Repository,
    pushed: &mut Pushed,
    watch: oci::Watch<'_>,
) -> Result<(), ConvertError> {
    let before = pushed.bytes;
    let mut told = |gone: u64| -> ControlFlow<()> { watch(before + gone) };
    if repository.has_blob(blob.digest, &mut |_| told(0))? {
        return Ok(());
    }
    let path = blob_path(dir, blob.digest);
    let content = File::open(&path).map_err(file("opening", &path))?;
    repository.push_blob(blob.digest, blob.size, content, &mut told)?;
    pushed.blobs += 1;
    pushed.bytes += blob.size;
    Ok(())
}
