//! `yolofs block plan` and `yolofs block prewarm`: what starts of images read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use artifacts::plans::Contents;
use blockimages::plan::{PlanShelf, StartPlan};
use blockimages::{Background, BlobSource, DeviceConfig, Start, manage, open_contents};
use blocks::{DeviceAccess, Digest};
use bootstore::store::StoreSettings;
use clap::Subcommand;
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;
use oci::Reference;
use oci::registry::{Access, Repository};
use serde_json::json;

use super::{ImageArg, access, show};
use crate::exit::Outcome;
use crate::output::FormatArg;

/// What starts of images read: recorded by `yolofs block export --record`, and fetched first by each export of an
/// image with the same layers
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum PlanCommand {
    /// List the plans of the store
    Ls {
        #[command(flatten)]
        format: FormatArg,
    },
    /// Write what is known of an image as overlaybd's trace
    Export {
        /// overlaybd's config.v1.json, or the directory that has it
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
        /// The trace
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        format: FormatArg,
    },
    /// Put what is known of an image beside it into a registry, with the data that its start reads, where `yolofs block
    /// create` finds it
    Push(Box<PushArgs>),
}

#[derive(Clone, Debug, clap::Args)]
struct PushArgs {
    // Before the image, whose flags have a heading that those behind it would be under.
    /// The block image in a registry
    #[arg(value_name = "REF", index = 2)]
    to: Reference,
    /// Push only what is read, and not the data: a start then takes longer, since it comes from the layers
    #[arg(long)]
    no_data: bool,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    image: ImageArg,
}

pub(super) fn run(args: &PlanArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    match &args.command {
        PlanCommand::Ls { format } => list(store, *format),
        PlanCommand::Export {
            image,
            file,
            format,
        } => {
            let digests = digests_of(image)?;
            let plan = found(store, image, &digests)?;
            let trace = plan.trace_of(&digests);
            manage::write_trace(file, &trace)?;
            let (reads, name) = (trace.reads.len(), file.display());
            let done = json!({"trace": file, "reads": reads});
            show(*format, &done, format!("{name}: {reads} reads\n"))
        }
        PlanCommand::Push(args) => push(args, store),
    }
}

fn push(args: &PushArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let PushArgs { image, to, .. } = args;
    // Whoever knows a login is asked before.
    let config = image.registry.config(to)?;
    let prepared = image.prepare_beside_a_registry()?;
    access::push_plan(&prepared, store).confine()?;
    let path = image.path();
    let plan = found(store, path, &digests_of(path)?)?;
    let repository = Repository::open(to, Access::Push, &config)?;
    let blobs = prepared.blobs(Background::Nothing)?;
    let remote = blobs.as_ref().map(|(_, blobs)| blobs as &dyn BlobSource);
    let contents = match args.no_data {
        true => None,
        false => Some(open_contents(path, remote).context("opening the layers")?),
    };
    let content = contents.as_ref().map(|contents| {
        |digest| {
            let mut known = contents.iter();
            let found = known.find(|layer| layer.digest == digest);
            found.map(|layer| Arc::clone(&layer.content))
        }
    });
    let content = content.as_ref().map(|content| content as &Contents<'_>);
    let mut watch = |_| std::ops::ControlFlow::Continue(());
    let pushed = artifacts::plans::push(&plan, content, to, &repository, &mut watch);
    let pushed = pushed.with_context(|| format!("pushing the plan of {}", to.familiar()))?;
    let data = match pushed.data_bytes {
        Some(bytes) => format!(", with {} of data", Size(bytes)),
        None if args.no_data => String::new(),
        None => ", without data: no layer is here, or in a cache (--cache), and has its content in the image's manifest"
            .to_owned(),
    };
    let said = format!("{}: plan {}{data}\n", to.familiar(), pushed.artifact);
    show(args.format, &json!(pushed), said)
}

fn list(store: &StoreSettings, format: FormatArg) -> anyhow::Result<Outcome> {
    let plans = shelf(store).list()?;
    let mut said = String::new();
    let mut all = Vec::new();
    for kept in &plans {
        let (layers, bytes) = (&kept.layers, kept.bytes);
        let names: Vec<_> = layers.iter().map(Digest::short).collect();
        said += &format!("{} of layers {}\n", Size(bytes), names.join(" "));
        let recorded_at = kept.recorded_at;
        all.push(json!({
            "file": kept.path, "layers": layers, "bytes": bytes, "recorded_at": recorded_at,
        }));
    }
    show(format, &json!(all), said)
}

fn shelf(store: &StoreSettings) -> PlanShelf {
    devices::plans::shelf(&store.dir)
}

fn digests_of(image: &Path) -> anyhow::Result<Vec<Option<Digest>>> {
    Ok(DeviceConfig::read(image)?.0.digests())
}

fn found(
    store: &StoreSettings,
    image: &Path,
    digests: &[Option<Digest>],
) -> anyhow::Result<StartPlan> {
    let found = shelf(store).find(digests)?;
    found.with_context(|| {
        let image = image.display();
        format!("no start of {image} was recorded: yolofs block export {image} --record")
    })
}

/// Keeps what was traced of the start of an image, and returns the plan's file.
pub(crate) fn keep(
    store: &StoreSettings,
    image: &Path,
    trace: &blockimages::Trace,
) -> anyhow::Result<(PathBuf, StartPlan)> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let recorded_at = now.map_or(0, |now| now.as_secs());
    let plan = StartPlan::of_trace(trace, &digests_of(image)?, recorded_at);
    ensure!(
        !plan.is_empty(),
        "nothing was read of layers that have a digest in {}",
        image.display()
    );
    Ok((keep_plan(store, &plan)?, plan))
}

fn keep_plan(store: &StoreSettings, plan: &StartPlan) -> anyhow::Result<PathBuf> {
    store.make_block_plans()?;
    Ok(shelf(store).keep(plan)?)
}

/// Fetch what starts of an image read into a cache, for an export that comes later
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PrewarmArgs {
    #[command(flatten)]
    image: ImageArg,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn prewarm(args: &PrewarmArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    ensure!(
        args.image.cache.is_some(),
        "give a cache directory (--cache) to fetch to"
    );
    let prepared = args.image.prepare()?;
    access::prewarm(&prepared, store).confine()?;
    let interrupt = Interrupt::install()?;
    let image = args.image.path();
    let digests = digests_of(image)?;
    let plan = found(store, image, &digests)?.trace_of(&digests);
    let start = Start {
        plan: Some(plan),
        data: devices::plans::known_data(&store.dir, image),
        ..Start::default()
    };
    let opened = prepared.open(DeviceAccess::ReadOnly, Background::Plan, &start)?;
    let (cache, blobs) = opened.fetching().context("nothing is elsewhere")?;
    let bar = progress::bytes("fetching", 0);
    let mut watch = || {
        bar.set_position(cache.counts().fetched_bytes);
        interrupt.check().is_ok()
    };
    let complete = blobs.wait_for_plans(&mut watch);
    interrupt.check()?;
    let counts = cache.counts();
    let (requests, bytes) = (counts.requests, counts.fetched_bytes);
    ensure!(
        complete,
        "parts of the plan could not be fetched: see the warnings"
    );
    let said = format!("{}: {} fetched\n", image.display(), Size(bytes));
    show(
        args.format,
        &json!({"requests": requests, "bytes": bytes}),
        said,
    )
}
