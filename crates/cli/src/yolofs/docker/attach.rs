//! `yolofs docker attach`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::engine_args::EngineArgs;
use super::status::{ask_or_look, text};
use crate::exit::Outcome;
use crate::output::{FormatArg, count, print};
use bootstore::store::StoreSettings;
use docker_service::engine::DockerPlace;
use docker_service::start::start_daemon;
use docker_service::station::{LOOK_EVERY, Station};
use docker_service::talk::{DockerStatus, Request, Response};
use docker_service::wanted::Chosen;
use host::control::call;
use host::run_dir::RunDir;

/// How long the daemon may take to attach: binding reads what each layer's boot needs once, from
/// a disk that may be busy.
const DEADLINE: Duration = Duration::from_secs(600);
/// How long a daemon may be on its way in or out.
pub(super) const CHANGE_OVER: Duration = Duration::from_secs(30);

/// Which images a command is about.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct ImagesArgs {
    /// Images, by name or ID
    #[arg(value_name = "IMAGE")]
    images: Vec<String>,
    /// All images
    #[arg(long)]
    all: bool,
}

impl ImagesArgs {
    /// Returns what was chosen, by image ID.
    ///
    /// # Errors
    /// If Docker does not answer, or has no such image.
    pub(super) fn chosen(&self, engine: &EngineArgs) -> anyhow::Result<Chosen> {
        if self.all {
            return Ok(Chosen::All);
        }
        let ids = self.images.iter().map(|name| engine.engine().image(name));
        Ok(Chosen::Images(ids.collect::<anyhow::Result<_>>()?))
    }
}

/// Serve the layers of images from their boot images, in place
///
/// Containers that are started from now on use them. With --all, images that are pulled or
/// recorded later are attached too. Images stay attached until they are detached.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct AttachArgs {
    #[command(flatten)]
    images: ImagesArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(
    args: &AttachArgs,
    engine: &EngineArgs,
    store: &StoreSettings,
    run_dir: &RunDir,
) -> anyhow::Result<Outcome> {
    let place = engine.engine().place()?;
    let station = Station::of(run_dir, &place.data_root);
    if place.is_served_by_snapshotter() {
        print(args.format.format(), &ask_or_look(&station, &place)?, text)?;
        return Ok(Outcome::Done);
    }
    let chosen = args.images.chosen(engine)?;
    let ask = Request::Attach(chosen.clone());
    let status = ask_someone(&ask, &station, store, run_dir, &place)?;
    if let Chosen::Images(images) = &chosen {
        refuse_unknown(&status, images, &args.images.images)?;
    }
    print(args.format.format(), &status, text)?;
    match status.problems.first() {
        None => Ok(Outcome::Done),
        Some(first) => bail!(
            "{} could not be attached, and will be retried: {first}",
            count(status.problems.len() as u64, "layer")
        ),
    }
}

/// Fails if nothing is known of an image, so that attaching it speeds nothing up.
fn refuse_unknown(
    status: &DockerStatus,
    images: &BTreeSet<blocks::Digest>,
    names: &[String],
) -> anyhow::Result<()> {
    let asked = status.images.iter().filter(|i| images.contains(&i.image));
    let unknown = asked.filter(|image| image.known_layers == 0).count();
    let what = match (unknown, names) {
        (0, _) => return Ok(()),
        (_, [name]) => format!("{name} has no boot image yet"),
        _ => format!("{unknown} of {} have no boot image yet", names.join(", ")),
    };
    bail!(
        "{what}: record one (bootimg record docker://IMAGE) or pull one (bootimg pull IMAGE); it is attached as soon as there \
         is one"
    )
}

/// Asks the daemon, and starts it if there is none.
fn ask_someone(
    ask: &Request,
    station: &Station,
    store: &StoreSettings,
    run_dir: &RunDir,
    place: &DockerPlace,
) -> anyhow::Result<DockerStatus> {
    let deadline = Instant::now() + CHANGE_OVER;
    loop {
        match call(&station.socket(), ask, DEADLINE) {
            Ok(Response::Status(status)) => return Ok(*status),
            Ok(Response::Failed(why)) => bail!("{why}"),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Ok(Response::Leaving | Response::Warmed(_)) if Instant::now() >= deadline => {
                bail!("the former daemon does not end")
            }
            // Nobody is there, or not for long.
            Ok(Response::Leaving | Response::Warmed(_)) | Err(_) => {}
        }
        let lock = run_dir.lock()?;
        // Whoever has the duty is on the way in, or out.
        let is_free = station.take_duty()?.is_some();
        if is_free {
            start_daemon(station, store, run_dir, place)?;
        }
        drop(lock);
        if !is_free {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
