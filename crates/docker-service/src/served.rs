//! The layers that the daemons for all Dockers of this machine serve, for queries.

use std::time::Duration;

use bootimg::ImageId;

use super::station::Station;
use super::talk::{Request, Response};
use host::control::{call, nobody_listens};
use host::run_dir::RunDir;
use layers::server::WarmedLayer;
use layers::status::LayerStatus;

/// Who only looks does not wait until everything is attached.
const DEADLINE: Duration = Duration::from_secs(10);

/// Has the daemons for all Dockers bring a boot image into the page cache of the layers that they serve
/// from it themselves.
///
/// # Errors
/// If the run directory cannot be read.
pub fn warm_by_dockers(
    run_dir: &RunDir,
    image: &ImageId,
    deadline: Duration,
) -> anyhow::Result<Vec<WarmedLayer>> {
    let ask = Request::Prewarm(image.to_string());
    let mut warmed = Vec::new();
    for station in Station::all(run_dir)? {
        match call(&station.socket(), &ask, deadline) {
            Ok(Response::Warmed(layers)) => warmed.extend(layers),
            Ok(Response::Failed(why)) => log::warn!("{}: {why}", station.label()),
            Ok(Response::Leaving | Response::Status(_)) => {}
            Err(error) if nobody_listens(&error) => log::debug!("{error:#}"),
            Err(error) => log::warn!("{}: {error:#}", station.label()),
        }
    }
    Ok(warmed)
}

/// Returns the layers that are served now. A daemon that does not respond serves none: it may
/// have ended long ago.
///
/// # Errors
/// If the run directory cannot be read.
pub fn served_layers(run_dir: &RunDir) -> anyhow::Result<Vec<LayerStatus>> {
    let mut layers = Vec::new();
    for station in Station::all(run_dir)? {
        match call(&station.socket(), &Request::Status, DEADLINE) {
            Ok(Response::Status(status)) => layers.extend(status.layers),
            Ok(Response::Failed(why)) => log::warn!("{}: {why}", station.label()),
            Ok(Response::Leaving | Response::Warmed(_)) => {}
            Err(error) => log::debug!("{error:#}"),
        }
    }
    Ok(layers)
}
