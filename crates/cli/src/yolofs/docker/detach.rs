//! `yolofs docker detach` and `yolofs docker clear`.

use std::time::Duration;

use anyhow::{Context as _, bail};

use super::attach::ImagesArgs;
use super::engine::EngineArgs;
use super::station::Station;
use super::status::ask_or_look;
use super::talk::{Ask, Told};
use super::wanted::Wanted;
use crate::control::call;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::run_dir::RunDir;

/// How long the daemon may take: it may be attaching for somebody else.
const DEADLINE: Duration = Duration::from_secs(600);

/// Serve images from Docker's plain directories again
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
    let data_root = engine.data_root()?;
    let chosen = args.images.chosen(engine)?;
    let station = Station::of(run_dir, &data_root);
    let ask = Ask::Detach(chosen.clone());
    match call(&station.socket(), &ask, DEADLINE) {
        Ok(Told::Status(_)) => {}
        Ok(Told::Failed(why)) => bail!("{why}"),
        // It detaches everything by itself, but what it was told stays noted.
        Ok(Told::Leaving) | Err(_) => {
            let _turn = run_dir.take_turn()?;
            let mut wanted = Wanted::load(&station.wanted())?;
            wanted.remove(&chosen);
            wanted.save(&station.wanted())?;
            station.clear_dead().context("clearing dead mounts")?;
        }
    }
    let status = ask_or_look(&station, &data_root)?;
    print(args.format.format(), &status, super::status::text)?;
    Ok(Outcome::Done)
}

pub(super) fn clear(args: &ClearArgs, run_dir: &RunDir) -> anyhow::Result<Outcome> {
    for station in Station::all(run_dir)? {
        let dead = station.dead()?;
        for mountpoint in &dead {
            println!("{}", mountpoint.display());
        }
        if !args.dry_run {
            station.clear_dead()?;
        }
    }
    Ok(Outcome::Done)
}
