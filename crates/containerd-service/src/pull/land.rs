//! What a pull puts into containerd: layers in their order, then what names them.

use std::collections::HashMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use engine::containerd::{KeptDocument, Labels, Lease, PLAIN_LABEL, Prepared};
use oci::registry::FoundManifest;
use snapshotter::STAGED_LABEL;

use super::Blobs;
use super::blobs::source_of;
use super::fetch::Ready;
use super::wanted::{Layer, Wanted};

/// Has containerd's snapshotter adopt an unpacked layer, on top of those below. If another client
/// was faster, its layer stays.
///
/// # Errors
/// If containerd or the snapshotter fails.
pub(super) fn land(lease: &Lease<'_>, layer: &Layer, ready: &Ready) -> anyhow::Result<()> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.subsec_nanos());
    // As containerd's own clients call what they unpack into.
    let name = ready.staged.name().as_str();
    let key = format!("extract-{nanos}-{} {}", &name[..4], layer.chain);
    let labels = HashMap::from([
        (STAGED_LABEL.to_owned(), name.to_owned()),
        (PLAIN_LABEL.to_owned(), "true".to_owned()),
    ]);
    let prepared = lease.prepare(&key, &layer.chain, layer.parent.as_ref(), labels)?;
    let Prepared::Made(dirs) = prepared else {
        return Ok(());
    };
    let committed = inherit(&dirs, ready).and_then(|()| Ok(lease.commit(&key, &layer.chain)?));
    if committed.is_err() {
        // It goes with the lease, too.
        drop(lease.remove(&key));
    }
    committed
}

/// Has the namespace of the lease get a layer that another namespace has, and returns whether it has it then. containerd asks the
/// snapshotter, which answers that the layer exists, and makes a record of it.
///
/// # Errors
/// If containerd fails.
pub(super) fn adopt(lease: &Lease<'_>, layer: &Layer, pull: &str) -> anyhow::Result<bool> {
    let key = format!("extract-{pull} {}", layer.chain);
    match lease.prepare(&key, &layer.chain, layer.parent.as_ref(), Labels::new())? {
        Prepared::AlreadyThere => Ok(lease.keep_layer(&layer.chain)?),
        // It was removed meanwhile.
        Prepared::Made(_) => {
            lease.remove(&key)?;
            Ok(false)
        }
    }
}

/// Gives directories of which the layer says nothing what they have in the layers below.
fn inherit(dirs: &[std::path::PathBuf], ready: &Ready) -> anyhow::Result<()> {
    let [own, below @ ..] = dirs else {
        return Ok(());
    };
    let below: Vec<&Path> = below.iter().map(AsRef::as_ref).collect();
    let took = ready.implied.take_after(own, &below);
    took.with_context(|| format!("completing the layer in {}", own.display()))
}

/// Stores the documents of an image in containerd, before its layers are complete: the lease keeps them,
/// and containerd flushes each to the disk, which is not to delay the end of the pull.
///
/// # Errors
/// If containerd fails.
pub(super) fn documents(
    lease: &Lease<'_>,
    wanted: &Wanted,
    snapshotter: &str,
    blobs: Blobs,
) -> anyhow::Result<()> {
    let described = &wanted.image.manifest.config;
    let source = source_of(&wanted.reference);
    let keep = |media_type: &str, digest, bytes: &[u8], refers: Vec<(String, String)>| {
        let labels: Labels = refers.into_iter().chain([source.clone()]).collect();
        lease.put(&KeptDocument {
            media_type,
            digest,
            bytes,
            labels,
        })
    };
    let top = wanted.layers.last().map(|layer| {
        let label = format!("containerd.io/gc.ref.snapshot.{snapshotter}");
        (label, layer.chain.to_string())
    });
    keep(
        &described.media_type,
        described.digest,
        &wanted.config,
        top.into_iter().collect(),
    )?;
    let refers = |what: &str, digest: blocks::Digest| {
        let label = format!("containerd.io/gc.ref.content.{what}");
        (label, digest.to_string())
    };
    let document =
        |found: &FoundManifest, refers| keep(&found.media_type, found.digest, &found.bytes, refers);
    let manifest = &wanted.image.found;
    let mut content = vec![refers("config", described.digest)];
    if blobs == Blobs::Keep {
        let layers = wanted.layers.iter().enumerate();
        content.extend(layers.map(|(at, of)| refers(&format!("l.{at}"), of.blob.digest)));
    }
    document(manifest, content)?;
    if let Some(index) = &wanted.image.index {
        document(index, vec![refers("m.0", manifest.digest)])?;
    }
    Ok(())
}

/// Creates the name of a complete image.
///
/// # Errors
/// If containerd fails.
pub(super) fn name(lease: &Lease<'_>, wanted: &Wanted) -> anyhow::Result<()> {
    let image = &wanted.image;
    let target = image.index.as_ref().unwrap_or(&image.found);
    let descriptor = target.descriptor();
    lease.name_image(
        &wanted.reference.to_string(),
        &KeptDocument {
            media_type: &descriptor.media_type,
            digest: target.digest,
            bytes: &target.bytes,
            labels: Labels::new(),
        },
    )?;
    Ok(())
}
