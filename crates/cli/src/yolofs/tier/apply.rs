//! `yolofs tier apply`.

use serde::Serialize;
use tiering::Rate;

use super::plan::{PlannedMove, planned};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::StoreSettings;
use bootstore::tiers::carry::{Carried, Todo, carry_out, forget_lost};
use bootstore::tiers::mover::PATIENCE;
use bootstore::tiers::pace::Paced;
use host::interrupt::{Interrupt, Interrupted};
use host::progress;
use host::size::Size;

/// Move what `yolofs tier plan` shows
///
/// Each copy is written, synced, read again and compared before it counts, and others are removed
/// after that: stopping it, in whatever way, leaves every boot image readable. It waits for other
/// I/O where the disk's scheduler lets it. The code is 4 if a move could not be made.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ApplyArgs {
    /// Most bytes a second
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    #[command(flatten)]
    format: FormatArg,
}

/// What became of a move.
#[derive(Debug, Serialize)]
struct Applied {
    #[serde(flatten)]
    planned: PlannedMove,
    /// `done`, `already`, `open` or `failed`.
    state: &'static str,
    /// Bytes that were written.
    written_bytes: u64,
    /// How often it waited for others who read the disk.
    gave_way: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

pub(super) fn run(args: &ApplyArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    if let Err(error) = rawio::idle::idle_io() {
        log::debug!("I/O is as urgent as any: {error}");
    }
    let tiers = store.tiers()?;
    let store = store.open_present()?;
    let todo = Todo::now(&tiers, &store)?;
    let bytes: u64 = todo.plan.steps.iter().map(|step| step.bytes).sum();
    let rate = args.rate.and_then(|rate| Rate::per_second(rate.0));
    // A boot image is read to be verified, and then written.
    let bar = progress::bytes("moving", bytes.saturating_mul(2));
    let pace = Paced::new(rate, &interrupt, bar.clone());
    let mut applied = Vec::new();
    for step in &todo.plan.steps {
        let Some(candidate) = todo.candidate(step) else {
            continue;
        };
        pace.read_from(candidate.source_path(&store));
        let before = pace.gave_way();
        let carried = carry_out(step, candidate, &tiers, &store, &pace, PATIENCE);
        if let Err(error) = &carried
            && error.is::<Interrupted>()
        {
            bar.finish_and_clear();
            return Err(Interrupted.into());
        }
        applied.push(Applied {
            gave_way: pace.gave_way() - before,
            ..Applied::of(planned(step, &todo, &tiers), &carried)
        });
    }
    bar.finish_and_clear();
    forget_lost(&tiers, &store)?;
    let failed = applied.iter().any(|one| one.state == "failed");
    print(args.format.format(), &applied, |applied| text(applied))?;
    Ok(if failed {
        Outcome::Different
    } else {
        Outcome::Done
    })
}

impl Applied {
    fn of(planned: PlannedMove, carried: &anyhow::Result<Carried>) -> Self {
        let (state, written_bytes, why) = match carried {
            Ok(Carried::Done(bytes)) => ("done", *bytes, None),
            Ok(Carried::Already) => ("already", 0, None),
            Ok(Carried::Open) => ("open", 0, None),
            Err(error) => ("failed", 0, Some(format!("{error:#}"))),
        };
        Self {
            planned,
            state,
            written_bytes,
            gave_way: 0,
            why,
        }
    }
}

fn text(applied: &[Applied]) -> String {
    if applied.is_empty() {
        return "nothing is to move".to_owned();
    }
    let line = |one: &Applied| {
        let PlannedMove {
            what, name, tier, ..
        } = &one.planned;
        match (&one.why, one.state) {
            (Some(why), _) => format!("{what} {name}: {why}\n"),
            (None, "open") => format!("{what} {name}: open on {tier}, it stays\n"),
            (None, "already") => format!("{what} {name}: {tier} was so already\n"),
            (None, _) => format!(
                "{what} {name}: done on {tier}, {} written\n",
                Size(one.written_bytes)
            ),
        }
    };
    applied.iter().map(line).collect()
}
