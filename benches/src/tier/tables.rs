//! A line for each image.

use std::fmt::Write as _;

use super::aims::middle;
use super::deploy::{Pull, Strategy};
use super::place::{Footprint, Place, Start, ready};
use crate::report::count;

/// Returns what starts took, and what lay on NVM for them.
#[must_use]
pub fn starts_table(starts: &[Start], footprints: &[Footprint]) -> String {
    let mut text = format!(
        "  {:13} {:12} {:>9} {:>8} {:>10} {:>8} {:>6} {:>11} {:>8} {:>8} {:>9} {:>8} {:>10}\n",
        "category",
        "image",
        "disk, ms",
        "NVM, ms",
        "hot files",
        "overlay",
        "mixed",
        "hot blocks",
        "faster",
        "all, MB",
        "files, %",
        "mixed, %",
        "blocks, %"
    );
    for footprint in footprints {
        let image = &footprint.image;
        let [disk, nvm, files, overlay, mixed, blocks] =
            Place::ALL.map(|place| ready(starts, image, place));
        let faster = disk.zip(blocks).map(|(disk, ours)| disk / ours);
        let percent = |part: u64| 100.0 * count(part) / count(footprint.all);
        let _always_fits = writeln!(
            text,
            "  {:13} {image:12} {:>9} {:>8} {:>10} {:>8} {:>6} {:>11} {:>8} {:>8.0} {:>9.1} {:>8.1} {:>10.1}",
            footprint.category.to_string(),
            whole(disk),
            whole(nvm),
            whole(files),
            whole(overlay),
            whole(mixed),
            whole(blocks),
            faster.map_or("-".to_owned(), |faster| format!("{faster:.1}x")),
            count(footprint.all) / 1e6,
            percent(footprint.hot_files),
            percent(footprint.mixed),
            percent(footprint.hot_blocks),
        );
    }
    text
}

/// Returns what pulls took, and what lay on NVM for them.
#[must_use]
pub fn pulls_table(pulls: &[Pull]) -> String {
    let mut text = format!("  {:12}", "image");
    for strategy in Strategy::ALL {
        let _always_fits = write!(text, " {:>30}", format!("{strategy}: ms, storing, MB"));
    }
    text.push('\n');
    let mut images: Vec<_> = pulls.iter().map(|pull| pull.image.as_str()).collect();
    images.sort_unstable();
    images.dedup();
    for image in images {
        let _always_fits = write!(text, "  {image:12}");
        for strategy in Strategy::ALL {
            let of = |value: fn(&Pull) -> f64| middle(pulls, image, strategy, value);
            let cells = [
                whole(of(|pull| pull.total_ms)),
                whole(of(|pull| pull.storing_ms)),
                whole(of(|pull| count(pull.nvm_bytes) / 1e6)),
            ];
            let _always_fits = write!(text, " {:>30}", cells.join("  "));
        }
        text.push('\n');
    }
    text
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}
