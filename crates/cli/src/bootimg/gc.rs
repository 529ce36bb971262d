//! `bootimg gc`: removes what nobody needs.

mod unbound;

use std::path::PathBuf;

use anyhow::Context as _;
use bootimg::{GcMode, GcReport, ImageId};
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{FormatArg, count, print};
use bootstore::store::StoreSettings;
use host::size::Size;
use unbound::{Unbound, unbound};

/// Remove unused data from the store
///
/// Removes leftovers of interrupted commands, boot images of layers whose directories Docker or
/// containerd has removed, blocks that no boot image uses, and, when the store is larger than
/// --store-max, the least valuable boot images that are not pinned.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What `gc --json` prints.
#[derive(Debug, Serialize)]
struct Collected {
    dry_run: bool,
    /// Boot images removed because the layer's directory is gone.
    unbound: Vec<Gone>,
    /// Ids of boot images removed to make room.
    evicted: Vec<String>,
    /// Ids of boot images removed because they are damaged or have no name.
    lost: Vec<String>,
    segments_removed: usize,
    segments_repacked: usize,
    /// Segments that cannot be read now, and are kept.
    segments_unread: usize,
    /// Ids of boot images that another release wrote, and that are kept.
    other_release: Vec<String>,
    /// Segments that another release wrote, and that are kept.
    segments_other_release: usize,
    leftovers: usize,
    bytes_before: u64,
    bytes_after: u64,
}

/// A boot image of a directory that is gone.
#[derive(Debug, Serialize)]
struct Gone {
    id: String,
    dir: PathBuf,
}

pub(super) fn run(args: &GcArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let Some(store) = store.open_existing()? else {
        let nothing = Collected::of(&GcReport::default(), Vec::new(), args.dry_run);
        print(args.format.format(), &nothing, text)?;
        return Ok(Outcome::Done);
    };
    let gone = unbound(&store)?;
    let mut report = store.gc(GcMode::DryRun).context("looking for garbage")?;
    if args.dry_run {
        let freed: u64 = gone.iter().map(|image| image.own_bytes).sum();
        report.bytes_after = report.bytes_after.saturating_sub(freed);
    } else {
        for Unbound { id, dir, .. } in &gone {
            let removing = || format!("removing the boot image of {}", dir.display());
            store.remove(id).with_context(removing)?;
        }
        let before = report.bytes_before;
        report = store.gc(GcMode::Apply).context("collecting garbage")?;
        report.bytes_before = before;
    }
    let collected = Collected::of(&report, gone, args.dry_run);
    print(args.format.format(), &collected, text)?;
    Ok(Outcome::Done)
}

impl Collected {
    fn of(report: &GcReport, gone: Vec<Unbound>, dry_run: bool) -> Self {
        let ids = |images: &[ImageId]| images.iter().map(ToString::to_string).collect();
        let gone = gone.into_iter().map(|image| Gone {
            id: image.id.to_string(),
            dir: image.dir,
        });
        Self {
            dry_run,
            unbound: gone.collect(),
            evicted: ids(&report.evicted),
            lost: ids(&report.lost),
            segments_removed: report.segments.len(),
            segments_repacked: report.repacked.len(),
            segments_unread: report.unread.len() - report.foreign_segments.len(),
            other_release: ids(&report.foreign),
            segments_other_release: report.foreign_segments.len(),
            leftovers: report.leftovers,
            bytes_before: report.bytes_before,
            bytes_after: report.bytes_after,
        }
    }
}

fn text(collected: &Collected) -> String {
    let would = if collected.dry_run {
        "would go"
    } else {
        "went"
    };
    let Collected { unbound, .. } = collected;
    let images = unbound.len() + collected.evicted.len() + collected.lost.len();
    let segments = collected.segments_removed + collected.segments_repacked;
    let gone = unbound.iter().map(|image| {
        let (id, dir) = (&image.id[..12], image.dir.display());
        format!("{id} is of {dir}, which is gone\n")
    });
    let unread = match collected.segments_unread {
        0 => String::new(),
        n => format!(
            "{} cannot be read now, and nothing is repacked as long as that is so; the log says which and why\n",
            count(n as u64, "segment")
        ),
    };
    gone.collect::<String>()
        + &unread
        + &other_release(collected)
        + &format!(
            "{} to {}: {}, {} and {} {would}",
            Size(collected.bytes_before),
            Size(collected.bytes_after),
            count(images as u64, "boot image"),
            count(segments as u64, "segment"),
            count(collected.leftovers as u64, "leftover")
        )
}

/// Says what is kept because another release wrote it.
fn other_release(collected: &Collected) -> String {
    let images = &collected.other_release;
    let segments = collected.segments_other_release;
    if images.is_empty() && segments == 0 {
        return String::new();
    }
    let mut text = format!(
        "{} and {} of another release are kept; use that release, or record again\n",
        count(images.len() as u64, "boot image"),
        count(segments as u64, "segment")
    );
    if !images.is_empty() {
        let ids: Vec<_> = images.iter().map(|id| &id[..12]).collect();
        text += &format!(
            "as they may use any segment, no segment and no other boot image makes room for others until \
             they are removed: bootimg rm {}\n",
            ids.join(" ")
        );
    }
    text
}
