//! What the boot reads when: columns of time, with the layers in colours.

use super::chart::{self, Bar, OWN_COLOURS, colour};
use super::markup::Markup;
use super::table::{self, Alignment, Column};
use super::{Detail, numbers};
use crate::image::ImageReport;
use crate::measured::median;
use crate::sum::sum;
use crate::timeline::{Moment, Timeline};

/// Space for the amount above.
const TOP: f64 = 18.0;
const HEIGHT: f64 = 150.0;
const BOTTOM: f64 = TOP + HEIGHT;
/// Space for the times below.
const AXIS: u32 = 20;
/// Height of the strip that counts extents.
const STRIP: f64 = 34.0;
/// Columns of a picture that is one of many: enough to see its shape.
const BRIEF_COLUMNS: u64 = 60;

pub(super) fn section(out: &mut Markup, image: &ImageReport, detail: Detail) {
    out.leaf("h3", &[], "What is read when");
    if image.timeline.moments.is_empty() {
        super::nothing(
            out,
            "Nothing is read: there is no content in the boot image.",
        );
        return;
    }
    let timeline = match detail {
        Detail::Full => image.timeline.clone(),
        Detail::Brief => image.timeline.coarser(BRIEF_COLUMNS),
    };
    let view = View::new(&timeline, image);
    super::layers::legend(out, image);
    out.tag("figure", &[], |out| {
        view.columns(out);
        out.leaf("figcaption", &[], &view.caption());
    });
    if detail == Detail::Full {
        out.tag("figure", &[], |out| {
            view.total(out);
            out.leaf("figcaption", &[], "All that was read up to then.");
        });
        out.tag("figure", &[], |out| {
            view.extents(out);
            let words = "Extents (runs of blocks) in each slice: what a disk has to seek for.";
            out.leaf("figcaption", &[], words);
        });
        out.tag("details", &[], |out| {
            out.leaf("summary", &[], "The same in numbers");
            view.numbers(out);
        });
    }
}

/// A timeline with what is needed to draw it.
struct View<'a> {
    timeline: &'a Timeline,
    end_ms: f64,
    slice_ms: f64,
    /// Milliseconds to readiness, if recorded: the median of the runs.
    ready_ms: Option<f64>,
}

impl<'a> View<'a> {
    fn new(timeline: &'a Timeline, image: &ImageReport) -> Self {
        let ready = image.recording.ready_ms.iter().map(|ms| numbers::real(*ms));
        let ready_ms = median(&ready.collect::<Vec<_>>());
        Self {
            timeline,
            end_ms: numbers::real(timeline.end_ms()).max(ready_ms.unwrap_or(0.0)),
            slice_ms: numbers::real(timeline.slice_ms),
            ready_ms,
        }
    }

    fn caption(&self) -> String {
        let slice = numbers::time(self.slice_ms);
        let ready = match self.ready_ms {
            Some(ms) => format!(
                " The dashed line is when the recorded boot was ready: after {} (median).",
                numbers::time(ms)
            ),
            None => String::new(),
        };
        format!(
            "Bytes that are needed for the first time in each slice of {slice} of the recorded boot.{ready}"
        )
    }

    /// Returns a slice as parts of the width.
    fn place(&self, moment: &Moment) -> (f64, f64) {
        let start = numbers::real(moment.slice) * self.slice_ms / self.end_ms;
        (start, start + self.slice_ms / self.end_ms)
    }

    fn time(&self, moment: &Moment) -> String {
        let start = numbers::real(moment.slice) * self.slice_ms;
        let (from, to) = (numbers::time(start), numbers::time(start + self.slice_ms));
        format!("{from} to {to}")
    }

    fn columns(&self, out: &mut Markup) {
        let most = self
            .timeline
            .moments
            .iter()
            .map(bytes)
            .max()
            .unwrap_or(0)
            .max(1);
        let words = format!(
            "Columns of bytes over time, at most {} in a slice.",
            numbers::bytes(most)
        );
        chart::picture(out, pixels(BOTTOM), &words, |out| {
            chart::byte_axis(out, most, (TOP, BOTTOM));
            for moment in &self.timeline.moments {
                let (from, end) = self.place(moment);
                // A gap of a tenth keeps columns apart, whatever their width.
                let to = from + (end - from) * 0.9;
                out.tag("g", &[], |out| {
                    let told = format!(
                        "{}: {} in {}",
                        self.time(moment),
                        numbers::bytes(bytes(moment)),
                        numbers::things(moment.extents, "extent")
                    );
                    out.leaf("title", &[], &told);
                    stack(out, moment, most, (from, to));
                });
            }
            self.frame(out, (TOP, BOTTOM));
        });
    }

    /// The sum so far, as steps. Layers are not distinguished: their shares are in the columns.
    fn total(&self, out: &mut Markup) {
        let all = sum(self.timeline.moments.iter().map(bytes)).max(1);
        let words = format!(
            "Sum of bytes over time, {} at the end.",
            numbers::bytes(all)
        );
        chart::picture(out, pixels(BOTTOM), &words, |out| {
            chart::byte_axis(out, all, (TOP, BOTTOM));
            let mut so_far: u64 = 0;
            let mut moments = self.timeline.moments.iter().peekable();
            while let Some(moment) = moments.next() {
                so_far = so_far.saturating_add(bytes(moment));
                let from = self.place(moment).0;
                let to = moments.peek().map_or(1.0, |next| self.place(next).0);
                let height = HEIGHT * numbers::real(so_far) / numbers::real(all);
                let top = BOTTOM - height;
                let time = numbers::time(from * self.end_ms + self.slice_ms);
                let told = format!("{} after {time}", numbers::bytes(so_far));
                out.tag("g", &[], |out| {
                    out.leaf("title", &[], &told);
                    chart::bar(out, "all", Bar::new((from, to), top, height));
                });
            }
            self.frame(out, (TOP, BOTTOM));
        });
    }

    fn extents(&self, out: &mut Markup) {
        let extents = self.timeline.moments.iter().map(|moment| moment.extents);
        let most = extents.max().unwrap_or(0).max(1);
        let bottom = TOP + STRIP;
        let words = format!("Columns of extents over time, at most {most} in a slice.");
        chart::picture(out, pixels(bottom), &words, |out| {
            for moment in &self.timeline.moments {
                let (from, end) = self.place(moment);
                let height = (STRIP * numbers::real(moment.extents) / numbers::real(most)).max(1.0);
                let to = from + (end - from) * 0.9;
                chart::bar(out, "work", Bar::new((from, to), bottom - height, height));
            }
            chart::label(
                out,
                "axis",
                0.0,
                TOP - 5.0,
                &numbers::things(most, "extent"),
            );
            chart::time_axis(out, self.end_ms, (TOP, bottom));
        });
    }

    fn frame(&self, out: &mut Markup, (top, bottom): (f64, f64)) {
        chart::time_axis(out, self.end_ms, (bottom, bottom));
        if let Some(ms) = self.ready_ms {
            chart::upright(out, "mark", ms / self.end_ms, (top, bottom));
        }
    }

    fn numbers(&self, out: &mut Markup) {
        let columns = [
            Column("Time", Alignment::Left),
            Column("Read", Alignment::Right),
            Column("Extents", Alignment::Right),
            Column("Read so far", Alignment::Right),
        ];
        let mut so_far: u64 = 0;
        table::table(out, "What is read when", &columns, |out| {
            for moment in &self.timeline.moments {
                so_far = so_far.saturating_add(bytes(moment));
                table::row(out, |out| {
                    table::number(out, numbers::real(moment.slice), &self.time(moment));
                    table::bytes(out, bytes(moment));
                    table::count(out, moment.extents);
                    table::bytes(out, so_far);
                });
            }
        });
    }
}

/// One column: the layers on top of each other, the bottom one at the bottom. Those without a colour
/// of their own are one.
fn stack(out: &mut Markup, moment: &Moment, most: u64, (from, to): (f64, f64)) {
    let own = moment.layer_bytes.len().min(OWN_COLOURS);
    let (own, others) = moment.layer_bytes.split_at(own);
    let others = sum(others.iter().copied());
    let mut top = BOTTOM;
    let layers = own.iter().chain([&others]).enumerate();
    for (layer, bytes) in layers.filter(|(_, bytes)| **bytes > 0) {
        // What is there is seen, however little it is.
        let height = (HEIGHT * numbers::real(*bytes) / numbers::real(most)).max(0.5);
        top -= height;
        let bar = Bar::new((from, to), top, height);
        chart::bar(out, colour(layer), bar);
    }
}

fn bytes(moment: &Moment) -> u64 {
    sum(moment.layer_bytes.iter().copied())
}

/// Height of a picture with an axis below `bottom`.
fn pixels(bottom: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few hundred"
    )]
    let bottom = bottom as u32;
    bottom + AXIS
}
