//! `yolofs status`.

use node_api::mount_daemon::ask_status;
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::by_node;
use crate::completions::mountpoints;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::run_dir_arg::RunDirArg;
use crate::start::Talk;
use crate::status_text::{LayerImages, layer_of, lines, text};
use bootstore::store::StoreSettings;
use containerd_service::snapshotter_service::status::{all as snapshotters, mount_label};
use docker_service::station::Station;
use host::mount_table::{MOUNT_KIND, labelled};
use host::mountpoint;
use host::run_dir::RunDir;
use node_api::status::MountStatus;
use oci::Reference;

/// Show how mounts do, a line for each, what is to be done first
///
/// With -v also hits, misses, bytes from the source, divergence from the recording, injected and
/// evicted pages, requests by kind.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Show these mounts only
    #[arg(value_name = "MOUNTPOINT", add = mountpoints())]
    mountpoints: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(
    args: &StatusArgs,
    talk: Talk,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let run_dir = RunDir::open(&run_dir.run_dir)?;
    let find = |named: &PathBuf| {
        mountpoint::resolve(named).with_context(|| format!("finding {}", named.display()))
    };
    let wanted: Vec<PathBuf> = args
        .mountpoints
        .iter()
        .map(find)
        .collect::<Result<_, _>>()?;
    let mut mounts = all_mounts(&run_dir)?;
    for path in &wanted {
        if !mounts.iter().any(|mount| mount.mountpoint == *path) {
            bail!(
                "{} is not a mount that {} describes",
                path.display(),
                run_dir.path().display()
            );
        }
    }
    mounts.retain(|mount| wanted.is_empty() || wanted.contains(&mount.mountpoint));
    print(args.format.format(), &mounts, |mounts| {
        if talk.is_verbose() {
            text(mounts)
        } else {
            let images = images_of_layers(mounts, store).unwrap_or_default();
            let told = lines(mounts, &images);
            let more = wanted.is_empty().then(|| elsewhere(mounts, &run_dir));
            told.trim_end().to_owned() + &more.and_then(Result::ok).unwrap_or_default()
        }
    })?;
    Ok(Outcome::Done)
}

/// Returns the container images that the mounted layers are of, as the store knows them.
fn images_of_layers(mounts: &[MountStatus], store: &StoreSettings) -> anyhow::Result<LayerImages> {
    let boots = mounts.iter().filter_map(|mount| mount.boot.as_ref());
    let mut of_layers = LayerImages::new();
    if boots
        .filter_map(|boot| layer_of(&boot.image))
        .next()
        .is_none()
    {
        return Ok(of_layers);
    }
    let Some(store) = store.open_existing()? else {
        return Ok(of_layers);
    };
    for stack in store.stacks()? {
        let name = stack.reference.parse::<Reference>();
        let name = name.map_or(stack.reference, |reference| reference.familiar());
        for layer in stack.layers {
            of_layers.entry(layer).or_default().push(name.clone());
        }
    }
    Ok(of_layers)
}

/// Names the commands that show the layers which a daemon serves by itself, without the node: they have no status here.
fn elsewhere(mounts: &[MountStatus], run_dir: &RunDir) -> anyhow::Result<String> {
    let count = |label: &str| -> anyhow::Result<usize> {
        let places = labelled(MOUNT_KIND, label)?.into_iter();
        let is_listed = |place: &PathBuf| mounts.iter().any(|mount| mount.mountpoint == *place);
        Ok(places.filter(|place| !is_listed(place)).count())
    };
    let mut text = String::new();
    let mut tell = |layers: usize, of: &str, command: &str| {
        if layers > 0 {
            text += &format!("\n{layers} layers of {of}: {command}");
        }
    };
    for station in Station::all(run_dir)? {
        let layers = count(&station.label())?;
        tell(layers, "Docker's images", "yolofs docker status");
    }
    for snapshotter in snapshotters(run_dir)? {
        let layers = count(&mount_label(&snapshotter.root))?;
        tell(layers, "containerd's images", "yolofs snapshotter status");
    }
    Ok(text)
}

/// Asks all mounts, those of the node included, how they do.
///
/// # Errors
/// If the run directory cannot be read, or the node does not answer.
pub(super) fn all_mounts(run_dir: &RunDir) -> anyhow::Result<Vec<MountStatus>> {
    let records = run_dir.list()?;
    let standalone = records.iter().map(|record| ask_status(run_dir, record));
    let mut mounts: Vec<MountStatus> = standalone.collect();
    mounts.extend(by_node::mounts(run_dir)?);
    mounts.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    Ok(mounts)
}
