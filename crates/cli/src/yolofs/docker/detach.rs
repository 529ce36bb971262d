//! `yolofs docker detach` and `yolofs docker clear`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::super::by_node;
use super::attach::{CHANGE_OVER, ImagesArgs};
use super::engine_args::EngineArgs;
use super::status::ask_or_look;
use crate::exit::Outcome;
use crate::output::{FormatArg, print, write_out};
use docker_service::engine::DockerPlace;
use docker_service::station::{LOOK_EVERY, Station};
use docker_service::talk::{Request, Response};
use docker_service::wanted::{Chosen, Wanted};
use host::control::call;
use host::run_dir::RunDir;
use node_api::control::WhenInUse;

/// How long the daemon may take: it may be attaching for somebody else.
const DEADLINE: Duration = Duration::from_secs(600);

/// Stop serving images: Docker uses its plain directories again
///
/// Running containers that use a layer keep it until they end. What a daemon that died left
/// behind is cleared.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DetachArgs {
    #[command(flatten)]
    images: ImagesArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// Clear what daemons that died left behind
///
/// Mounts that are served are left alone. Asks neither Docker nor a daemon anything.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ClearArgs {
    /// Only say what would be cleared
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(
    args: &DetachArgs,
    engine: &EngineArgs,
    run_dir: &RunDir,
) -> anyhow::Result<Outcome> {
    let place = engine.engine().place()?;
    let station = Station::of(run_dir, &place.data_root);
    if !place.is_served_by_snapshotter() {
        detach(&args.images.chosen(engine)?, &station, &place)?;
    }
    let status = ask_or_look(&station, &place)?;
    print(args.format.format(), &status, super::status::text)?;
    Ok(Outcome::Done)
}

/// Asks the daemon, or notes what is no longer wanted in its stead if there is none.
fn detach(chosen: &Chosen, station: &Station, place: &DockerPlace) -> anyhow::Result<()> {
    let ask = Request::Detach(chosen.clone());
    let deadline = Instant::now() + CHANGE_OVER;
    loop {
        match call(&station.socket(), &ask, DEADLINE) {
            Ok(Response::Status(_)) => return Ok(()),
            Ok(Response::Failed(why)) => bail!("{why}"),
            Ok(Response::Leaving | Response::Warmed(_)) | Err(_) => {}
        }
        // What is wanted is written by whoever has the duty, and by nobody else: a daemon on its
        // way in or out would write over it.
        if let Some(duty) = station.take_duty()? {
            let mut wanted = Wanted::load(&station.wanted())?;
            wanted.remove(chosen);
            wanted.save(&station.wanted())?;
            let _cleared = station.clear_dead(&duty).context("clearing dead mounts")?;
            return detach_from_node(&wanted, station, place);
        }
        if Instant::now() >= deadline {
            bail!("the daemon that serves the layers neither answers nor ends");
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Has the node let go of what no image needs that is still wanted, and containerd of what was held.
fn detach_from_node(wanted: &Wanted, station: &Station, place: &DockerPlace) -> anyhow::Result<()> {
    let mounts = station.mounts()?;
    if mounts.is_empty() && place.store.is_none() {
        return Ok(());
    }
    let root = place.images(station)?;
    let images = match root.images() {
        // The engine may be away; of nothing, nothing is needed.
        Err(error) if wanted.is_nothing() => {
            log::warn!("{error:#}; its layers are held until the next attach or detach");
            Vec::new()
        }
        images => images?,
    };
    let images = images.into_iter().filter(|image| wanted.has(&image.id));
    let needed: BTreeSet<PathBuf> = images
        .flat_map(|image| image.layers)
        .map(|layer| layer.dir)
        .collect();
    for mountpoint in mounts.iter().filter(|place| !needed.contains(*place)) {
        by_node::unmount(station.run_dir(), mountpoint, WhenInUse::Detach)
            .with_context(|| format!("detaching {}", mountpoint.display()))?;
    }
    match root.release_all_but(&needed) {
        Err(error) if wanted.is_nothing() => {
            log::debug!("{error:#}");
            Ok(())
        }
        released => released,
    }
}

pub(super) fn clear(args: &ClearArgs, run_dir: &RunDir) -> anyhow::Result<Outcome> {
    let mut cleared = String::new();
    for station in Station::all(run_dir)? {
        for mountpoint in &station.dead()? {
            cleared.push_str(&format!("{}\n", mountpoint.display()));
        }
        if let (false, Some(duty)) = (args.dry_run, station.take_duty()?) {
            let _cleared = station.clear_dead(&duty)?;
        }
    }
    write_out(cleared.as_bytes())?;
    Ok(Outcome::Done)
}
