//! What the daemons for all Dockers of this node serve, for those who only want to see it.

use std::time::Duration;

use super::station::Station;
use super::talk::{Ask, Told};
use crate::control::call;
use crate::layers::LayerStatus;
use crate::run_dir::RunDir;

/// Who only looks does not wait until everything is attached.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the layers that are served now. A daemon that does not answer serves none: it may
/// have ended long ago.
///
/// # Errors
/// If the run directory cannot be read.
pub(crate) fn served_layers(run_dir: &RunDir) -> anyhow::Result<Vec<LayerStatus>> {
    let mut layers = Vec::new();
    for station in Station::all(run_dir)? {
        match call(&station.socket(), &Ask::Status, DEADLINE) {
            Ok(Told::Status(status)) => layers.extend(status.layers),
            Ok(Told::Failed(why)) => log::warn!("{}: {why}", station.label()),
            Ok(Told::Leaving) => {}
            Err(error) => log::debug!("{error:#}"),
        }
    }
    Ok(layers)
}
