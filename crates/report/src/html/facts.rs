//! What an image is, at a glance; and how alike its boots are.

use super::chart::{self, Bar};
use super::markup::Markup;
use super::numbers;
use crate::image::{ImageReport, StabilityReport};
use crate::measured::{Comparison, ServedFrom, WayReport, median};
use crate::sum::sum;

/// Most names, digests and runs that are shown.
const SHOWN: usize = 20;
/// Longest command, in characters.
const COMMAND: usize = 600;

pub(super) fn head(out: &mut Markup, image: &ImageReport) {
    tiles(out, image);
    facts(out, image);
}

/// Writes the numbers that matter most.
pub(super) fn tiles(out: &mut Markup, image: &ImageReport) {
    let read = image.content.bytes;
    let of = image
        .source_bytes()
        .map(|all| format!("read, {} of the image", numbers::percent(read, all)));
    let mut tiles = vec![
        (
            numbers::bytes(read),
            of.unwrap_or_else(|| "read by a boot".to_owned()),
        ),
        (
            numbers::count(image.content.files),
            "files they are in".to_owned(),
        ),
    ];
    let ready: Vec<f64> = image
        .recording
        .ready_ms
        .iter()
        .map(|ms| numbers::real(*ms))
        .collect();
    if let Some(ms) = median(&ready) {
        tiles.push((numbers::time(ms), "until ready, when recorded".to_owned()));
    }
    tiles.extend(best(&image.measured));
    let missed: Vec<u64> = image
        .mounts
        .iter()
        .map(|mount| mount.fallthrough_bytes)
        .collect();
    if !missed.is_empty() {
        let bytes = numbers::bytes(sum(missed));
        tiles.push((bytes, "missed by its mounts now".to_owned()));
    }
    out.tag("ul", &[("class", "tiles")], |out| {
        for (number, words) in &tiles {
            out.tag("li", &[], |out| {
                out.leaf("b", &[], number);
                out.leaf("span", &[], words);
            });
        }
    });
}

/// Returns how much faster than cold yolofs is, where the difference is largest.
fn best(comparisons: &[Comparison]) -> Option<(String, String)> {
    let faster = |comparison: &Comparison| {
        let ms = |way| comparison.way(way).and_then(WayReport::median_ms);
        let (cold, ours) = (ms(&ServedFrom::NativeCold)?, ms(&ServedFrom::Yolofs)?);
        Some((cold, ours)).filter(|_| ours > 0.0)
    };
    let pairs = comparisons.iter().filter_map(faster);
    let (cold, ours) = pairs.max_by(|(a, b), (c, d)| (a / b).total_cmp(&(c / d)))?;
    Some((
        numbers::times(cold, ours)?,
        "faster than native cold, at best".to_owned(),
    ))
}

fn facts(out: &mut Markup, image: &ImageReport) {
    let recording = &image.recording;
    out.tag("dl", &[], |out| {
        let mut fact = |name: &str, value: &str| {
            if !value.is_empty() {
                out.leaf("dt", &[], name);
                out.leaf("dd", &[], value);
            }
        };
        fact(
            "Also called",
            &listed(image.other_names.iter().map(String::as_str)),
        );
        fact("Source", &numbers::clipped(&image.source, COMMAND));
        if recording.recorded_at != 0 {
            fact("Recorded", &numbers::moment(recording.recorded_at));
        }
        fact("By", &numbers::clipped(&recording.tool, 80));
        fact(
            "Command",
            &numbers::clipped(&recording.command.join(" "), COMMAND),
        );
        fact("Runs", &runs(image));
        for named in image.digests.iter().take(SHOWN) {
            fact(
                &numbers::clipped(&named.of, 40),
                &numbers::clipped(&named.digest, 160),
            );
        }
    });
}

fn runs(image: &ImageReport) -> String {
    let recording = &image.recording;
    let times: Vec<_> = recording
        .ready_ms
        .iter()
        .map(|ms| numbers::time(numbers::real(*ms)))
        .collect();
    let runs = numbers::count(recording.runs.into());
    if times.is_empty() {
        return runs;
    }
    format!(
        "{runs}, ready after {}",
        listed(times.iter().map(String::as_str))
    )
}

/// Returns things with commas between, and how many more there are.
fn listed<'a>(things: impl ExactSizeIterator<Item = &'a str>) -> String {
    let left = things.len().saturating_sub(SHOWN);
    let shown: Vec<_> = things
        .take(SHOWN)
        .map(|thing| numbers::clipped(thing, 120))
        .collect();
    let mut text = shown.join(", ");
    if left > 0 {
        text.push_str(&format!(" and {left} more"));
    }
    text
}

/// Writes how much of the reads of boots is the same every time.
pub(super) fn stability(out: &mut Markup, image: &ImageReport) {
    if image.recording.runs < 2 {
        let words = "One run was recorded: whether the next one reads the same, nobody knows. \
            Record three runs to see: bootimg record --runs 3.";
        super::nothing(out, words);
        return;
    }
    let StabilityReport {
        every_run_bytes,
        most_runs_bytes,
        few_runs_bytes,
        similarity_ppm,
    } = image.stability;
    let classes = [
        ("c2", every_run_bytes, "in every run"),
        ("c4", most_runs_bytes, "in at least half of them"),
        ("c7", few_runs_bytes, "in fewer"),
    ];
    let all = sum(classes.map(|(_, bytes, _)| bytes));
    out.tag("ul", &[("class", "legend")], |out| {
        for (class, bytes, words) in classes {
            let share = numbers::percent(bytes, all);
            out.tag("li", &[], |out| {
                out.leaf("i", &[("class", class)], "");
                out.text(&format!("{words}: {} ({share})", numbers::bytes(bytes)));
            });
        }
    });
    let runs = numbers::things(image.recording.runs.into(), "run");
    let alike = similarity_ppm.map_or_else(String::new, |ppm| {
        let alike = numbers::percent(ppm.into(), 1_000_000);
        format!(" Two runs have {alike} of their blocks in common, on average.")
    });
    out.tag("figure", &[], |out| {
        classes_bar(out, &classes.map(|(class, bytes, _)| (class, bytes)), all);
        out.leaf("figcaption", &[], &format!("What {runs} read.{alike}"));
    });
}

/// One bar with the classes side by side.
fn classes_bar(out: &mut Markup, classes: &[(&str, u64)], all: u64) {
    let words = "A bar with what every run, most runs and few runs read.";
    let part = |bytes: u64| numbers::real(bytes) / numbers::real(all.max(1));
    chart::picture(out, 22, words, |out| {
        let mut so_far: u64 = 0;
        for (class, bytes) in classes {
            let from = part(so_far);
            so_far = so_far.saturating_add(*bytes);
            chart::bar(out, class, Bar::new((from, part(so_far)), 2.0, 18.0));
        }
    });
}
