//! `nicfetch serve-blocks`: serves blocks until it is asked to end.

use anyhow::{Context as _, bail};
use tokio::sync::watch;

use super::blocks::BlocksArgs;
use super::place::PlaceArgs;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;

/// Serve blocks of imported sources to mounts of yolofs
///
/// Says on standard output where it listens, and serves until it is interrupted.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServeBlocksArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    blocks: BlocksArgs,
}

pub(super) fn run(args: &ServeBlocksArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let (store, catalog) = args.place.open()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let blocks = runtime.block_on(args.blocks.listen(store, catalog))?;
    let Some(blocks) = blocks else {
        bail!("there is nothing to serve: say --blocks ADDR");
    };
    println!("blocks at {}", blocks.address()?);
    let (stop, stopped) = watch::channel(false);
    let serving = runtime.spawn(blocks.serve(stopped));
    interrupt.wait();
    // Nobody listens any more if the service died.
    let _told = stop.send(true);
    runtime.block_on(serving).context("serving blocks")?;
    Ok(Outcome::Done)
}
