//! `yolofs tier promote`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tiering::Rate;
use tiering::objects::Copied;

use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::StoreSettings;
use bootstore::tiers::mover::{Mover, PATIENCE};
use bootstore::tiers::pace::Paced;
use bootstore::tiers::whole::WholeFile;
use bootstore::tiers::{Tiers, now};
use host::interrupt::Interrupt;
use host::progress;
use host::progress::Bar;
use host::size::Size;

/// Files that one command takes: whole files are few and large.
const FILES_MAX: usize = 10_000;

/// Copy whole files to a tier, where mounts pass reads through to
///
/// For disk images: a mount of them in disk mode has the kernel read the copy, mapped pages too, as
/// long as the file is the one that was copied. Each copy is written, synced, read again and
/// compared before it counts. What is there and sound stays; heat decides later, as of all else.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: yolofs tier promote --tier nvm /srv/images/base.raw")]
pub(super) struct PromoteArgs {
    /// Files, or directories with all files in them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Tier to copy to [default: the fastest]
    #[arg(long, value_name = "NAME")]
    tier: Option<String>,
    /// Most bytes a second; each file is read twice
    #[arg(long, value_name = "SIZE")]
    rate: Option<Size>,
    #[command(flatten)]
    format: FormatArg,
}

/// What became of a file.
#[derive(Debug, Serialize)]
struct Promoted {
    file: PathBuf,
    tier: String,
    bytes: u64,
    /// Bytes that were written; 0 if a sound copy was there.
    written_bytes: u64,
    /// How often it waited for others who read the disk.
    gave_way: u64,
}

pub(super) fn run(args: &PromoteArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let tiers = store.tiers()?;
    let place = match &args.tier {
        Some(name) => tiers.place_of(name)?,
        None => 0,
    };
    let mut files = Vec::new();
    for path in &args.paths {
        find(path, &mut files, &interrupt)?;
    }
    let rate = args.rate.and_then(|rate| Rate::per_second(rate.0));
    let pace = Paced::new(rate, &interrupt, Bar::hidden());
    let promoted = promote(&tiers, place, &files, (&pace, &interrupt))?;
    print(args.format.format(), &promoted, |promoted| text(promoted))?;
    Ok(Outcome::Done)
}

fn promote(
    tiers: &Tiers,
    place: usize,
    files: &[WholeFile],
    (first, interrupt): (&Paced, &Interrupt),
) -> anyhow::Result<Vec<Promoted>> {
    let tier = &tiers.specs()[place].name;
    let mut promoted = Vec::new();
    for file in files {
        interrupt.check()?;
        let path = file.path().display();
        // Read to know its name, and read to be copied.
        let bar = progress::bytes(&path.to_string(), file.bytes() * 2);
        let pace = first.next(bar.clone());
        pace.read_from(file.path());
        let before = pace.gave_way();
        // First: or a node would take away what is cold.
        tiers.files().expect_start(file.key(), now())?;
        // For one at a time: others have their turn in between.
        let copied = Mover::open(tiers, PATIENCE)
            .and_then(|mover| mover.bring_file(file, place, &pace))
            .with_context(|| format!("bringing {path} to tier {tier}"));
        bar.finish_and_clear();
        let written_bytes = match copied? {
            Copied::Bytes(bytes) => bytes,
            Copied::There => 0,
        };
        promoted.push(Promoted {
            file: file.path().to_owned(),
            tier: tier.clone(),
            bytes: file.bytes(),
            written_bytes,
            gave_way: pace.gave_way() - before,
        });
    }
    Ok(promoted)
}

/// Finds the regular files at a path, in the order of their names; links are not followed.
fn find(path: &Path, found: &mut Vec<WholeFile>, interrupt: &Interrupt) -> anyhow::Result<()> {
    interrupt.check()?;
    let listing = || format!("listing {}", path.display());
    if !path.is_dir() {
        ensure!(
            found.len() < FILES_MAX,
            "there are more than {FILES_MAX} files: copies are for few and large ones, boot images \
             for what is read of many"
        );
        found.push(WholeFile::at(path)?);
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(listing)?;
    let mut entries = entries
        .collect::<Result<Vec<_>, _>>()
        .with_context(listing)?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().with_context(listing)?;
        if kind.is_dir() || kind.is_file() {
            find(&entry.path(), found, interrupt)?;
        }
    }
    Ok(())
}

fn text(promoted: &[Promoted]) -> String {
    if promoted.is_empty() {
        return "there are no files".to_owned();
    }
    let line = |one: &Promoted| {
        let (file, tier) = (one.file.display(), &one.tier);
        match one.written_bytes {
            0 => format!("{file}: on {tier} already, and sound\n"),
            bytes => format!("{file}: {} on {tier}, verified\n", Size(bytes)),
        }
    };
    promoted.iter().map(line).collect()
}
