//! `bootimg push`: the boot images of a container image into a registry.

use std::fs::File;
use std::io::Cursor;

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use bootimg::{ImageId, Stack, Store, Variant};
use oci::registry::{Access, FoundManifest, Linked, Repository, Target};
use oci::{Descriptor, Platform, Reference, digest_and_len, digest_of};
use serde::Serialize;

use super::artifact::{self, PackedLayer, STACK};
use super::registry::{self, RegistryArgs, transfer};
use super::stacks;
use crate::exit::Outcome;
use crate::output::{FormatArg, count, print};
use bootstore::store::{Scratch, StoreSettings, watch};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

/// Put the boot images of a container image into a registry
///
/// They become an artifact about the image, beside it: whoever pulls the image can find them with
/// `bootimg pull`. The image itself must be in the registry already. Pushing again pushes what is
/// missing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PushArgs {
    /// Name or image ID of a container image that was recorded
    image: String,
    /// Where the image is in a registry [default: by its name]
    #[arg(long, value_name = "IMAGE")]
    to: Option<Reference>,
    /// Only say what would be pushed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// What `push --json` prints.
#[derive(Debug, Serialize)]
struct Pushed {
    dry_run: bool,
    /// The image in the registry.
    reference: String,
    /// The digest of the image's manifest.
    subject: Digest,
    /// The digest of the artifact's manifest; none with `--dry-run`.
    artifact: Option<Digest>,
    /// How it is found: listed by the `registry`, or by `tag`.
    found_by: Option<&'static str>,
    layers: Vec<PushedLayer>,
    /// Layers of which nothing is needed at boot.
    layers_without: usize,
}

#[derive(Debug, Serialize)]
struct PushedLayer {
    layer: Digest,
    id: String,
    /// Bytes of the packed boot image; of its blocks with `--dry-run`.
    bytes: u64,
    /// Whether the registry had it already.
    present: bool,
}

pub(super) fn run(args: &PushArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let store = store.open_present()?;
    let image = &args.image;
    let stack = stacks::find(&store, image)?.with_context(|| {
        format!("the store has no container image {image}: record it with bootimg record {image}")
    })?;
    let to = place(args, &stack)?;
    let config = args.registry.config(&to)?;
    registry::confine(&store)?;
    let interrupt = Interrupt::install()?;
    let repository =
        Repository::open(&to, Access::Push, &config).context("setting up the registry")?;
    let result = push(args, &store, &stack, &to, &repository, &interrupt);
    interrupt.check()?;
    let pushed = result.with_context(|| format!("pushing the boot images of {image}"))?;
    print(args.format.format(), &pushed, text)?;
    Ok(Outcome::Done)
}

/// Returns where the image is in a registry.
fn place(args: &PushArgs, stack: &Stack) -> anyhow::Result<Reference> {
    match &args.to {
        Some(to) => Ok(to.clone()),
        None => stack
            .reference
            .parse()
            .with_context(|| format!("{} is in no registry: say where with --to", stack.reference)),
    }
}

fn push(
    args: &PushArgs,
    store: &Store,
    stack: &Stack,
    to: &Reference,
    repository: &Repository,
    interrupt: &Interrupt,
) -> anyhow::Result<Pushed> {
    let images = images_of(store, stack)?;
    ensure!(
        !images.is_empty(),
        "the store has none: bootimg record {}",
        stack.reference
    );
    let subject = subject(repository, to, stack, interrupt)?;
    let mut pushed = Pushed {
        dry_run: args.dry_run,
        reference: to.to_string(),
        subject: subject.digest,
        artifact: None,
        found_by: None,
        layers: Vec::new(),
        layers_without: stack.layers.len() - images.len(),
    };
    if args.dry_run {
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
    let manifest = artifact::manifest(stack, config, &packed, subject.descriptor());
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
             say with --to where that image is",
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

fn text(pushed: &Pushed) -> String {
    let mut text = String::new();
    for layer in &pushed.layers {
        let what = match (pushed.dry_run, layer.present) {
            (true, _) => "would be pushed",
            (false, true) => "was there",
            (false, false) => "pushed",
        };
        let bytes = Size(layer.bytes);
        text.push_str(&format!("layer {}: {bytes} {what}\n", layer.layer.short()));
    }
    if pushed.layers_without > 0 {
        let without = count(pushed.layers_without as u64, "layer");
        text.push_str(&format!("{without} without a boot image\n"));
    }
    if let Some(artifact) = pushed.artifact {
        text.push_str(&format!("{}: boot images {artifact}\n", pushed.reference));
    }
    text
}
