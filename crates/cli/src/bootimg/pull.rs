//! `bootimg pull`: the boot images of a container image from a registry.
//!
//! What comes is not trusted. It becomes a hint for the image's layers: when a layer is attached,
//! only names and ranges are taken from it, and the bytes come from the layer that is here.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, ensure};
use blocks::{Digest, SourceId};
use bootimg::{Image, Stack, Store, layer_name};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use oci::registry::{Access, FoundManifest, Repository, Target};
use oci::{Descriptor, ImageConfig, Manifest, Platform, Reference};
use serde::Serialize;

use super::artifact::{self, ARTIFACT, PackedLayer};
use super::registry::{self, RegistryArgs, transfer};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::{StoreSettings, watch};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

/// Fetch the boot images of a container image from a registry
///
/// `bootimg push` put them beside the image. The image need not be on this node yet: its layers
/// use them as soon as they are attached. Recordings of this node are kept. A pull that was
/// interrupted resumes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PullArgs {
    /// Name of the container image
    image: Reference,
    /// Replace boot images that were recorded on this node
    #[arg(long)]
    force: bool,
    /// Refuse boot images that are larger than this together
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    max_bytes: Size,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// What `pull --json` prints.
#[derive(Debug, Serialize)]
struct Pulled {
    /// The name of the image.
    reference: String,
    /// The image's ID.
    image: Digest,
    /// The digest of the artifact's manifest.
    artifact: Digest,
    layers: Vec<PulledLayer>,
    /// Bytes that came over the network.
    fetched_bytes: u64,
    /// Bytes that an interrupted pull had brought.
    resumed_bytes: u64,
}

#[derive(Debug, Serialize)]
struct PulledLayer {
    layer: Digest,
    id: String,
    /// Bytes of the packed boot image.
    bytes: u64,
    outcome: PullOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PullOutcome {
    /// It came from the registry.
    Pulled,
    /// It was in the store already.
    Present,
    /// Another one was recorded on this node, and stays.
    Kept,
}

/// What to do about boot images that were recorded on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Stays,
    Goes,
}

pub(super) fn run(args: &PullArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let recorded = if args.force {
        Recorded::Goes
    } else {
        Recorded::Stays
    };
    let config = args.registry.config(&args.image)?;
    let store = store.open()?;
    store.make().context("making the store")?;
    registry::confine(&store)?;
    let interrupt = Interrupt::install()?;
    let repository = Repository::open(&args.image, Access::Pull, &config);
    let pull = Pull {
        reference: &args.image,
        repository: repository.context("setting up the registry")?,
        store: &store,
        max_bytes: args.max_bytes.0,
        recorded,
        interrupt: &interrupt,
    };
    let pulled = pull.run()?;
    print(args.format.format(), &pulled, text)?;
    Ok(Outcome::Done)
}

/// Has another process fetch the boot images of an image that the store knows nothing of, and describe it:
/// one that is confined, as this one is not.
///
/// # Errors
/// If the registry has none, or what it has cannot be used; that process has said so.
pub(super) fn fetch(
    reference: &Reference,
    registry: &RegistryArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let name = reference.to_string();
    let mut program = Command::new("/proc/self/exe");
    program
        .args(["pull", &name])
        .args(registry.arguments())
        .envs(store.as_env())
        .stdout(Stdio::null());
    let mut child = program.spawn().context("starting a process that pulls")?;
    let mut told: Option<Instant> = None;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for the pull")? {
            break status;
        }
        match told {
            None if interrupt.asked() => {
                // It may have heard it, too: both together are one request.
                let _sent = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT);
                told = Some(Instant::now());
            }
            // It waits for the registry. The next pull goes on with what has come.
            Some(told) if told.elapsed() > ENDING => drop(child.kill()),
            _ => {}
        }
        std::thread::sleep(LOOK_EVERY);
    };
    interrupt.check()?;
    ensure!(
        status.success(),
        "the boot images of {} were not pulled ({status})",
        reference.familiar()
    );
    Ok(())
}

/// How long it may take to end when it is asked to.
const ENDING: Duration = Duration::from_secs(2);
/// How often the end of another process is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Bytes of the configuration of an image. Real ones have some kilobytes.
const CONFIG_MAX: u64 = 8 << 20;
/// Where pulls keep what they have, in the store's directory.
const PULLING: &str = "pulling";
/// After so long nobody goes on with an interrupted pull.
const ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

struct Pull<'a> {
    reference: &'a Reference,
    repository: Repository,
    store: &'a Store,
    max_bytes: u64,
    recorded: Recorded,
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
        let result = self.pull();
        self.interrupt.check()?;
        result.with_context(|| format!("pulling the boot images of {}", self.reference.familiar()))
    }

    fn pull(&self) -> anyhow::Result<Pulled> {
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
        self.store
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
        let manifest = Manifest::decode(&found.bytes).context("the manifest of the boot images")?;
        let diff_ids = &config.diff_ids;
        let context = || format!("the artifact {} cannot be used", found.digest);
        let layers = artifact::layers_of(&manifest, subject.digest, diff_ids, self.max_bytes)
            .with_context(context)?;
        let document = self.read(&manifest.config, manifest.config.size, dir)?;
        let stack = Stack::decode(&document).with_context(context)?;
        artifact::check_stack(&stack, image.config.digest, diff_ids).with_context(context)?;
        Ok(Artifact {
            digest: found.digest,
            // What it is called is said by who asks, not by who answers.
            stack: Stack {
                reference: self.reference.to_string(),
                manifest: Some(subject.digest),
                ..stack
            },
            layers,
        })
    }

    fn image(&self) -> anyhow::Result<(FoundManifest, Manifest)> {
        let bar = progress::bytes("looking for the image", 0);
        let mut watch = transfer(&bar, self.interrupt);
        let target = Target::of(self.reference);
        let found = self
            .repository
            .image(&target, &Platform::host(), &mut watch)?;
        found.with_context(|| format!("{} is not in the registry", self.reference))
    }

    fn referrer(&self, subject: Digest) -> anyhow::Result<FoundManifest> {
        let bar = progress::bytes("looking for boot images", 0);
        let mut watch = transfer(&bar, self.interrupt);
        let found = self.repository.referrers(subject, ARTIFACT, &mut watch)?;
        let newest = artifact::newest(&found).with_context(|| {
            let name = self.reference.familiar();
            format!("the registry has none: bootimg record {name}, and bootimg push {name}")
        })?;
        let manifest = self
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
        self.repository
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
        let done = self.repository.pull_blob(blob, &path, &mut watch)?;
        pulled.fetched_bytes += done.fetched;
        pulled.resumed_bytes += done.resumed;
        Ok(path)
    }

    /// Takes a file that anybody may have made into the store, after verifying all of it.
    fn take_in(&self, packed: &PackedLayer, file: &Path, here: &Here) -> anyhow::Result<()> {
        let image = Image::open(file).context("it cannot be used")?;
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
        self.store
            .import(file, Some(&name), &mut watch(&bar, self.interrupt))
            .context("taking it into the store")?;
        Ok(())
    }

    fn outcome(&self, packed: &PackedLayer, here: &Here) -> anyhow::Result<PullOutcome> {
        if self.recorded == Recorded::Stays && here.layers.contains(&packed.layer) {
            return Ok(PullOutcome::Kept);
        }
        let known = self.store.layer(&packed.layer);
        let known = known.context("looking for the boot image of a layer")?;
        Ok(match known == Some(packed.image) {
            true => PullOutcome::Present,
            false => PullOutcome::Pulled,
        })
    }

    /// Looks at what was recorded on this node.
    fn here(&self) -> anyhow::Result<Here> {
        let mut here = Here::default();
        for image in self.store.list().context("listing the store")? {
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
        self.store.make().context("making the store")?;
        let dir = self.store.dir().join(PULLING);
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

fn text(pulled: &Pulled) -> String {
    let mut text = String::new();
    for layer in &pulled.layers {
        let bytes = Size(layer.bytes);
        let what = match layer.outcome {
            PullOutcome::Pulled => "pulled",
            PullOutcome::Present => "was there",
            PullOutcome::Kept => "left: one was recorded on this node (replace it with --force)",
        };
        text.push_str(&format!("layer {}: {bytes} {what}\n", layer.layer.short()));
    }
    let (fetched, resumed) = (Size(pulled.fetched_bytes), Size(pulled.resumed_bytes));
    let before = match pulled.resumed_bytes {
        0 => String::new(),
        _ => format!(", {resumed} were there from before"),
    };
    text.push_str(&format!(
        "{}: {fetched} fetched{before}\n",
        pulled.reference
    ));
    text
}
