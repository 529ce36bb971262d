//! Drawing.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::layout::{self, Band, LINE, real, whole};
use super::{Mark, Plot};

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 270.0;
const RIGHT: f64 = 80.0;
const TITLE_Y: f64 = 30.0;
const SUBTITLE_Y: f64 = 50.0;
const LEGEND_Y: f64 = 74.0;
const RATE_TOP: f64 = 96.0;
const RATE_HEIGHT: f64 = 56.0;
const TOP: f64 = RATE_TOP + RATE_HEIGHT + 14.0;
const BOTTOM: f64 = 46.0;

/// The bands have this height together: few files need no more, many get what a screen can show.
const LEAST_HEIGHT: f64 = 420.0;
const MOST_HEIGHT: f64 = 1000.0;
const ROW_HEIGHT: f64 = 14.0;

/// Smallest mark, in pixels: a single block of a large disk has to be seen.
const MARK: f64 = 2.2;
/// Places in a pixel that are distinguished, each way: marks at the same one are drawn once.
const GRID: f64 = 1.0;
/// A band this high shows offsets.
const OFFSETS_FROM: f64 = 64.0;
/// Slices of the rate, over the whole width.
const SLICES: usize = 180;
/// Longest label, in characters; of longer ones the end is shown, which tells more.
const LABEL_CHARS: usize = 42;

/// Okabe and Ito's colours, which everybody can tell apart; grey is for the rest.
const PALETTE: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5fbf", "#8a8a8a",
];

const STYLE: &str = "text{font-family:system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#333}\
    .t{font-size:17px;font-weight:600}.s{font-size:12px;fill:#666}.l{font-size:10.5px}\
    .a{font-size:11px;fill:#666}.g{stroke:#e4e4e4;stroke-width:1}.x{stroke:#999;stroke-width:1}";

pub(super) fn draw(plot: &Plot) -> String {
    let picture = Picture::new(plot);
    let mut out = String::new();
    let height = TOP + picture.height + BOTTOM;
    // Writing to a String cannot fail, so results of write! carry nothing here.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\"><title>{}</title><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>",
        escape(&plot.title),
    );
    text(&mut out, "t", (16.0, TITLE_Y), "start", &plot.title);
    text(&mut out, "s", (16.0, SUBTITLE_Y), "start", &plot.subtitle);
    picture.legend(&mut out);
    picture.backgrounds(&mut out);
    picture.time_axis(&mut out);
    picture.rate(&mut out);
    picture.marks(&mut out);
    picture.labels(&mut out);
    picture.offsets(&mut out);
    out.push_str("</svg>\n");
    out
}

struct Picture<'a> {
    plot: &'a Plot,
    bands: Vec<Band>,
    height: f64,
    end_ms: f64,
}

impl<'a> Picture<'a> {
    fn new(plot: &'a Plot) -> Self {
        let rows = real(plot.rows.len() as u64);
        let height = (rows * ROW_HEIGHT).clamp(LEAST_HEIGHT, MOST_HEIGHT);
        let ends = plot.marks.iter().filter_map(end_ms);
        Self {
            plot,
            bands: layout::bands(plot, height),
            height,
            end_ms: ends.fold(1.0, f64::max),
        }
    }

    fn x(&self, time_ms: f64) -> f64 {
        LEFT + time_ms / self.end_ms * (WIDTH - LEFT - RIGHT)
    }

    fn drawable(&self) -> impl Iterator<Item = (&'a Mark, Band)> {
        self.plot.marks.iter().filter_map(|mark| {
            let band = self.bands.get(mark.row)?;
            let shown = mark.group < self.plot.groups.len() && end_ms(mark).is_some();
            shown.then_some((mark, *band))
        })
    }

    fn legend(&self, out: &mut String) {
        let mut x = 16.0;
        for (index, group) in self.plot.groups.iter().enumerate() {
            let group = end_of(group, LABEL_CHARS);
            let y = LEGEND_Y;
            rect(out, (x, y - 9.0, 10.0, 10.0), colour(index));
            text(out, "a", (x + 15.0, y), "start", &group);
            // A character of this size is some 6.3 pixels wide.
            x += 36.0 + 6.3 * real(group.chars().count() as u64);
        }
    }

    fn backgrounds(&self, out: &mut String) {
        for (index, band) in self.bands.iter().enumerate() {
            let shade = if index % 2 == 0 { "#f6f7f9" } else { "#fdfdfd" };
            let width = WIDTH - LEFT - RIGHT;
            rect(out, (LEFT, TOP + band.top, width, band.height), shade);
        }
    }

    fn time_axis(&self, out: &mut String) {
        let bottom = TOP + self.height;
        let (unit, unit_ms) = if self.end_ms < 2000.0 {
            ("ms", 1.0)
        } else {
            ("s", 1000.0)
        };
        for tick in layout::ticks(self.end_ms / unit_ms, 10.0) {
            let x = self.x(tick * unit_ms);
            line(out, "g", (x, RATE_TOP), (x, bottom));
            // Sums of binary fractions show their tails.
            let tick = (tick * 1000.0).round() / 1000.0;
            text(out, "a", (x, bottom + 16.0), "middle", &tick.to_string());
        }
        line(out, "x", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        let title = format!("time since the start, {unit}");
        text(
            out,
            "a",
            (f64::midpoint(LEFT, WIDTH - RIGHT), bottom + 36.0),
            "middle",
            &title,
        );
    }

    /// Bytes over time, above the bands.
    fn rate(&self, out: &mut String) {
        let slice_ms = self.end_ms / real(SLICES as u64);
        let mut bytes = [0.0; SLICES];
        for (mark, _) in self.drawable() {
            let slice = |time_ms: f64| usize::try_from(whole(time_ms / slice_ms)).unwrap_or(0);
            let first = slice(mark.time_ms).min(SLICES - 1);
            // A time bin of a plan is longer than a slice: nobody knows when in it.
            let last = slice(mark.time_ms + mark.lasts_ms).clamp(first, SLICES - 1);
            let part = real(mark.len) / real((last - first + 1) as u64);
            for sum in &mut bytes[first..=last] {
                *sum += part;
            }
        }
        let most = bytes.iter().copied().fold(1.0, f64::max);
        let bottom = RATE_TOP + RATE_HEIGHT;
        for (index, sum) in bytes.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            let x = self.x(slice_ms * real(index as u64));
            let height = (sum / most * RATE_HEIGHT).max(0.8);
            let width = self.x(slice_ms) - LEFT - 0.5;
            rect(out, (x, bottom - height, width, height), "#9aa7b4");
        }
        line(out, "x", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        let most = layout::bytes_text(u64::try_from(whole(most)).unwrap_or(0));
        let label = format!("at most {most} in {slice_ms:.0} ms");
        text(out, "a", (LEFT - 8.0, RATE_TOP + LINE), "end", &label);
    }

    /// One path for each colour. Marks that fall on the same pixels are drawn once, so the size of
    /// the picture is bounded.
    fn marks(&self, out: &mut String) {
        let mut paths = vec![String::new(); self.plot.groups.len()];
        let mut drawn = HashSet::new();
        for (mark, band) in self.drawable() {
            let bytes = band.bytes.max(1.0);
            let place = |offset: f64| (offset / bytes).min(1.0) * band.height;
            let height = place(real(mark.len)).max(MARK.min(band.height));
            let top = place(real(mark.offset)).min(band.height - height);
            let (x, y) = (self.x(mark.time_ms), TOP + band.top + top);
            let width = (self.x(mark.time_ms + mark.lasts_ms) - x).max(MARK);
            let pixels = [x, y, width, height].map(|value| whole(value * GRID));
            if drawn.insert((mark.group, pixels)) {
                let path = &mut paths[mark.group];
                let _ = write!(path, "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
            }
        }
        // The busiest group is drawn first, so that others are seen on top of it.
        for (index, path) in paths
            .iter()
            .enumerate()
            .filter(|(_, path)| !path.is_empty())
        {
            let fill = colour(index);
            let _ = writeln!(
                out,
                "<path fill=\"{fill}\" fill-opacity=\".88\" d=\"{path}\"/>"
            );
        }
    }

    fn labels(&self, out: &mut String) {
        for row in layout::labelled(&self.bands) {
            let label = &self.plot.rows[row];
            let y = TOP + self.bands[row].middle() + LINE / 3.0;
            let _ = writeln!(
                out,
                "<text class=\"l\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}<title>{}</title></text>",
                LEFT - 8.0,
                escape(&end_of(label, LABEL_CHARS)),
                escape(label),
            );
        }
    }

    /// Offsets at the right of bands that are high enough for them.
    fn offsets(&self, out: &mut String) {
        let mut any = false;
        for band in &self.bands {
            if band.height < OFFSETS_FROM {
                continue;
            }
            any = true;
            let bytes = band.bytes.max(1.0);
            for tick in layout::byte_ticks(bytes, band.height / 40.0) {
                let y = TOP + band.top + tick / bytes * band.height;
                let x = WIDTH - RIGHT;
                line(out, "x", (x, y), (x + 4.0, y));
                let label = layout::bytes_text(u64::try_from(whole(tick)).unwrap_or(0));
                text(out, "a", (x + 7.0, y + 4.0), "start", &label);
            }
        }
        if any {
            let y = TOP + self.height + 36.0;
            text(out, "a", (WIDTH - 8.0, y), "end", "offset in file");
        }
    }
}

/// Returns when a mark ends; nothing for one that no time can be made of.
fn end_ms(mark: &Mark) -> Option<f64> {
    let end = mark.time_ms + mark.lasts_ms;
    (mark.time_ms >= 0.0 && mark.lasts_ms >= 0.0 && end.is_finite()).then_some(end)
}

fn colour(group: usize) -> &'static str {
    PALETTE[group.min(PALETTE.len() - 1)]
}

fn rect(out: &mut String, (x, y, width, height): (f64, f64, f64, f64), fill: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.1}\" height=\"{height:.2}\" fill=\"{fill}\"/>"
    );
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = escape(content);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}

/// Returns the last `count` characters, with a sign that there were more.
fn end_of(text: &str, count: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    match chars.len().checked_sub(count) {
        None | Some(0) => text.to_owned(),
        Some(over) => format!("…{}", chars[over + 1..].iter().collect::<String>()),
    }
}

/// Returns text as SVG can hold it: XML knows no way to write control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            c => escaped.push(c),
        }
    }
    escaped
}
