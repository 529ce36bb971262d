//! `yolofs block plan` and `yolofs block prewarm`: what starts of images read.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blockimages::plan::{PlanShelf, StartPlan};
use blockimages::{Background, DeviceConfig, Start, manage};
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
use crate::bootimg::registry::RegistryArgs;
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
    /// Put what is known of an image beside it into a registry, where `yolofs block create` finds it
    Push {
        /// overlaybd's config.v1.json, or the directory that has it
        #[arg(value_name = "IMAGE")]
        image: PathBuf,
        /// The block image in a registry
        #[arg(value_name = "REF")]
        to: Reference,
        #[command(flatten)]
        registry: RegistryArgs,
        #[command(flatten)]
        format: FormatArg,
    },
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
        PlanCommand::Push {
            image,
            to,
            registry,
            format,
        } => {
            // Whoever knows a login is asked before.
            let config = registry.config(to)?;
            access::push_plan(image, store).confine()?;
            let plan = found(store, image, &digests_of(image)?)?;
            let repository = Repository::open(to, Access::Push, &config)?;
            let mut watch = |_| std::ops::ControlFlow::Continue(());
            let pushed = artifacts::plans::push(&plan, to, &repository, &mut watch);
            let pushed =
                pushed.with_context(|| format!("pushing the plan of {}", to.familiar()))?;
            let said = format!("{}: plan {}\n", to.familiar(), pushed.artifact);
            show(*format, &json!(pushed), said)
        }
    }
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

/// Keeps a plan that comes from elsewhere.
pub(super) fn keep_newer(store: &StoreSettings, plan: &StartPlan) -> anyhow::Result<PathBuf> {
    store.make_block_plans()?;
    Ok(shelf(store).keep_newer(plan)?)
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
