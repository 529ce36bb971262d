//! `yolofs tier status`.

mod picture;

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;

use super::probe::{kind_word, map_word, sync_word};
use crate::exit::Outcome;
use crate::output::{FormatArg, print, table};
use bootstore::store::StoreSettings;
use bootstore::tiers::plan::{Candidate, Presence, gather};
use bootstore::tiers::seen::SeenTier;
use bootstore::tiers::{Tiers, now};
use host::size::Size;

/// Show the tiers, and the copies on them
///
/// Boot images that have a copy on a tier are served from the fastest that has one; all others
/// from the store.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example of a tiers file:\n  \
    [[tier]]\n  name = \"nvm\"\n  dir = \"/mnt/pmem0/yolofs\"\n  size = \"8G\"    # or \"50%\"")]
pub(super) struct StatusArgs {
    /// Also draw the copies on the tiers to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// All tiers, for programs.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    /// The tiers file; absent if the embedded default is used.
    pub(super) file: Option<PathBuf>,
    pub(super) tiers: Vec<TierStatus>,
}

#[derive(Debug, Serialize)]
pub(super) struct TierStatus {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    /// Why it cannot be used, if it cannot.
    pub(super) away: Option<String>,
    pub(super) kind: Option<&'static str>,
    pub(super) map: Option<&'static str>,
    pub(super) sync: Option<&'static str>,
    /// Bytes that objects may take.
    pub(super) room_bytes: u64,
    pub(super) used_bytes: u64,
    /// Bytes of the file system that are free.
    pub(super) free_bytes: u64,
    pub(super) objects: Vec<ObjectStatus>,
}

#[derive(Debug, Serialize)]
pub(super) struct ObjectStatus {
    /// The boot image's name, or the object's id if nobody knows what it is.
    pub(super) name: String,
    /// The boot image's id.
    pub(super) boot_image: Option<String>,
    pub(super) object: String,
    /// Bytes of it, with all that it shares.
    pub(super) bytes: u64,
    /// Bytes that only it has: they are there no more when it is evicted.
    pub(super) own_bytes: u64,
    /// Bytes that other boot images on the tier have, too: they are there once.
    pub(super) shared_bytes: u64,
    pub(super) heat: f64,
    pub(super) pinned: bool,
    pub(super) open: bool,
    /// `blocks` of a boot image, `whole` of a file, or null.
    pub(super) way: Option<&'static str>,
}

pub(super) fn run(args: &StatusArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let tiers = store.tiers()?;
    let seen = tiers.look();
    let candidates = match store.open_existing()? {
        Some(store) => gather(&tiers, &seen, &store)?,
        None => Vec::new(),
    };
    let status = Status::of(&tiers, &seen, &candidates);
    if let Some(file) = &args.plot {
        let drawing = fs::write(file, picture::svg(&status));
        drawing.with_context(|| format!("drawing the tiers to {}", file.display()))?;
    }
    print(args.format.format(), &status, Status::text)?;
    Ok(Outcome::Done)
}

impl Status {
    fn of(tiers: &Tiers, seen: &[SeenTier], candidates: &[Candidate]) -> Self {
        let of = |(place, tier): (usize, &SeenTier)| TierStatus::of(place, tier, candidates);
        Self {
            file: tiers.file().map(PathBuf::from),
            tiers: seen.iter().enumerate().map(of).collect(),
        }
    }

    fn text(&self) -> String {
        let mut text = match &self.file {
            Some(file) => format!("tiers of {}, the fastest first\n", file.display()),
            None => "no tiers file: one tier beside the boot images\n".to_owned(),
        };
        let head = [
            "TIER",
            "KIND",
            "MAPPING",
            "DURABLE BY",
            "ROOM",
            "USED",
            "OBJECTS",
            "DIRECTORY",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(self.tiers.iter().map(TierStatus::row));
        text.push_str(&table(&rows));
        for tier in &self.tiers {
            if let Some(why) = &tier.away {
                text.push_str(&format!("\n{} cannot be used: {why}\n", tier.name));
            } else if !tier.objects.is_empty() {
                text.push('\n');
                text.push_str(&table(&tier.bars()));
            }
        }
        text
    }
}

impl TierStatus {
    fn of(place: usize, tier: &SeenTier, candidates: &[Candidate]) -> Self {
        let on = |candidate: &&Candidate| {
            candidate
                .on
                .get(place)
                .is_some_and(|on| *on != Presence::Absent)
        };
        let mut objects: Vec<ObjectStatus> = candidates
            .iter()
            .filter(on)
            .filter_map(|candidate| ObjectStatus::of(candidate, candidate.on[place], tier))
            .collect();
        objects.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        let is = tier.is.as_ref().ok();
        Self {
            name: tier.spec.name.clone(),
            dir: tier.spec.dir.clone(),
            away: tier.is.as_ref().err().cloned(),
            kind: is.map(|is| kind_word(is.kind)),
            map: is.map(|is| map_word(is.map)),
            sync: is.map(|is| sync_word(is.sync)),
            room_bytes: tier.room_bytes(),
            used_bytes: tier.used_bytes(),
            free_bytes: is.map_or(0, |is| is.free_bytes),
            objects,
        }
    }

    fn row(&self) -> Vec<String> {
        let word = |word: Option<&str>| word.unwrap_or("-").to_owned();
        vec![
            self.name.clone(),
            word(self.kind),
            word(self.map),
            word(self.sync),
            Size(self.room_bytes).to_string(),
            Size(self.used_bytes).to_string(),
            self.objects.len().to_string(),
            self.dir.display().to_string(),
        ]
    }

    /// What takes how much of the room, as bars.
    fn bars(&self) -> Vec<Vec<String>> {
        let row = |name: &str, bytes: u64, more: String| {
            let bar = bar(bytes, self.room_bytes);
            vec![name.to_owned(), bar, Size(bytes).to_string(), more]
        };
        let mut rows = vec![row(&self.name, self.used_bytes, String::new())];
        rows.extend(self.objects.iter().map(|object| {
            let mut words = vec![format!("heat {:.1}", object.heat)];
            words.extend(object.way.map(|way| match way {
                "whole" => "whole".to_owned(),
                way => format!("by {way}"),
            }));
            let shared = Size(object.shared_bytes);
            words.extend((shared.0 > 0).then(|| format!("{shared} shared")));
            words.extend(object.pinned.then(|| "pinned".to_owned()));
            words.extend(object.open.then(|| "open".to_owned()));
            row(
                &format!("  {}", object.name),
                object.bytes,
                words.join(", "),
            )
        }));
        rows
    }
}

impl ObjectStatus {
    fn of(candidate: &Candidate, on: Presence, tier: &SeenTier) -> Option<Self> {
        let object = candidate.object?;
        let bytes = tier.bytes_of(object)?;
        let shared_bytes = tier.shared_bytes(object);
        Some(Self {
            name: candidate.label.clone(),
            boot_image: candidate.image.map(|id| id.to_string()),
            object: object.to_string(),
            bytes,
            own_bytes: bytes.saturating_sub(shared_bytes),
            shared_bytes,
            heat: candidate.heat.at(now()),
            pinned: candidate.pinned,
            open: on == Presence::Open,
            way: candidate.way(),
        })
    }
}

/// A bar of so many bytes of a room; what is there at all is seen.
fn bar(bytes: u64, room: u64) -> String {
    const WIDTH: u64 = 30;
    let full = u128::from(bytes) * u128::from(WIDTH) / u128::from(room.max(1));
    let full = u64::try_from(full)
        .unwrap_or(WIDTH)
        .min(WIDTH)
        .max(u64::from(bytes > 0));
    let repeat = |text: &str, times: u64| text.repeat(usize::try_from(times).unwrap_or(0));
    format!("[{}{}]", repeat("#", full), repeat(".", WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_shares_and_whatever_is_there() {
        let full = |bar: &str| bar.matches('#').count();
        assert_eq!(full(&bar(0, 100)), 0);
        assert_eq!(full(&bar(1, 1 << 40)), 1);
        assert_eq!(full(&bar(50, 100)), 15);
        assert_eq!(
            full(&bar(200, 100)),
            30,
            "more than the room, which was made smaller"
        );
        assert_eq!(bar(7, 0).len(), 32);
    }
}
