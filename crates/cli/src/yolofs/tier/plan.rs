//! `yolofs tier plan`.

use std::collections::BTreeMap;

use bootimg::Store;
use serde::Serialize;
use tiering::hif::recorded_files;

use crate::exit::Outcome;
use crate::output::{FormatArg, print, table};
use bootstore::store::StoreSettings;
use bootstore::tiers::Tiers;
use bootstore::tiers::carry::Todo;
use bootstore::tiers::now;
use bootstore::tiers::plan::{Candidate, Change, Step};
use bootstore::tiers::ways::{Ways, passed_from};
use host::size::Size;

/// Show what would move, and why
///
/// Nothing is changed: `yolofs tier apply` carries it out. Room goes to what is open, then to pins,
/// then to what is hottest for its size: each start counts 1, and half of that a day later. Files that
/// starts read most of go whole, where mounts pass them through; of all others, their boot image's
/// copy has the blocks.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    format: FormatArg,
}

/// A plan, for programs.
#[derive(Debug, Serialize)]
pub(super) struct Planned {
    pub(super) moves: Vec<PlannedMove>,
    /// Boot images that are pinned and find no room.
    unmet_pins: Vec<String>,
    tiers: Vec<PlannedTier>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedMove {
    /// `demote`: a copy goes; `promote`: a copy is made.
    #[serde(rename = "move")]
    pub(super) what: &'static str,
    pub(super) name: String,
    pub(super) tier: String,
    /// About that, of what has never been moved.
    pub(super) bytes: u64,
    /// Bytes of it that other boot images have on the tier then: they are not written again.
    shared_bytes: u64,
    pub(super) heat: f64,
    /// `blocks` of a boot image, `whole` of a file; nothing of what nobody knows any more.
    way: Option<&'static str>,
    /// The boot image because of whose starts a file is to be there whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    hot_of: Option<String>,
    /// What it would be by files, of a boot image that is to be brought up.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    hot: Option<HotFiles>,
}

/// The files that recorded starts read: what they would be whole, and which way they go.
#[derive(Clone, Debug, Serialize)]
struct HotFiles {
    hot_files: u64,
    hot_files_bytes: u64,
    /// Bytes of all files of the source.
    source_bytes: u64,
    /// How many go whole, as moves of their own.
    whole_files: u64,
    /// How many only by the blocks that are read, by why.
    block_files: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct PlannedTier {
    tier: String,
    bytes: u64,
}

pub(super) fn run(args: &PlanArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let tiers = store.tiers()?;
    let store = store.open_present()?;
    let planned = Planned::of(&Todo::now(&tiers, &store)?, &tiers, &store);
    print(args.format.format(), &planned, Planned::text)?;
    Ok(Outcome::Done)
}

/// Returns a step in words.
pub(super) fn planned(step: &Step, todo: &Todo, tiers: &Tiers) -> PlannedMove {
    let candidate = todo.candidate(step);
    PlannedMove {
        what: match step.change {
            Change::Demote => "demote",
            Change::Promote => "promote",
        },
        name: candidate.map_or_else(|| step.key.short(), |candidate| candidate.label.clone()),
        tier: tiers.specs()[step.place].name.clone(),
        bytes: step.bytes,
        shared_bytes: step.shared_bytes,
        heat: candidate.map_or(0.0, |candidate| candidate.heat.at(now())),
        way: candidate.and_then(Candidate::way),
        hot_of: candidate.and_then(|candidate| candidate.hot_of.clone()),
        hot: None,
    }
}

impl Planned {
    fn of(todo: &Todo, tiers: &Tiers, store: &Store) -> Self {
        let unmet = |candidate: &&Candidate| todo.plan.unmet_pins.contains(&candidate.key);
        let names = tiers.specs().iter().map(|spec| spec.name.clone());
        let then = names.zip(&todo.plan.bytes_then);
        Self {
            moves: todo
                .plan
                .steps
                .iter()
                .map(|step| PlannedMove {
                    hot: HotFiles::of(step, todo, tiers, store),
                    ..planned(step, todo, tiers)
                })
                .collect(),
            unmet_pins: todo
                .candidates
                .iter()
                .filter(unmet)
                .map(|candidate| candidate.label.clone())
                .collect(),
            tiers: then
                .map(|(tier, bytes)| PlannedTier {
                    tier,
                    bytes: *bytes,
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = match self.moves.is_empty() {
            true => "nothing is to move\n".to_owned(),
            false => {
                let head = [
                    "MOVE", "IMAGE", "TIER", "SIZE", "SHARED", "WAY", "AS FILES", "HEAT",
                ];
                let mut rows = vec![head.map(str::to_owned).to_vec()];
                rows.extend(self.moves.iter().map(PlannedMove::row));
                table(&rows)
            }
        };
        for said in self.moves.iter().filter_map(PlannedMove::said) {
            text.push_str(&said);
        }
        for name in &self.unmet_pins {
            text.push_str(&format!("{name} is pinned, and there is no room for it\n"));
        }
        text
    }
}

impl HotFiles {
    /// Says it of what is to be brought up; `None` of a boot image that cannot be read.
    fn of(step: &Step, todo: &Todo, tiers: &Tiers, store: &Store) -> Option<Self> {
        if step.change != Change::Promote {
            return None;
        }
        let id = todo.candidate(step)?.image?;
        let image = store.peek_image(&id).ok()?;
        let recorded = recorded_files(image.plan(), image.tree());
        let ways = Ways::of(&image, passed_from(tiers, &id).as_deref());
        let blocks = ways.blocks.iter();
        Some(Self {
            hot_files: recorded.files.len() as u64,
            hot_files_bytes: recorded.file_bytes,
            source_bytes: recorded.source_bytes,
            whole_files: ways.whole.len() as u64,
            block_files: blocks
                .map(|(why, files)| (why.to_string(), *files))
                .collect(),
        })
    }
}

impl PlannedMove {
    /// Says why a file goes whole, and the others by blocks.
    fn said(&self) -> Option<String> {
        let name = &self.name;
        if let (Some(of), "promote") = (&self.hot_of, self.what) {
            return Some(format!(
                "{name} goes whole: starts of {of} read most of it\n"
            ));
        }
        let hot = self.hot.as_ref()?;
        let blocks: Vec<String> = hot
            .block_files
            .iter()
            .map(|(why, files)| format!("{files} {why}"))
            .collect();
        let (blocks, whole) = (blocks.join(", "), hot.whole_files);
        Some(format!(
            "{name}: files by blocks: {blocks}; whole: {whole}\n"
        ))
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.what.to_owned(),
            self.name.clone(),
            self.tier.clone(),
            Size(self.bytes).to_string(),
            match self.shared_bytes {
                0 => "-".to_owned(),
                bytes => Size(bytes).to_string(),
            },
            self.way.unwrap_or("-").to_owned(),
            self.hot.as_ref().map_or_else(
                || "-".to_owned(),
                |hot| Size(hot.hot_files_bytes).to_string(),
            ),
            format!("{:.1}", self.heat),
        ]
    }
}
