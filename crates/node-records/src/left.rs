//! Queries of the node's records by other processes: which mounts are the node's, whether it runs or not.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use yolofs::{MountTable, Visible};

use super::instance::instances_in;
use crate::dead::is_dead;
use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};

/// Returns the mount points of the node that are served, or will be when it runs again: only the
/// node may unmount these. Without a node the mounts are probed, all at once.
///
/// # Errors
/// If the records or the list of mounts cannot be read.
pub fn living_mounts(run_dir: &RunDir) -> anyhow::Result<BTreeSet<PathBuf>> {
    let records = instances_in(run_dir.path())?.records;
    let table = MountTable::read().context("reading the list of mounts")?;
    let mounts = records.into_iter().map(|(_, instance)| {
        let place = instance.spec.mountpoint;
        Visible::resume(place, instance.mount.into())
    });
    let mut places: Vec<PathBuf> = mounts
        .filter(|mount| mount.is_listed(&table))
        .map(|mount| mount.target().to_owned())
        .collect();
    let is_alone = || {
        let node = NodeClient::of(run_dir).node();
        matches!(node, Err(CallError::Nobody(_)))
    };
    if !places.is_empty() && is_alone() {
        places = std::thread::scope(|scope| {
            let asked: Vec<_> = places
                .into_iter()
                .map(|place| scope.spawn(move || (!is_dead(&place)).then_some(place)))
                .collect();
            // A panic is no death.
            let answers = asked.into_iter().filter_map(|asked| asked.join().ok());
            answers.flatten().collect()
        });
    }
    Ok(places.into_iter().collect())
}
