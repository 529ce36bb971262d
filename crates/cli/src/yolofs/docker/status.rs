//! `yolofs docker status`.

use std::time::Duration;

use anyhow::bail;

use super::engine_args::EngineArgs;
use crate::exit::Outcome;
use crate::layers_text::layers_text;
use crate::output::{FormatArg, count, print, table};
use docker_service::engine::DockerPlace;
use docker_service::station::Station;
use docker_service::talk::{BY_SNAPSHOTTER, DockerStatus, ImageStatus, Request, Response};
use docker_service::wanted::Wanted;
use host::control::call;
use host::run_dir::RunDir;
use layers::server::ServedBy;

/// A daemon that attaches many layers answers when it has.
const DEADLINE: Duration = Duration::from_secs(60);

/// Show which images and layers are served, and their counters
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(
    args: &StatusArgs,
    engine: &EngineArgs,
    run_dir: &RunDir,
) -> anyhow::Result<Outcome> {
    let place = engine.engine().place()?;
    let station = Station::of(run_dir, &place.data_root);
    let status = ask_or_look(&station, &place)?;
    print(args.format.format(), &status, text)?;
    Ok(Outcome::Done)
}

/// Asks the daemon, or looks at what there is to see without one.
///
/// # Errors
/// If neither is possible.
pub(super) fn ask_or_look(station: &Station, place: &DockerPlace) -> anyhow::Result<DockerStatus> {
    let data_root = &place.data_root;
    if place.is_served_by_snapshotter() {
        return Ok(DockerStatus::of_snapshotter(data_root));
    }
    match call(&station.socket(), &Request::Status, DEADLINE) {
        Ok(Response::Status(status)) => return Ok(*status),
        Ok(Response::Failed(why)) => bail!("{why}"),
        Ok(Response::Leaving | Response::Warmed(_)) => {}
        Err(error) => log::debug!("{error:#}"),
    }
    let wanted = Wanted::load(&station.wanted())?;
    Ok(DockerStatus::of_nobody(
        data_root,
        wanted,
        station.dead()?.len(),
    ))
}

/// Writes a status for people.
pub(super) fn text(status: &DockerStatus) -> String {
    let pid = status.pid.map(|pid| format!(", pid {pid}"));
    let by_node = match status.served_by {
        ServedBy::Service => "",
        ServedBy::Node => ", its layers by the node",
    };
    let mut text = format!(
        "{}: {}{}{by_node}\n",
        status.data_root.display(),
        status.state,
        pid.unwrap_or_default()
    );
    if status.state == BY_SNAPSHOTTER {
        text.push_str("Nothing is to be attached; yolofs snapshotter status lists the layers.\n");
    }
    if status.dead_mounts > 0 {
        text.push_str(&format!(
            "{} answer nothing: yolofs docker clear\n",
            count(status.dead_mounts as u64, "dead mount")
        ));
    }
    if !status.images.is_empty() {
        text.push_str(&images_text(&status.images));
    }
    if !status.layers.is_empty() {
        text.push_str(&layers_text(&status.layers));
    }
    for problem in &status.problems {
        text.push_str(&format!("{problem}; trying again\n"));
    }
    text
}

fn images_text(images: &[ImageStatus]) -> String {
    let head = ["IMAGE", "ID", "ATTACHED", "LAYERS SERVED"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for image in images {
        let attached = if image.wanted { "yes" } else { "no" };
        rows.push(vec![
            image.reference.clone().unwrap_or_else(|| "-".to_owned()),
            image.image.short(),
            attached.to_owned(),
            format!(
                "{} of {} known, {} in all",
                image.served_layers, image.known_layers, image.layers
            ),
        ]);
    }
    table(&rows)
}
