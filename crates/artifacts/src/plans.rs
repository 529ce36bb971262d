//! Plans of starts of block images in registries (docs/block-plan-format.md).

use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use blockimages::ReadAt;
use blockimages::convert::{content_of, data_of};
use blockimages::plan::{PLAN_BYTES_MAX, StartPlan};
use blockimages::start_data::{self, LayerContent, START_DATA_BYTES_MAX, StartDataRef};
use blocks::Digest;
use oci::registry::{Repository, Target};
use oci::{Descriptor, Manifest, Platform, Reference, Watch, digest_of};
use serde::Serialize;

use crate::manifest::{DATA_BYTES, RECORDED_AT, newest};

/// What kind of artifact it is, and its first layer.
const PLAN: &str = "application/vnd.yolofs.blockplan.v1";
/// Its second layer, if it has one.
const DATA: &str = "application/vnd.yolofs.blockstart.v1";
/// A configuration that says nothing, as OCI has it.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const EMPTY_BYTES: &[u8] = b"{}";

/// A plan that was pushed.
#[derive(Clone, Debug, Serialize)]
pub struct PushedPlan {
    /// The digest of the image's manifest.
    pub subject: Digest,
    /// The digest of the artifact's manifest.
    pub artifact: Digest,
    /// Bytes of the plan.
    pub bytes: u64,
    /// Bytes of the data that it names, compressed; `None` without data.
    pub data_bytes: Option<u64>,
}

/// A plan that was pulled.
#[derive(Clone, Debug)]
pub struct PulledPlan {
    /// What the start reads.
    pub plan: StartPlan,
    /// The data that it reads, which stays in the registry.
    pub data: Option<StartDataRef>,
}

/// Returns the uncompressed content of a layer, if it can be read.
pub type Contents<'a> = dyn Fn(Digest) -> Option<Arc<dyn ReadAt>> + 'a;

/// Pushes a plan as an artifact about a block image that the registry has; with the data that it names, if there are
/// `contents`: of the layers whose content the image's manifest names.
///
/// # Errors
/// If the registry has no such image, the plan is of other layers, a layer cannot be read or has another content, or the
/// registry refuses.
pub fn push(
    plan: &StartPlan,
    contents: Option<&Contents<'_>>,
    to: &Reference,
    repository: &Repository,
    watch: Watch<'_>,
) -> anyhow::Result<PushedPlan> {
    let found = repository.image(&Target::of(to), &Platform::host(), &mut *watch)?;
    let (subject, image) =
        found.with_context(|| format!("{} is not in the registry", to.familiar()))?;
    let layers: Vec<_> = image.layers.iter().map(data_of).collect();
    ensure!(
        plan.layers().iter().any(|layer| layers.contains(layer)),
        "{} has none of the layers of the plan",
        to.familiar()
    );
    let bytes = plan.encode();
    let mut blobs = vec![push_bytes(repository, PLAN, &bytes, &mut *watch)?];
    let data = match contents {
        Some(contents) => data_of_start(plan, &image.layers, contents)?,
        None => None,
    };
    if let Some(data) = &data {
        blobs.push(push_bytes(repository, DATA, data, &mut *watch)?);
    }
    let config = push_bytes(repository, EMPTY, EMPTY_BYTES, &mut *watch)?;
    let mut manifest = Manifest::of_artifact(PLAN, config, blobs, subject.descriptor());
    let recorded_at = (RECORDED_AT.to_owned(), plan.recorded_at.to_string());
    manifest.annotations.extend([recorded_at]);
    let data_bytes = data.map(|data| data.len() as u64);
    let noted = data_bytes.map(|bytes| (DATA_BYTES.to_owned(), bytes.to_string()));
    manifest.annotations.extend(noted);
    let artifact = repository.push_artifact(&manifest, watch)?.digest;
    Ok(PushedPlan {
        subject: subject.digest,
        artifact,
        bytes: bytes.len() as u64,
        data_bytes,
    })
}

/// Makes the data of a start; `None` if none of the layers that the plan names can be read and verified.
fn data_of_start(
    plan: &StartPlan,
    layers: &[Descriptor],
    contents: &Contents<'_>,
) -> anyhow::Result<Option<Vec<u8>>> {
    let mut readable = Vec::new();
    for layer in layers {
        let digest = data_of(layer);
        let Some(content) = content_of(layer).filter(|_| plan.layers().contains(&digest)) else {
            continue;
        };
        readable.extend(contents(digest).map(|reader| LayerContent {
            digest,
            content,
            reader,
        }));
    }
    let data = start_data::make(plan, &readable)?;
    if let Some(data) = &data {
        let trusted = |digest: &Digest| {
            let layer = readable.iter().find(|layer| layer.digest == *digest);
            layer.map(|layer| layer.content)
        };
        start_data::verify(data, &trusted)
            .context("the data of the start changed while it was read")?;
    }
    Ok(data)
}

fn push_bytes(
    repository: &Repository,
    media_type: &str,
    bytes: &[u8],
    watch: Watch<'_>,
) -> anyhow::Result<Descriptor> {
    let (digest, len) = (digest_of(bytes), bytes.len() as u64);
    if !repository.has_blob(digest, &mut *watch)? {
        repository.push_blob(digest, len, Cursor::new(bytes), watch)?;
    }
    Ok(Descriptor::new(media_type, digest, len))
}

/// Pulls the newest plan of a block image, given the digest of its manifest and its layers; `None` if the registry has
/// none. What the plan says of other layers is left out: it is kept for all images that have them.
///
/// # Errors
/// If the registry's response is not valid, its artifact is not a plan, or is about none of these layers.
pub fn pull(
    (subject, layers): (Digest, &[Digest]),
    repository: &Repository,
    watch: Watch<'_>,
) -> anyhow::Result<Option<PulledPlan>> {
    let found = repository.referrers(subject, PLAN, &mut *watch)?;
    let Some(newest) = newest(&found) else {
        return Ok(None);
    };
    let target = Target::Digest(newest.digest);
    let found = repository.manifest(&target, &mut *watch)?;
    let found = found.context("the registry lists a plan that it does not have")?;
    let manifest = Manifest::decode(&found.bytes).context("the manifest of the plan")?;
    let about = manifest.subject.as_ref().map(|subject| subject.digest);
    ensure!(about == Some(subject), "the plan is about another image");
    let (blob, others) = match &manifest.layers[..] {
        [blob, others @ ..] if blob.media_type == PLAN && blob.size <= PLAN_BYTES_MAX => {
            (blob, others)
        }
        _ => anyhow::bail!("the artifact {} is no plan", found.digest),
    };
    let is_data = |blob: &&Descriptor| {
        blob.media_type == DATA && (1..=START_DATA_BYTES_MAX).contains(&blob.size)
    };
    let data = others.iter().find(is_data).map(|blob| StartDataRef {
        digest: blob.digest,
        size: blob.size,
    });
    let mut bytes = Vec::new();
    let mut take = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    };
    // It compares the digest.
    repository.stream_blob(blob, &mut take, watch)?;
    let plan = StartPlan::decode(&bytes).context("the plan of the registry cannot be used")?;
    let plan = plan.restricted_to(layers);
    ensure!(
        !plan.is_empty(),
        "the plan {} is of other layers than the image's",
        found.digest
    );
    Ok(Some(PulledPlan { plan, data }))
}
