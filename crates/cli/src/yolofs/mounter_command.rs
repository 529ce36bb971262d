//! `yolofs mounter`: the helper of one mount.

use std::path::PathBuf;

use crate::exit::Outcome;

/// Mount and unmount for a daemon, and end the requests of its mount when it is killed
///
/// Standard input is the socket to the daemon; standard output is its first thread, as a
/// descriptor. Started by `yolofs mount`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MounterArgs {
    /// The only place where
    mountpoint: PathBuf,
}

pub(super) fn run(args: &MounterArgs) -> anyhow::Result<Outcome> {
    mounting::mounter::run(&args.mountpoint)?;
    Ok(Outcome::Done)
}
