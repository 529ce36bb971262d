//! `yolofs block push`: what was committed on an image, without the image.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use blockimages::convert::{
    Arrival, BaseImage, LayersFrom, NewLayer, RegistryImage, StackPushed, StackedImage, data_of,
};
use blockimages::manage::{self, CommittedLayers};
use blockimages::repository_of;
use blocks::Digest;
use engine::containerd::{Containerd, DEFAULT_ADDRESS, SnapshotStack, StackBase};
use engine::{ImageName, containerd::chain_ids};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;
use mounting::confinement::{Asks, BlockAccess};
use oci::registry::{Access, RegistryConfig, Repository, Target};
use oci::{ImageConfig, Reference};
use serde_json::json;

use super::show;
use crate::bootimg::registry::RegistryArgs;
use crate::exit::Outcome;
use crate::output::FormatArg;

/// Push what was committed on an image as an image of its own, without the layers that the registry has
///
/// IMAGE is a directory that `yolofs block create` made on an image in a registry and `yolofs block commit` sealed layers in;
/// or a snapshot of containerd (containerd://NAMESPACE/KEY) that was committed of a container with a device of its own. Layers
/// of the image below are not read: the registry has them, takes them from another of its repositories, or is sent them from
/// the registry that they are in. The same layers make the same image whenever they are pushed; a push that was interrupted
/// can be repeated, and sends what is missing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PushArgs {
    /// overlaybd's config.v1.json, or the directory that has it; or containerd://NAMESPACE/KEY of a committed snapshot
    #[arg(value_name = "IMAGE")]
    image: String,
    /// What the new image is called
    #[arg(value_name = "REF")]
    to: Reference,
    /// The image that the layers were written on [default: the one that IMAGE was made on]
    #[arg(long, value_name = "REF")]
    base: Option<Reference>,
    /// Socket of containerd, for a snapshot
    #[arg(
        long,
        value_name = "FILE",
        env = "CONTAINERD_ADDRESS",
        default_value = DEFAULT_ADDRESS
    )]
    address: PathBuf,
    /// What containerd calls the snapshotter, for a snapshot
    #[arg(long, value_name = "NAME", default_value = "yolofs")]
    snapshotter: String,
    /// Where layers of the image below are meanwhile that come from another registry
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Only say what would be pushed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    registry: RegistryArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &PushArgs) -> anyhow::Result<Outcome> {
    let committed = Committed::of(args)?;
    let base = committed.base(args)?;
    // Whoever knows a login is asked before.
    let logins = Logins {
        target: args.registry.config(&args.to)?,
        base: base
            .as_ref()
            .map(|base| args.registry.config(base))
            .transpose()?,
    };
    access(&committed, args).confine()?;
    let interrupt = Interrupt::install()?;
    let bar = progress::bytes("pushing", 0);
    let mut watch = |done: u64| {
        bar.set_position(done);
        match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let done = Push {
        args,
        base: base.as_ref(),
        logins: &logins,
        bar: &bar,
    }
    .run(&committed, &mut watch);
    bar.finish_and_clear();
    interrupt.check()?;
    let done = done.with_context(|| format!("pushing {} as {}", args.image, args.to.familiar()))?;
    if committed.is_written_to() {
        let image = &args.image;
        log::warn!(
            "what was written to {image} since the last commit is not part of it: yolofs block commit {image}"
        );
    }
    let dry_run = args.dry_run;
    let mut told = json!(done);
    told["image"] = json!(args.to.to_string());
    told["dry_run"] = json!(dry_run);
    show(args.format, &told, said(&done, args))
}

/// What there is to push, wherever it is.
enum Committed {
    Image(CommittedLayers),
    Snapshot {
        stack: SnapshotStack,
        /// The image below, if it is in containerd.
        base: Option<Box<StackBase>>,
    },
}

impl Committed {
    fn of(args: &PushArgs) -> anyhow::Result<Self> {
        let parsed = ImageName::parse(&args.image)?;
        let Some(ImageName::Containerd {
            namespace,
            reference: key,
        }) = parsed
        else {
            ensure!(
                parsed.is_none(),
                "{} is no directory of a block image, and no snapshot (containerd://NAMESPACE/KEY)",
                args.image
            );
            return Ok(Self::Image(manage::committed_layers(Path::new(
                &args.image,
            ))?));
        };
        let engine = Containerd::connect(&args.address, &namespace, &args.snapshotter)?;
        let stack = engine.snapshot_stack(&key)?;
        let base = match args.base {
            None => engine.stack_base(&stack.chain)?.map(Box::new),
            Some(_) => None,
        };
        Ok(Self::Snapshot { stack, base })
    }

    /// Returns the image below, as a registry has it.
    fn base(&self, args: &PushArgs) -> anyhow::Result<Option<Reference>> {
        if let Some(base) = &args.base {
            return Ok(Some(base.clone()));
        }
        match self {
            Self::Image(image) => {
                let repository = repository_of(&image.config.repo_blob_url);
                let named = repository.ok().zip(image.config.manifest);
                let (repository, manifest) = named.with_context(|| {
                    format!(
                        "{} does not say which image it was made on: name it with --base",
                        args.image
                    )
                })?;
                let (host, name) = (repository.registry(), repository.repository());
                Ok(Some(format!("{host}/{name}@{manifest}").parse()?))
            }
            Self::Snapshot {
                base: Some(base), ..
            } => Ok(base.reference.parse().ok()),
            Self::Snapshot { stack, base: None } => bail!(
                "containerd has no image with the layers of {} any more: name it with --base",
                stack.chain
            ),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Image(image) => {
                let files = image.layers.iter();
                files.filter_map(|(_, file)| file.clone()).collect()
            }
            Self::Snapshot { stack, .. } => stack.blobs.clone(),
        }
    }

    fn is_written_to(&self) -> bool {
        matches!(self, Self::Image(image) if image.uncommitted)
    }

    /// Returns the digests of the layers that others were written on, and these, given the image below.
    fn split(&self, base: &BaseImage) -> anyhow::Result<(Vec<Option<Digest>>, Vec<NewLayer>)> {
        match self {
            Self::Image(image) => {
                let count = base.manifest.layers.len().min(image.layers.len());
                let (below, above) = image.layers.split_at(count);
                let above = above.iter().map(|(digest, file)| {
                    let file = file.clone();
                    let file =
                        file.context("a layer above those of the image below is elsewhere")?;
                    Ok(NewLayer {
                        file,
                        digest: *digest,
                    })
                });
                let below = below.iter().map(|(digest, _)| *digest).collect();
                Ok((below, above.collect::<anyhow::Result<_>>()?))
            }
            Self::Snapshot { stack, .. } => {
                let layers = ImageConfig::decode(&base.config)?.diff_ids;
                ensure!(
                    chain_ids(&layers).last() == Some(&stack.chain),
                    "the layers were written on another image ({}): name that one with --base",
                    stack.chain
                );
                let below = base.manifest.layers.iter();
                let below = below.map(|layer| Some(data_of(layer))).collect();
                let above = stack.blobs.iter().map(|file| NewLayer {
                    file: file.clone(),
                    digest: None,
                });
                Ok((below, above.collect()))
            }
        }
    }
}

/// How the registries are talked to.
struct Logins {
    target: RegistryConfig,
    base: Option<RegistryConfig>,
}

/// The files of the layers, and a directory for layers of the image below that are in another registry.
fn access(committed: &Committed, args: &PushArgs) -> BlockAccess {
    let mut access = BlockAccess {
        reads: committed.files(),
        asks: Asks::Registry,
        ..BlockAccess::default()
    };
    if !args.dry_run {
        access.writes.push(args.scratch.clone());
    }
    access
}

struct Push<'a> {
    args: &'a PushArgs,
    base: Option<&'a Reference>,
    logins: &'a Logins,
    bar: &'a progress::Bar,
}

impl Push<'_> {
    fn run(&self, committed: &Committed, watch: oci::Watch<'_>) -> anyhow::Result<StackPushed> {
        let base = self.base_image(committed, &mut *watch)?;
        let (below, above) = committed.split(&base)?;
        let image = StackedImage::new(&base, &below, &above)?;
        self.bar.set_length(image.new_bytes());
        let to = &self.args.to;
        let others = self.others(committed);
        let names: Vec<_> = others.iter().map(String::as_str).collect();
        let access = match self.args.dry_run {
            true => Access::Pull,
            false => Access::Push,
        };
        let repository = Repository::open_beside(to, access, &names, &self.logins.target)?;
        if self.args.dry_run {
            return Ok(image.look(&repository, watch)?);
        }
        let elsewhere = self.elsewhere()?;
        let scratch = format!("yolofs-push-{}", std::process::id());
        let from = LayersFrom {
            elsewhere: elsewhere
                .as_ref()
                .map(|elsewhere| (elsewhere, self.args.scratch.join(scratch))),
            repositories: others,
        };
        Ok(image.push(&repository, &Target::of(to), &from, watch)?)
    }

    fn base_image(
        &self,
        committed: &Committed,
        watch: oci::Watch<'_>,
    ) -> anyhow::Result<BaseImage> {
        if let Committed::Snapshot {
            base: Some(base), ..
        } = committed
        {
            return Ok(BaseImage {
                digest: base.digest,
                manifest: base.manifest.clone(),
                config: base.config.clone(),
            });
        }
        let base = self.base.zip(self.logins.base.as_ref());
        let (base, config) = base.context("the image below has no name")?;
        let looking = || format!("looking for the image below, {}", base.familiar());
        Ok(RegistryImage::find(base, config, watch)
            .with_context(looking)?
            .into())
    }

    /// Returns the repositories of the same registry that may have the layers of the image below.
    fn others(&self, committed: &Committed) -> Vec<String> {
        let to = &self.args.to;
        let mut others = Vec::new();
        let base = self.base.filter(|base| base.registry() == to.registry());
        others.extend(base.map(|base| base.repository().to_owned()));
        if let Committed::Snapshot {
            base: Some(base), ..
        } = committed
        {
            // containerd writes no ports down. Where there is no such repository, the registry says so.
            let host = |registry: &str| registry.split(':').next().map(str::to_owned);
            let names = base.repositories.iter().filter_map(|name| {
                let (registry, name) = name.split_once('/')?;
                (host(registry) == host(to.registry())).then(|| name.to_owned())
            });
            others.extend(names);
        }
        others.sort();
        others.dedup();
        others.retain(|name| name != to.repository());
        others
    }

    /// Returns the registry of the image below, if it is another one.
    fn elsewhere(&self) -> anyhow::Result<Option<Repository>> {
        let base = self.base.zip(self.logins.base.as_ref());
        let base = base.filter(|(base, _)| base.registry() != self.args.to.registry());
        let opened = base.map(|(base, config)| Repository::open(base, Access::Pull, config));
        Ok(opened.transpose()?)
    }
}

fn said(done: &StackPushed, args: &PushArgs) -> String {
    let count = |how| done.layers.iter().filter(|layer| layer.how == how).count();
    let mut said = format!(
        "{} is {}; layers: {} new",
        args.to.familiar(),
        done.manifest,
        done.new_layers
    );
    for (how, what) in [
        (Arrival::There, "there before"),
        (Arrival::Mounted, "from another repository"),
        (Arrival::Copied, "from another registry"),
        (Arrival::Pushed, "pushed"),
        (Arrival::Missing, "to be pushed, or taken from elsewhere"),
    ] {
        if let layers @ 1.. = count(how) {
            said += &format!(", {layers} {what}");
        }
    }
    if !args.dry_run {
        said += &format!("; {} sent", Size(done.bytes));
    }
    said + "\n"
}
