//! Carrying out a plan, one move after the other.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use bootimg::Store;
use tiering::objects::Copied;
use tiering::pace::Pace;

use super::Tiers;
use super::mover::{Dropped, Mover};
use super::plan::{Candidate, Change, Step, decide, gather};
use super::whole::WholeFile;

/// What became of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// This many bytes were written; 0 when a copy is removed.
    Done(u64),
    /// Nothing had to be done.
    Already,
    /// The copy is open: it stays.
    Open,
}

/// Does one move. The lock to move objects is held for that long only, so that other processes, which
/// may wait for it no longer than `patience`, can take it between two moves.
///
/// # Errors
/// If it cannot be done; nothing has changed then.
pub fn carry_out(
    step: &Step,
    candidate: &Candidate,
    tiers: &Tiers,
    store: &Store,
    pace: &dyn Pace,
    patience: Duration,
) -> anyhow::Result<Carried> {
    let tier = &tiers.specs()[step.place].name;
    let mover = Mover::open(tiers, patience)?;
    match step.change {
        Change::Promote => {
            let brought = match (candidate.image, &candidate.file) {
                (Some(id), _) => mover.bring(store, &id, step.place, pace),
                (None, Some(file)) => mover.bring_file(file, step.place, pace),
                // Nobody plans that.
                (None, None) => return Ok(Carried::Already),
            };
            let brought =
                brought.with_context(|| format!("bringing {} to tier {tier}", candidate.label))?;
            Ok(match brought {
                Copied::Bytes(bytes) => Carried::Done(bytes),
                Copied::There => Carried::Already,
            })
        }
        Change::Demote => {
            let Some(object) = candidate.object else {
                return Ok(Carried::Already);
            };
            let dropped = mover.drop_from(object, step.place);
            let dropped =
                dropped.with_context(|| format!("taking {} from tier {tier}", candidate.label))?;
            if dropped == Dropped::Gone && mover.places_of(object).is_empty() {
                tiers.forget_copies(object)?;
            }
            Ok(match dropped {
                Dropped::Gone => Carried::Done(0),
                Dropped::Open => Carried::Open,
                Dropped::None => Carried::Already,
            })
        }
    }
}

/// A plan, and its inputs.
#[derive(Debug)]
pub struct Todo {
    /// All candidates.
    pub candidates: Vec<Candidate>,
    /// The plan.
    pub plan: super::plan::Steps,
}

impl Todo {
    /// Looks at the machine and decides.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn now(tiers: &Tiers, store: &Store) -> anyhow::Result<Self> {
        let seen = tiers.look();
        let candidates = gather(tiers, &seen, store)?;
        let rooms: Vec<Option<u64>> = seen
            .iter()
            .map(|tier| tier.is.is_ok().then(|| tier.room_bytes()))
            .collect();
        let plan = decide(&candidates, &rooms, super::now());
        Ok(Self { candidates, plan })
    }

    /// Returns what a step moves.
    pub fn candidate(&self, step: &Step) -> Option<&Candidate> {
        self.candidates
            .iter()
            .find(|candidate| candidate.key == step.key)
    }
}

/// Removes the records of boot images that the store no longer has, and of files that changed
/// or are gone, once they have no copy.
///
/// # Errors
/// If it cannot be removed.
pub fn forget_lost(tiers: &Tiers, store: &Store) -> anyhow::Result<()> {
    for key in tiers.known().keys() {
        let id = bootimg::ImageId(key);
        if matches!(store.names_of(&id), Ok(names) if names.is_empty())
            && store.resolve(&id.to_string()).is_err()
        {
            tiers.known().forget(key)?;
        }
    }
    let files = tiers.files();
    for key in files.keys() {
        let known = files.get(key).unwrap_or_default();
        let path = known.file.unwrap_or_default();
        let is_there = || WholeFile::at(Path::new(&path)).is_ok_and(|file| file.key() == key);
        if known.object.is_none() && !is_there() {
            files.forget(key)?;
        }
    }
    Ok(())
}
