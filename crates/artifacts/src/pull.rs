//! Pulling the boot images of a container image from a registry.
//!
//! They are not trusted. They become hints for the image's layers: when a layer is attached,
//! only names and ranges are taken from them, and the bytes come from the local layer.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use blocks::{Digest, SourceId};
use bootimg::{Image, Stack, Store, layer_name};
use oci::registry::{FoundManifest, Repository, Target};
use oci::{CONFIG_MAX, Descriptor, ImageConfig, Manifest, Platform, Reference};
use serde::Serialize;

use bootstore::store::watch;
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

use crate::manifest::{self, ARTIFACT, PackedLayer};
use crate::transfer::transfer;

/// The most bytes of memory for the description of a pulled image: its sections may be compressed,
/// so the size of the file bounds nothing.
const DESCRIPTION_MAX: u64 = 64 << 20;

/// The result of a pull, as `bootimg pull --json` prints it.
#[derive(Debug, Serialize)]
pub struct Pulled {
    /// The name of the image.
    pub reference: String,
    /// The image's ID.
    pub image: Digest,
    /// The digest of the artifact's manifest.
    pub artifact: Digest,
    /// The boot images.
    pub layers: Vec<PulledLayer>,
    /// Bytes that came over the network.
    pub fetched_bytes: u64,
    /// Bytes from an interrupted pull.
    pub resumed_bytes: u64,
}

/// The boot image of a layer.
#[derive(Debug, Serialize)]
pub struct PulledLayer {
    /// The layer.
    pub layer: Digest,
    /// The ID of the boot image.
    pub id: String,
    /// Bytes of the packed boot image.
    pub bytes: u64,
    /// The result for it.
    pub outcome: PullOutcome,
}

/// What became of the boot image of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PullOutcome {
    /// It came from the registry.
    Pulled,
    /// It was in the store already.
    Present,
    /// Another one was recorded on this node, and stays.
    Kept,
}

/// What to do about boot images that were recorded on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// They stay.
    Stays,
    /// They are replaced.
    Goes,
}

/// Where pulls keep what they have, in the store's directory.
const PULLING: &str = "pulling";
/// After this time an interrupted pull is no longer resumed.
const ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// What to pull, and where to.
#[derive(Debug)]
pub struct PullRequest<'a> {
    /// The container image.
    pub reference: &'a Reference,
    /// Its repository, open for a pull.
    pub repository: Repository,
    /// The store that receives the boot images.
    pub store: &'a Store,
    /// The most bytes that they may have together.
    pub max_bytes: u64,
    /// What becomes of boot images that were recorded on this node.
    pub recorded: Recorded,
}

/// Pulls the boot images of an image. Those of an interrupted pull are not fetched again.
///
/// # Errors
/// If the registry has none, they cannot be used, or the store cannot be written.
pub fn pull(request: PullRequest<'_>, interrupt: &Interrupt) -> anyhow::Result<Pulled> {
    let pull = Pull { request, interrupt };
    let result = pull.run();
    interrupt.check()?;
    let reference = pull.request.reference.familiar();
    result.with_context(|| format!("pulling the boot images of {reference}"))
}

struct Pull<'a> {
    request: PullRequest<'a>,
    interrupt: &'a Interrupt,
}

/// What was recorded on this node.
#[derive(Default)]
struct Here {
    /// Layers whose boot images are bound to places here.
    layers: BTreeSet<Digest>,
    /// Sources that are no layers: their mounts look for recordings by these.
    sources: Vec<SourceId>,
}

/// The artifact, checked.
struct Artifact {
    digest: Digest,
    stack: Stack,
    layers: Vec<PackedLayer>,
}

impl Pull<'_> {
    fn run(&self) -> anyhow::Result<Pulled> {
        let dir = self.scratch_dir()?;
        let artifact = self.artifact(&dir)?;
        let here = self.here()?;
        let mut pulled = Pulled {
            reference: artifact.stack.reference.clone(),
            image: artifact.stack.image,
            artifact: artifact.digest,
            layers: Vec::new(),
            fetched_bytes: 0,
            resumed_bytes: 0,
        };
        for packed in &artifact.layers {
            self.interrupt.check()?;
            let outcome = self.outcome(packed, &here)?;
            if outcome == PullOutcome::Pulled {
                let blob = Descriptor::new("", packed.blob, packed.size);
                let file = self.fetch(&blob, &dir, "pulling", &mut pulled)?;
                let taken = self.take_in(packed, &file, &here);
                remove(&file);
                taken.with_context(|| format!("the boot image of the layer {}", packed.layer))?;
            }
            pulled.layers.push(PulledLayer {
                layer: packed.layer,
                id: packed.image.to_string(),
                bytes: packed.size,
                outcome,
            });
        }
        self.request
            .store
            .put_stack(&artifact.stack)
            .context("keeping the description of the image")?;
        Ok(pulled)
    }

    /// Finds the artifact and checks everything that can be before boot images come.
    fn artifact(&self, dir: &Path) -> anyhow::Result<Artifact> {
        let (subject, image) = self.image()?;
        let config = self.read(&image.config, CONFIG_MAX, dir)?;
        let config = ImageConfig::decode(&config).context("the configuration of the image")?;
        let found = self.referrer(subject.digest)?;
        let listed = Manifest::decode(&found.bytes).context("the manifest of the boot images")?;
        let diff_ids = &config.diff_ids;
        let context = || format!("the artifact {} cannot be used", found.digest);
        let layers = manifest::layers_of(&listed, subject.digest, diff_ids, self.request.max_bytes)
            .with_context(context)?;
        let document = self.read(&listed.config, listed.config.size, dir)?;
        let stack = Stack::decode(&document).with_context(context)?;
        manifest::check_stack(&stack, image.config.digest, diff_ids).with_context(context)?;
        Ok(Artifact {
            digest: found.digest,
            // What it is called is said by who asks, not by who answers.
            stack: Stack {
                reference: self.request.reference.to_string(),
                manifest: Some(subject.digest),
                ..stack
            },
            layers,
        })
    }

    fn image(&self) -> anyhow::Result<(FoundManifest, Manifest)> {
        let bar = progress::bytes("looking for the image", 0);
        let mut watch = transfer(&bar, self.interrupt);
        let target = Target::of(self.request.reference);
        let found = self
            .request
            .repository
            .image(&target, &Platform::host(), &mut watch)?;
        found.with_context(|| format!("{} is not in the registry", self.request.reference))
    }

    fn referrer(&self, subject: Digest) -> anyhow::Result<FoundManifest> {
        let bar = progress::bytes("looking for boot images", 0);
        let mut watch = transfer(&bar, self.interrupt);
        let found = self
            .request
            .repository
            .referrers(subject, ARTIFACT, &mut watch)?;
        let newest = manifest::newest(&found).with_context(|| {
            let name = self.request.reference.familiar();
            format!("the registry has none: bootimg record {name}, and bootimg push {name}")
        })?;
        let manifest = self
            .request
            .repository
            .manifest(&Target::Digest(newest.digest), &mut watch)?;
        manifest.context("the registry lists an artifact that it does not have")
    }

    /// Reads a small blob.
    fn read(&self, blob: &Descriptor, limit: u64, dir: &Path) -> anyhow::Result<Vec<u8>> {
        ensure!(
            blob.size <= limit,
            "the blob {} is too large: {}",
            blob.digest,
            Size(blob.size)
        );
        let path = dir.join(blob.digest.hex());
        let bar = progress::bytes("pulling", blob.size);
        self.request
            .repository
            .pull_blob(blob, &path, &mut transfer(&bar, self.interrupt))?;
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()));
        remove(&path);
        bytes
    }

    fn fetch(
        &self,
        blob: &Descriptor,
        dir: &Path,
        doing: &str,
        pulled: &mut Pulled,
    ) -> anyhow::Result<PathBuf> {
        let path = dir.join(blob.digest.hex());
        let bar = progress::bytes(doing, blob.size);
        let mut watch = transfer(&bar, self.interrupt);
        let done = self.request.repository.pull_blob(blob, &path, &mut watch)?;
        pulled.fetched_bytes += done.fetched;
        pulled.resumed_bytes += done.resumed;
        Ok(path)
    }

    /// Takes a file that anybody may have made into the store, after verifying all of it.
    fn take_in(&self, packed: &PackedLayer, file: &Path, here: &Here) -> anyhow::Result<()> {
        let image = Image::open_within(file, DESCRIPTION_MAX).context("it cannot be used")?;
        ensure!(
            image.info().id == packed.image,
            "it is {}, not the announced boot image",
            image.info().id
        );
        let source = &image.info().source;
        // A mount of that source would find it, and lose its own.
        ensure!(
            !here.sources.contains(&source.id),
            "it claims the source {:?}, which was recorded here and is not a layer",
            source.label
        );
        let bar = progress::bytes("importing", 0);
        let name = layer_name(&packed.layer);
        self.request
            .store
            .import(file, Some(&name), &mut watch(&bar, self.interrupt))
            .context("taking it into the store")?;
        Ok(())
    }

    fn outcome(&self, packed: &PackedLayer, here: &Here) -> anyhow::Result<PullOutcome> {
        if self.request.recorded == Recorded::Stays && here.layers.contains(&packed.layer) {
            return Ok(PullOutcome::Kept);
        }
        let known = self.request.store.layer(&packed.layer);
        let known = known.context("looking for the boot image of a layer")?;
        Ok(match known == Some(packed.image) {
            true => PullOutcome::Present,
            false => PullOutcome::Pulled,
        })
    }

    /// Looks at what was recorded on this node.
    fn here(&self) -> anyhow::Result<Here> {
        let mut here = Here::default();
        for image in self.request.store.list().context("listing the store")? {
            for name in &image.names {
                let layer = name.split('@').next().unwrap_or_default();
                match layer.parse() {
                    Ok(layer) if name.contains('@') => drop(here.layers.insert(layer)),
                    Ok(_) => {} // of a layer, and perhaps from elsewhere
                    Err(_) => here.sources.push(image.info.source.id),
                }
            }
        }
        Ok(here)
    }

    fn scratch_dir(&self) -> anyhow::Result<PathBuf> {
        self.request.store.make().context("making the store")?;
        let dir = self.request.store.dir().join(PULLING);
        rawio::private::make_dir_alike(&dir)
            .with_context(|| format!("making {}", dir.display()))?;
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if !is_of_blob(name.as_bytes()) {
                continue; // nothing that we put there
            }
            let changed = entry.metadata().and_then(|meta| meta.modified());
            let age = changed.map(|changed| SystemTime::now().duration_since(changed));
            if matches!(age, Ok(Ok(age)) if age > ABANDONED) {
                remove(&entry.path());
            }
        }
        Ok(dir)
    }
}

/// Whether a file has the name of one that is being fetched: the blob's digest, and perhaps more.
fn is_of_blob(name: &[u8]) -> bool {
    let digits = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit)
}

fn remove(file: &Path) {
    if let Err(error) = fs::remove_file(file) {
        log::warn!("cannot remove {}: {error}", file.display());
    }
}
