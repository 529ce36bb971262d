//! `bootimg prewarm`: boot images into memory, before anybody boots.

mod on_tier;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use bootimg::{ImageId, Pass, PassedImage, Store, StoreError};
use oci::Reference;
use serde::Serialize;

use super::pull::fetch;
use super::registry::RegistryArgs;
use super::stacks;
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, duration, print};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::{StoreSettings, name_of, watch};
use containerd_service::snapshotter_service::status::warm_by_snapshotters;
use docker_service::served::warm_by_dockers;
use host::control::call;
use host::interrupt::Interrupt;
use host::progress;
use host::run_dir::{MountRecord, RunDir};
use host::size::Size;
use layers::server::WarmedLayer;
use node_api::client::{CallError, NodeClient};
use node_api::mount_daemon::{PrewarmSummary, Request, Response};
use node_api::mount_state::MountState;
use node_api::view::MountView;

/// How long a mount may take to push a boot image into its page cache: minutes on a machine that
/// is busy with everything else.
const MOUNT_DEADLINE: Duration = Duration::from_secs(600);

/// Load boot images into memory, and into the page cache of their mounts
///
/// All are loaded in one sequential pass over the disk and verified. With --all and --budget, those are chosen that
/// save most for what they add in memory to the ones chosen before. Then every mount that uses one pushes it into its
/// page cache. With --tier, each gets a copy on a tier instead (see yolofs tier): written, synced, read again and
/// compared.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PrewarmArgs {
    /// Names or ids of boot images, or references of container images: all of their layers
    #[arg(required_unless_present = "all", value_name = "IMAGE", add = image_names())]
    images: Vec<String>,
    /// Fetch the boot images of container images that the store does not know: see bootimg pull
    #[arg(long, conflicts_with = "all")]
    pull: bool,
    /// All boot images of the store
    #[arg(long, conflicts_with = "images")]
    all: bool,
    /// Put a copy on this tier, from which it is served from then on, instead of in memory
    #[arg(long, value_name = "NAME", conflicts_with = "budget")]
    tier: Option<String>,
    /// Load at most this much; boot images that do not fit are left out
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,
    #[command(flatten)]
    format: FormatArg,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// What happened to one boot image.
#[derive(Debug, Serialize)]
struct Warmed {
    name: String,
    /// Bytes of its data.
    bytes: u64,
    /// Bytes that were loaded and are what was recorded.
    loaded_bytes: u64,
    /// Of these, the ones that no boot image before it has.
    new_bytes: u64,
    /// Extents whose hash is wrong: reads of them go to the source.
    damaged: u64,
    /// Milliseconds it took to load all: they are read in one pass.
    took_ms: u64,
    /// Whether it did not fit the budget.
    over_budget: bool,
    mounts: Vec<WarmedMount>,
}

#[derive(Debug, Serialize)]
struct WarmedMount {
    mountpoint: PathBuf,
    #[serde(flatten)]
    summary: PrewarmSummary,
}

pub(super) fn run(
    args: &PrewarmArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    ensure!(
        args.pull || args.registry.are_default(),
        "flags of a registry are for boot images that are fetched: add --pull"
    );
    let tiers = args.tier.as_ref().map(|_| store.tiers()).transpose()?;
    let place = store;
    let store = place.open()?;
    let wanted = wanted(args, place, &store, interrupt)?;
    if let (Some(tiers), Some(tier)) = (&tiers, &args.tier) {
        let placed = on_tier::place(tiers, tier, &store, wanted, interrupt)?;
        print(args.format.format(), &placed, |placed| {
            on_tier::text(placed)
        })?;
        return Ok(Outcome::Done);
    }
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    // Demand first: mounts answer from their boot images meanwhile, with or without us.
    let (pass, took_ms) = load(&store, &wanted, args.budget, interrupt)?;
    let mut warmed = Vec::new();
    let mut elsewhere = BTreeSet::new();
    for ((id, name), passed) in wanted.into_iter().zip(&pass.images) {
        interrupt.check()?;
        let mut one = Warmed::of(name, passed, took_ms);
        if !one.over_budget {
            one.mounts = warm_mounts(&run_dir, &id)?;
        }
        if !one.mounts.is_empty() {
            elsewhere.insert(id);
        }
        warmed.push(one);
    }
    // The page caches of the mounts have it: once is enough.
    store.drop_passed(&pass, &elsewhere);
    let damaged = warmed.iter().any(|one| one.damaged > 0);
    print(args.format.format(), &warmed, |warmed| text(warmed))?;
    Ok(if damaged {
        Outcome::Different
    } else {
        Outcome::Done
    })
}

/// Returns the images to load, with what to call them: those that were named, in that order, or
/// all. With a budget, those come first that save most for what they add to the ones before them.
fn wanted(
    args: &PrewarmArgs,
    place: &StoreSettings,
    store: &Store,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(ImageId, String)>> {
    if args.all {
        let images = store.list().context("listing the store")?;
        let order: Vec<ImageId> = match args.budget {
            Some(budget) => {
                let order = store.best_first(&images, budget.0);
                order.context("choosing what the budget is spent for")?
            }
            None => images.iter().map(|image| image.info.id).collect(),
        };
        let named = images.iter().map(|image| (image.info.id, name_of(image)));
        let names: BTreeMap<ImageId, String> = named.collect();
        let named = |id: ImageId| Some((id, names.get(&id)?.clone()));
        return Ok(order.into_iter().filter_map(named).collect());
    }
    let mut wanted: Vec<(ImageId, String)> = Vec::new();
    for name in &args.images {
        for (id, name) in named(args, place, store, name, interrupt)? {
            if wanted.iter().all(|(known, _)| *known != id) {
                wanted.push((id, name));
            }
        }
    }
    Ok(wanted)
}

/// Returns the boot image of this name, or those of the layers of a container image.
fn named(
    args: &PrewarmArgs,
    place: &StoreSettings,
    store: &Store,
    name: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<(ImageId, String)>> {
    let unknown = match store.resolve(name) {
        Ok(id) => return with_copies(store, id, name),
        Err(error @ StoreError::NotFound { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    if let Some(stack) = stacks::find(store, name)? {
        return stacks::boot_images(store, &stack);
    }
    match name.parse::<Reference>() {
        Ok(reference) if args.pull => {
            fetch(&reference, &args.registry, place, interrupt)?;
            let stack = stacks::find(store, name)?;
            let stack = stack.with_context(|| format!("{name} was pulled, and is gone again"))?;
            stacks::boot_images(store, &stack)
        }
        Ok(_) => {
            bail!("{unknown}; --pull fetches those of a container image from its registry")
        }
        Err(_) => Err(unknown.into()),
    }
}

/// Returns a boot image and, if it is that of a layer, those that are bound to places where the layer is:
/// mounts are served from these.
fn with_copies(store: &Store, id: ImageId, name: &str) -> anyhow::Result<Vec<(ImageId, String)>> {
    let mut found = vec![(id, name.to_owned())];
    if name.parse::<Digest>().is_err() {
        return Ok(found);
    }
    for image in store.list().context("listing the store")? {
        let is_bound = |bound: &&String| bound.split_once('@').is_some_and(|(of, _)| of == name);
        if let Some(bound) = image.names.iter().find(is_bound)
            && image.info.id != id
        {
            found.push((image.info.id, bound.clone()));
        }
    }
    Ok(found)
}

impl Warmed {
    fn of(name: String, passed: &PassedImage, took_ms: u64) -> Self {
        let loaded = !passed.over_budget;
        Self {
            name,
            bytes: passed.bytes,
            loaded_bytes: if loaded { passed.bytes } else { 0 },
            new_bytes: if loaded { passed.new_bytes } else { 0 },
            damaged: passed.damaged,
            took_ms: if loaded { took_ms } else { 0 },
            over_budget: passed.over_budget,
            mounts: Vec::new(),
        }
    }
}

/// Loads all in one pass over the disk, and returns how many milliseconds that took.
fn load(
    store: &Store,
    wanted: &[(ImageId, String)],
    budget: Option<Size>,
    interrupt: &Interrupt,
) -> anyhow::Result<(Pass, u64)> {
    let doing = match wanted {
        [(_, name)] => format!("loading {name}"),
        many => format!("loading {} boot images", many.len()),
    };
    let ids: Vec<ImageId> = wanted.iter().map(|(id, _)| *id).collect();
    let bar = progress::bytes(&doing, budget.map_or(0, |size| size.0));
    let started = Instant::now();
    let budget = budget.map(|size| size.0);
    let loaded = store.load_all(&ids, budget, &mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    let pass = loaded.context(doing)?;
    log::info!(
        "{} read in one pass, and {} between them",
        Size(pass.bytes),
        Size(pass.gap_bytes)
    );
    Ok((pass, millis(started.elapsed())))
}

/// Has every living mount that uses the image push it into its page cache, whoever serves it: a daemon
/// of its own, the node, or the service of an engine.
fn warm_mounts(run_dir: &RunDir, id: &ImageId) -> anyhow::Result<Vec<WarmedMount>> {
    let mut warmed = warm_by_daemons(run_dir, id)?;
    warmed.extend(warm_by_node(run_dir, id));
    let mut layers = warm_by_dockers(run_dir, id, MOUNT_DEADLINE)?;
    layers.extend(warm_by_snapshotters(run_dir, id, MOUNT_DEADLINE)?);
    for WarmedLayer {
        mountpoint,
        warmed: by,
    } in layers
    {
        warmed.extend(counted(mountpoint, by));
    }
    Ok(warmed)
}

/// Returns what is to be told of a mount; a failure costs speed only.
fn counted<E: std::fmt::Display>(
    mountpoint: PathBuf,
    warmed: Result<PrewarmSummary, E>,
) -> Option<WarmedMount> {
    match warmed {
        Ok(summary) => Some(WarmedMount {
            mountpoint,
            summary,
        }),
        Err(why) => {
            log::warn!("{}: {why:#}", mountpoint.display());
            None
        }
    }
}

fn warm_by_node(run_dir: &RunDir, id: &ImageId) -> Vec<WarmedMount> {
    let node = NodeClient::of(run_dir);
    let mounts = match node.mounts() {
        Ok(mounts) => mounts,
        Err(CallError::Nobody(_)) => return Vec::new(),
        Err(error) => {
            log::warn!("cannot prewarm the mounts of the node: {error:#}");
            return Vec::new();
        }
    };
    let id = id.to_string();
    let uses = |mount: &MountView| {
        let boot = mount.status.boot.as_ref();
        mount.status.state == MountState::Serving && boot.is_some_and(|boot| boot.content == id)
    };
    let using = mounts.into_iter().filter(uses);
    using
        .filter_map(|mount| {
            let warmed = node.prewarm(&mount.status.id, None);
            counted(mount.status.mountpoint, warmed)
        })
        .collect()
}

fn warm_by_daemons(run_dir: &RunDir, id: &ImageId) -> anyhow::Result<Vec<WarmedMount>> {
    let mut warmed = Vec::new();
    let id = id.to_string();
    for record in run_dir.list()?.into_iter().filter(MountRecord::is_alive) {
        if record.boot_image.as_ref() != Some(&id) {
            continue;
        }
        let request = Request::Prewarm { budget: None };
        match call(&run_dir.socket(&record.id), &request, MOUNT_DEADLINE) {
            Ok(Response::Prewarmed(summary)) => {
                warmed.push(WarmedMount {
                    mountpoint: record.mountpoint,
                    summary,
                });
            }
            Ok(Response::Failed { why }) => log::warn!("{}: {why}", record.mountpoint.display()),
            Ok(other) => log::warn!("{}: unexpected {other:?}", record.mountpoint.display()),
            Err(error) => log::warn!("{}: {error:#}", record.mountpoint.display()),
        }
    }
    Ok(warmed)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn text(warmed: &[Warmed]) -> String {
    let mut text = String::new();
    for one in warmed {
        let (name, loaded) = (&one.name, Size(one.loaded_bytes));
        let time = duration(Duration::from_millis(one.took_ms));
        text.push_str(&if one.over_budget {
            format!("{name}: {} do not fit the budget\n", Size(one.bytes))
        } else {
            format!("{name}: {loaded} in memory and verified after {time}\n")
        });
        if one.damaged > 0 {
            let damaged = one.damaged;
            text.push_str(&format!(
                "{name}: {damaged} extents are damaged: record it again\n"
            ));
        }
        for mount in &one.mounts {
            let time = duration(Duration::from_millis(mount.summary.took_ms));
            let (at, bytes) = (
                mount.mountpoint.display(),
                Size(mount.summary.injected_bytes),
            );
            text.push_str(&format!("  {at}: {bytes} in its page cache after {time}\n"));
        }
    }
    text
}
