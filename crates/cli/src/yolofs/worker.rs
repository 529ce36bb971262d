//! `yolofs worker`: a process that serves mounts of the node.

use std::path::Path;

use confine::Identity;
use nix::unistd::{Gid, Uid};

use crate::exit::Outcome;
use node_service::worker::{WorkerKind, WorkerSettings};

/// Serve mounts of the node
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct WorkerArgs {
    /// Become this user, with this group, before anything is served
    #[arg(long, value_name = "UID:GID", value_parser = identity)]
    user: Option<Identity>,
    /// Serve one mount that asks a block service
    #[arg(long, conflicts_with_all = ["user", "images"])]
    network: bool,
    /// Serve block images
    #[arg(long)]
    images: bool,
}

pub(super) fn run(args: WorkerArgs, run_dir: &Path) -> anyhow::Result<Outcome> {
    let WorkerArgs {
        user,
        network,
        images,
    } = args;
    let kind = match (network, images) {
        (true, _) => WorkerKind::Network,
        (false, true) => WorkerKind::Images,
        (false, false) => WorkerKind::Disks,
    };
    node_service::worker::run(WorkerSettings { user, kind }, run_dir)?;
    Ok(Outcome::Done)
}

/// Reads `UID:GID`.
fn identity(text: &str) -> Result<Identity, String> {
    let numbers = text.split_once(':').and_then(|(uid, gid)| {
        let uid = Uid::from_raw(uid.parse().ok()?);
        let gid = Gid::from_raw(gid.parse().ok()?);
        Some(Identity { uid, gid })
    });
    numbers.ok_or_else(|| "a user's number, a colon and a group's number are expected".to_owned())
}
