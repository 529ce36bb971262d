//! A boot as a picture: time from left to right, files from top to bottom in the order in which
//! they were first used, each with a band of its own in which the place within the file goes from
//! top to bottom.
//!
//! A [`Plot`] is independent of traces and plans, so that both can be drawn, and other data
//! later. [`Plot::svg`] makes one self-contained SVG: no scripts, no fonts, nothing to fetch. Its
//! size is bounded by the resolution of a screen, not by the length of the boot.

mod layout;
mod svg;

use std::collections::HashMap;

use blocks::{BlockRange, Event, FileId, ReplayPlan};

use crate::summary::Summary;
use crate::trace::Trace;

/// How many programs get a colour of their own; the palette has one more, for all others.
const OWN_COLOURS: usize = 7;

/// What to draw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Shown above.
    pub title: String,
    /// Shown below the title, smaller.
    pub subtitle: String,
    /// The names of the bands, from top to bottom: one for each file.
    pub rows: Vec<String>,
    /// What the colours mean, in the order of the palette.
    pub groups: Vec<String>,
    /// What to draw in the bands.
    pub marks: Vec<Mark>,
}

/// Bytes of one file, needed at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// When, in milliseconds since the start.
    pub time_ms: f64,
    /// For how long, in milliseconds.
    pub lasts_ms: f64,
    /// Index into [`Plot::rows`].
    pub row: usize,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Index into [`Plot::groups`].
    pub group: usize,
}

impl Plot {
    /// Returns a picture of a trace: a mark for every read, coloured by process.
    #[must_use]
    pub fn of_trace(trace: &Trace) -> Self {
        let summary = Summary::of(trace);
        let mut groups: Vec<String> = Vec::new();
        let mut group_of: HashMap<String, usize> = HashMap::new();
        for share in summary.commands.iter().filter(|share| share.bytes > 0) {
            let group = groups.len().min(OWN_COLOURS);
            if group == groups.len() {
                groups.push(match share.command.as_str() {
                    _ if group == OWN_COLOURS => "others".to_owned(),
                    "" => "(unknown)".to_owned(),
                    command => command.to_owned(),
                });
            }
            group_of.insert(share.command.clone(), group);
        }
        let mut rows = Rows::default();
        let mut marks = Vec::new();
        for event in &trace.events {
            let Event::Read(access) = &event.what else {
                continue;
            };
            let Some(traced) = trace.file(access.file) else {
                continue;
            };
            let size = traced.version.size;
            let len = access.len.min(size.saturating_sub(access.offset));
            if len == 0 {
                continue;
            }
            let name = || String::from_utf8_lossy(&traced.path).into_owned();
            marks.push(Mark {
                time_ms: ms(event.at_us),
                lasts_ms: f64::from(event.took_us) / 1e3,
                row: rows.of(access.file, name),
                offset: access.offset,
                len,
                group: group_of[&trace.command(event.command)],
            });
        }
        Self {
            title: String::from_utf8_lossy(&trace.info.label).into_owned(),
            subtitle: format!(
                "{} of {}, {} touched in {:.1} s",
                counted(summary.reads, "read"),
                counted(summary.files, "file"),
                layout::bytes_text(summary.footprint.first().map_or(0, |f| f.bytes)),
                ms(summary.lasted_us) / 1e3,
            ),
            rows: rows.rows,
            groups,
            marks,
        }
    }

    /// Returns a picture of a plan: a mark for every extent, as long as its time bin, coloured by
    /// how many of the runs needed it. `name` gives the name of a file.
    #[must_use]
    pub fn of_plan(
        title: String,
        plan: &ReplayPlan,
        mut name: impl FnMut(FileId) -> String,
    ) -> Self {
        let mut rows = Rows::default();
        let bin_ms = f64::from(plan.bin_ms);
        let mark = |extent: &blocks::Extent| Mark {
            time_ms: f64::from(extent.bin) * bin_ms,
            lasts_ms: bin_ms,
            row: rows.of(extent.file, || name(extent.file)),
            offset: extent.range.bytes().start,
            len: extent.range.byte_len(),
            group: usize::from(extent.seen < plan.runs)
                + usize::from(extent.seen.saturating_mul(2) < plan.runs),
        };
        let marks: Vec<Mark> = plan.extents.iter().map(mark).collect();
        let groups: &[&str] = match plan.runs {
            0 | 1 => &["in the one run"],
            2 => &["in both runs", "in one run"],
            _ => &["in all runs", "in some runs", "in fewer than half"],
        };
        let blocks = BlockRange::with_len(blocks::BlockIndex(0), plan.block_count());
        Self {
            title,
            subtitle: format!(
                "{} of {}, {} from {}",
                counted(plan.extents.len() as u64, "extent"),
                counted(rows.rows.len() as u64, "file"),
                layout::bytes_text(blocks.byte_len()),
                counted(plan.runs.into(), "run"),
            ),
            rows: rows.rows,
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            marks,
        }
    }

    /// Returns the picture as the text of an SVG file. Marks of missing rows or groups
    /// are left out.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::draw(self)
    }
}

/// Bands, in the order in which their files come up.
#[derive(Default)]
struct Rows {
    rows: Vec<String>,
    index: HashMap<FileId, usize>,
}

impl Rows {
    fn of(&mut self, file: FileId, name: impl FnOnce() -> String) -> usize {
        *self.index.entry(file).or_insert_with(|| {
            self.rows.push(name());
            self.rows.len() - 1
        })
    }
}

fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

#[expect(clippy::cast_precision_loss, reason = "a picture needs four digits")]
fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}
