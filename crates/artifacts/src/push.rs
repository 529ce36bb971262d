//! The boot images of a container image into a registry.

use std::fs::File;
use std::io::Cursor;

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use bootimg::{ImageId, Stack, Store, Variant};
use oci::registry::{FoundManifest, Linked, Repository, Target};
use oci::{Descriptor, Platform, Reference, digest_and_len, digest_of};
use serde::Serialize;

use bootstore::store::{Scratch, watch};
use host::interrupt::Interrupt;
use host::progress;

use crate::manifest::{self, PackedLayer, STACK};
use crate::transfer::transfer;

/// What to push, and where to.
#[derive(Debug)]
pub struct PushRequest<'a> {
    /// The store that has the boot images.
    pub store: &'a Store,
    /// The container image that they are of.
    pub stack: &'a Stack,
    /// Where that image is in a registry.
    pub to: &'a Reference,
    /// The repository of `to`, open for a push.
    pub repository: &'a Repository,
    /// Whether something is written.
    pub mode: PushMode,
}

/// Whether something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// The boot images are pushed.
    Push,
    /// Only the plan is reported.
    DryRun,
}

/// The result of a push, as `bootimg push --json` prints it.
#[derive(Debug, Serialize)]
pub struct Pushed {
    /// Whether nothing was written.
    pub dry_run: bool,
    /// The image in the registry.
    pub reference: String,
    /// The digest of the image's manifest.
    pub subject: Digest,
    /// The digest of the artifact's manifest; none with a dry run.
    pub artifact: Option<Digest>,
    /// How it is found: listed by the `registry`, or by `tag`.
    pub found_by: Option<&'static str>,
    /// The boot images.
    pub layers: Vec<PushedLayer>,
    /// Layers of which nothing is needed at boot.
    pub layers_without: usize,
}

/// The boot image of a layer.
#[derive(Debug, Serialize)]
pub struct PushedLayer {
    /// The layer.
    pub layer: Digest,
    /// The ID of the boot image.
    pub id: String,
    /// Bytes of the packed boot image; of its blocks with a dry run.
    pub bytes: u64,
    /// Whether the registry had it already.
    pub present: bool,
}

/// Pushes the boot images of an image that the registry has, as an artifact that refers to it. Pushing again pushes
/// missing ones.
///
/// # Errors
/// If the store has no boot image of it, the registry has another image or none, or refuses.
pub fn push(request: &PushRequest<'_>, interrupt: &Interrupt) -> anyhow::Result<Pushed> {
    let PushRequest {
        store,
        stack,
        to,
        repository,
        mode,
    } = *request;
    let images = images_of(store, stack)?;
    ensure!(
        !images.is_empty(),
        "the store has none: bootimg record {}",
        stack.reference
    );
    let subject = subject(repository, to, stack, interrupt)?;
    let mut pushed = Pushed {
        dry_run: mode == PushMode::DryRun,
        reference: to.to_string(),
        subject: subject.digest,
        artifact: None,
        found_by: None,
        layers: Vec::new(),
        layers_without: stack.layers.len() - images.len(),
    };
    if mode == PushMode::DryRun {
        pushed.layers = foreseen(store, &images)?;
        return Ok(pushed);
    }
    let mut packed = Vec::new();
    for (layer, id) in images {
        let (one, present) = push_layer(repository, store, layer, id, interrupt)?;
        pushed.layers.push(PushedLayer {
            layer,
            id: id.to_string(),
            bytes: one.size,
            present,
        });
        packed.push(one);
    }
    let config = push_description(repository, stack, to, &subject, interrupt)?;
    let manifest = manifest::manifest(stack, config, &packed, subject.descriptor());
    let bar = progress::bytes("pushing", 0);
    let done = repository.push_artifact(&manifest, &mut transfer(&bar, interrupt))?;
    pushed.artifact = Some(done.digest);
    pushed.found_by = Some(match done.linked {
        Linked::ByRegistry => "registry",
        Linked::ByTag | Linked::NotAtAll => "tag",
    });
    Ok(pushed)
}

/// Returns the layers that have boot images, each once, the lowest first.
fn images_of(store: &Store, stack: &Stack) -> anyhow::Result<Vec<(Digest, ImageId)>> {
    let mut images: Vec<(Digest, ImageId)> = Vec::new();
    for layer in &stack.layers {
        let id = store
            .layer(layer)
            .context("looking for the boot image of a layer")?;
        if let Some(id) = id
            && images.iter().all(|(known, _)| known != layer)
        {
            images.push((*layer, id));
        }
    }
    Ok(images)
}

/// Returns the manifest of the image, as the registry has it. The digest it was recorded under
/// comes first: the tag may have moved on since.
fn subject(
    repository: &Repository,
    to: &Reference,
    stack: &Stack,
    interrupt: &Interrupt,
) -> anyhow::Result<FoundManifest> {
    let bar = progress::bytes("looking for the image", 0);
    let recorded = stack.manifest.map(Target::Digest);
    let mut another = None;
    for target in recorded.into_iter().chain([Target::of(to)]) {
        let mut watch = transfer(&bar, interrupt);
        let found = repository.image(&target, &Platform::host(), &mut watch)?;
        match found {
            Some((found, image)) if image.config.digest == stack.image => return Ok(found),
            Some((_, image)) => another = Some(image.config.digest),
            None => {}
        }
    }
    let (short, to) = (stack.image.short(), to.familiar());
    match another {
        Some(other) => bail!(
            "{to} is the image {} in the registry, and {short} was recorded: record it again, or \
             name the reference of that image (to)",
            other.short()
        ),
        None => bail!("{to} is not in the registry: push the image first"),
    }
}

fn foreseen(store: &Store, images: &[(Digest, ImageId)]) -> anyhow::Result<Vec<PushedLayer>> {
    let foreseen = |(layer, id): &(Digest, ImageId)| {
        let image = store.open_image(id);
        let image = image.with_context(|| format!("opening the boot image of {layer}"))?;
        Ok(PushedLayer {
            layer: *layer,
            id: id.to_string(),
            bytes: image.info().data_blocks * 4096,
            present: false,
        })
    };
    images.iter().map(foreseen).collect()
}

/// Packs a boot image and pushes it; returns whether the registry had it.
fn push_layer(
    repository: &Repository,
    store: &Store,
    layer: Digest,
    image: ImageId,
    interrupt: &Interrupt,
) -> anyhow::Result<(PackedLayer, bool)> {
    let scratch = Scratch::new(store)?;
    let path = scratch.file("push");
    let bar = progress::bytes("packing", 0);
    store
        .export(&image, &path, Variant::Packed, &mut watch(&bar, interrupt))
        .with_context(|| format!("packing the boot image of {layer}"))?;
    let (blob, size) = File::open(&path)
        .and_then(digest_and_len)
        .with_context(|| format!("reading {}", path.display()))?;
    let bar = progress::bytes("pushing", size);
    let mut watch = transfer(&bar, interrupt);
    let present = repository.has_blob(blob, &mut watch)?;
    if !present {
        let file = File::open(&path).context("opening the packed boot image")?;
        repository.push_blob(blob, size, file, &mut watch)?;
    }
    let packed = PackedLayer {
        layer,
        image,
        blob,
        size,
    };
    Ok((packed, present))
}

/// Pushes what is known of the image, under the name it has there.
fn push_description(
    repository: &Repository,
    stack: &Stack,
    to: &Reference,
    subject: &FoundManifest,
    interrupt: &Interrupt,
) -> anyhow::Result<Descriptor> {
    let there = Stack {
        reference: to.to_string(),
        manifest: Some(subject.digest),
        ..stack.clone()
    };
    let document = there.encode().context("describing the image")?;
    let (digest, len) = (digest_of(&document), document.len() as u64);
    let bar = progress::bytes("pushing", len);
    let mut watch = transfer(&bar, interrupt);
    if !repository.has_blob(digest, &mut watch)? {
        repository.push_blob(digest, len, Cursor::new(&document), &mut watch)?;
    }
    Ok(Descriptor::new(STACK, digest, len))
}
