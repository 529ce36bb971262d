//! The same boot in every measured way: its duration, and its waits.

use super::chart::{self, Bar};
use super::markup::Markup;
use super::table::{self, Alignment, Column};
use super::{Detail, numbers};
use crate::measured::{Comparison, ServedFrom, WayReport, median};

/// Most comparisons on a page.
const SHOWN: usize = 12;
/// Most samples that are dots.
const DOTS: usize = 60;
/// Height of one way in the picture: a line of words, and a bar.
const LANE: f64 = 46.0;
const BAR_TOP: f64 = 20.0;
const BAR_HEIGHT: f64 = 18.0;

pub(super) fn section(out: &mut Markup, comparisons: &[Comparison], detail: Detail) {
    if comparisons.is_empty() {
        if detail == Detail::Full {
            let words = "No measurement was given: bootimg report takes what a bench wrote with --measured FILE.";
            super::nothing(out, words);
        }
        return;
    }
    for comparison in comparisons.iter().take(SHOWN) {
        out.leaf("h3", &[], &heading(comparison));
        lanes(out, comparison);
        if detail == Detail::Full {
            numbers_of(out, comparison);
        }
    }
    table::more(out, comparisons.len() as u64, SHOWN, "comparison");
}

fn heading(comparison: &Comparison) -> String {
    let said = [&comparison.subject, &comparison.condition];
    let said: Vec<_> = said
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(String::as_str)
        .collect();
    match said.as_slice() {
        [] => "From the start to readiness".to_owned(),
        said => format!("From the start to readiness: {}", said.join(", ")),
    }
}

/// The ways below each other on one axis of time.
fn lanes(out: &mut Markup, comparison: &Comparison) {
    let slowest = comparison.ways.iter().flat_map(|way| &way.ready_ms);
    let end_ms = slowest.copied().fold(1.0, f64::max);
    let warm_ms = comparison
        .way(&ServedFrom::NativeWarm)
        .and_then(WayReport::median_ms);
    if warm_ms.is_some() {
        legend(out);
    }
    let count = comparison.ways.len();
    let bottom = LANE * numbers::real(count as u64) + 4.0;
    let words: Vec<_> = comparison
        .ways
        .iter()
        .map(|way| words(way, warm_ms))
        .collect();
    let described = format!(
        "Bars of time from the start to readiness. {}.",
        words.join("; ")
    );
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ways are few"
    )]
    let height = bottom as u32 + 20;
    out.tag("figure", &[], |out| {
        chart::picture(out, height, &described, |out| {
            chart::time_axis(out, end_ms, (0.0, bottom));
            for (index, way) in comparison.ways.iter().enumerate() {
                let top = LANE * numbers::real(index as u64);
                lane(out, way, warm_ms, (end_ms, top));
            }
        });
        let caption = "Bars end at the median; dots are single boots, the line spans all of them.";
        out.leaf("figcaption", &[], caption);
    });
}

fn legend(out: &mut Markup) {
    out.tag("ul", &[("class", "legend")], |out| {
        for (class, text) in [
            ("work", "as long as it takes when all is in the page cache"),
            ("wait", "longer than that: waiting for content"),
        ] {
            out.tag("li", &[], |out| {
                out.leaf("i", &[("class", class)], "");
                out.text(text);
            });
        }
    });
}

/// A way in words: `yolofs 41 ms, 1.05× native warm`.
fn words(way: &WayReport, warm_ms: Option<f64>) -> String {
    let Some(ms) = way.median_ms() else {
        return format!("{}: not measured", name(way));
    };
    let text = format!("{}: {}", name(way), numbers::time(ms));
    match warm_ms.and_then(|warm_ms| numbers::times(ms, warm_ms)) {
        Some(times) if way.way != ServedFrom::NativeWarm => format!("{text}, {times} warm"),
        _ => text,
    }
}

fn name(way: &WayReport) -> String {
    numbers::clipped(way.way.title(), 40)
}

fn lane(out: &mut Markup, way: &WayReport, warm_ms: Option<f64>, (end_ms, top): (f64, f64)) {
    chart::label(out, "strong", 0.0, top + 15.0, &words(way, warm_ms));
    let Some(ms) = way.median_ms() else {
        return;
    };
    let work_ms = warm_ms.map_or(ms, |warm_ms| warm_ms.min(ms));
    let place = Bar::new((0.0, work_ms / end_ms), top + BAR_TOP, BAR_HEIGHT);
    let class = if warm_ms.is_some() { "work" } else { "all" };
    chart::bar(out, class, place);
    if ms > work_ms {
        let (from, to) = (work_ms / end_ms, ms / end_ms);
        chart::bar(out, "wait", Bar { from, to, ..place });
    }
    let middle = top + BAR_TOP + BAR_HEIGHT / 2.0;
    let (low, high) = range(&way.ready_ms);
    chart::level(out, "range", middle, (low / end_ms, high / end_ms));
    for ms in way.ready_ms.iter().take(DOTS) {
        let (x, y) = (chart::across(ms / end_ms), format!("{middle:.1}"));
        out.void(
            "circle",
            &[("class", "dot"), ("cx", &x), ("cy", &y), ("r", "3")],
        );
    }
}

fn range(samples: &[f64]) -> (f64, f64) {
    let low = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let high = samples.iter().copied().fold(0.0, f64::max);
    (low.min(high), high)
}

fn numbers_of(out: &mut Markup, comparison: &Comparison) {
    let columns = [
        Column("Way", Alignment::Left),
        Column("Boots", Alignment::Right),
        Column("Median", Alignment::Right),
        Column("Fastest to slowest", Alignment::Right),
        Column("Cold is slower by", Alignment::Right),
        Column("Disk reads", Alignment::Right),
        Column("FUSE reads", Alignment::Right),
        Column("Prepared in", Alignment::Right),
    ];
    let cold_ms = comparison
        .way(&ServedFrom::NativeCold)
        .and_then(WayReport::median_ms);
    table::table(out, "Medians of all boots", &columns, |out| {
        for way in &comparison.ways {
            table::row(out, |out| row(out, way, cold_ms));
        }
    });
    let words = "FUSE reads are those that reached a daemon: none means that the page cache had \
        everything. Preparation (mounting, prewarming) happens before the boot.";
    out.leaf("p", &[("class", "soft")], words);
}

fn row(out: &mut Markup, way: &WayReport, cold_ms: Option<f64>) {
    let dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let ms = way.median_ms();
    let (low, high) = range(&way.ready_ms);
    table::words(out, &name(way));
    table::count(out, way.ready_ms.len() as u64);
    let sorted = |value: Option<f64>| value.unwrap_or(-1.0);
    table::number(out, sorted(ms), &dash(ms.map(numbers::time)));
    let spread = format!("{} to {}", numbers::time(low), numbers::time(high));
    table::number(out, high - low, &spread);
    let times = cold_ms
        .zip(ms)
        .and_then(|(cold_ms, ms)| numbers::times(cold_ms, ms));
    let ratio = cold_ms
        .zip(ms)
        .map(|(cold_ms, ms)| cold_ms / ms.max(f64::MIN_POSITIVE));
    table::number(out, sorted(ratio), &dash(times));
    for counts in [&way.disk_reads, &way.fuse_reads] {
        let middle = median(counts);
        table::number(
            out,
            sorted(middle),
            &dash(middle.map(|reads| format!("{reads:.0}"))),
        );
    }
    let prepare = median(&way.prepare_ms);
    table::number(out, sorted(prepare), &dash(prepare.map(numbers::time)));
}
