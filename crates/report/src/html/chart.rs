//! The parts of a picture that fits any width.
//!
//! A picture has no `viewBox`: places across are percentages of the width, heights are pixels. So
//! bars get wider with the window while letters and lines stay as they are.

use super::markup::{Attribute, Markup};
use super::numbers;

/// How many layers have a colour of their own; the last colour is for all others.
pub(super) const OWN_COLOURS: usize = 7;

/// A layer's colour: a class of the style sheet.
pub(super) const fn colour(layer: usize) -> &'static str {
    const CLASSES: [&str; OWN_COLOURS + 1] = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"];
    CLASSES[if layer < OWN_COLOURS {
        layer
    } else {
        OWN_COLOURS
    }]
}

/// Returns a part of the width as an attribute's value.
pub(super) fn across(part: f64) -> String {
    let percent = (part * 100.0).clamp(0.0, 100.0);
    format!("{percent:.2}%")
}

/// Writes a picture, with a text alternative.
pub(super) fn picture(
    out: &mut Markup,
    height: u32,
    words: &str,
    inside: impl FnOnce(&mut Markup),
) {
    let height = height.to_string();
    let attributes = [
        ("class", "chart"),
        ("width", "100%"),
        ("height", &*height),
        ("role", "img"),
        ("aria-label", words),
    ];
    out.tag("svg", &attributes, inside);
}

/// A rectangle: places across in parts of the width, heights in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) top: f64,
    pub(super) height: f64,
}

impl Bar {
    /// Returns the bar between two places across.
    pub(super) const fn new((from, to): (f64, f64), top: f64, height: f64) -> Self {
        Self {
            from,
            to,
            top,
            height,
        }
    }
}

pub(super) fn bar(out: &mut Markup, class: &str, bar: Bar) {
    let (x, width) = (across(bar.from), across(bar.to - bar.from));
    let (y, height) = (format!("{:.1}", bar.top), format!("{:.1}", bar.height));
    let place = [
        ("class", class),
        ("x", &*x),
        ("y", &*y),
        ("width", &*width),
        ("height", &*height),
    ];
    out.void("rect", &place);
}

/// Writes a line from top to bottom.
pub(super) fn upright(out: &mut Markup, class: &str, at: f64, (top, bottom): (f64, f64)) {
    let x = across(at);
    let (top, bottom) = (format!("{top:.1}"), format!("{bottom:.1}"));
    let place = [
        ("class", class),
        ("x1", &*x),
        ("x2", &*x),
        ("y1", &*top),
        ("y2", &*bottom),
    ];
    out.void("line", &place);
}

/// Writes a line from left to right.
pub(super) fn level(out: &mut Markup, class: &str, y: f64, (from, to): (f64, f64)) {
    let (from, to, y) = (across(from), across(to), format!("{y:.1}"));
    let place = [
        ("class", class),
        ("x1", &*from),
        ("x2", &*to),
        ("y1", &*y),
        ("y2", &*y),
    ];
    out.void("line", &place);
}

/// Writes a label that begins, is centred, or ends at a place, so that it stays in the picture.
pub(super) fn label(out: &mut Markup, class: &str, at: f64, y: f64, text: &str) {
    let anchor = match at {
        at if at < 0.06 => "start",
        at if at > 0.94 => "end",
        _ => "middle",
    };
    let (x, y) = (across(at), format!("{y:.1}"));
    let place: [Attribute<'_>; 4] = [
        ("class", class),
        ("x", &x),
        ("y", &y),
        ("text-anchor", anchor),
    ];
    out.leaf("text", &place, text);
}

/// Writes the axis of time: lines upright through the picture from `top` to `bottom`, and times
/// below.
pub(super) fn time_axis(out: &mut Markup, end_ms: f64, (top, bottom): (f64, f64)) {
    for ms in ticks(end_ms) {
        upright(out, "grid", ms / end_ms, (top, bottom));
        let text = match ms {
            0.0 => "0".to_owned(),
            ms if end_ms < 2000.0 => format!("{} ms", tidy(ms)),
            ms => format!("{} s", tidy(ms / 1e3)),
        };
        label(out, "axis", ms / end_ms, bottom + 14.0, &text);
    }
    level(out, "base", bottom, (0.0, 1.0));
}

/// Writes lines across for `most` at `top` and for half of it, with labels.
pub(super) fn byte_axis(out: &mut Markup, most: u64, (top, bottom): (f64, f64)) {
    for y in [top, f64::midpoint(top, bottom)] {
        level(out, "grid", y, (0.0, 1.0));
    }
    label(out, "axis", 0.0, top - 5.0, &numbers::bytes(most));
}

/// Returns round numbers from 0 to `end`, five or so: more would touch each other on a phone.
fn ticks(end: f64) -> Vec<f64> {
    let raw = (end / 5.0).max(1e-3);
    let power = 10_f64.powf(raw.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= raw).unwrap_or(raw);
    let at = |index: u32| f64::from(index) * step;
    (0..12).map(at).take_while(|tick| *tick <= end).collect()
}

/// Returns a number without the tail that sums of binary fractions have.
fn tidy(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_few_round_numbers() {
        assert_eq!(ticks(1000.0), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(ticks(7.0), [0.0, 2.0, 4.0, 6.0]);
        for end in [0.0, 1e-9, 3.3, 1e12, f64::MAX] {
            assert!(ticks(end).len() <= 12, "{end}");
        }
    }

    #[test]
    fn places_stay_in_the_picture() {
        assert_eq!(across(0.123_456), "12.35%");
        assert_eq!(across(-1.0), "0.00%");
        assert_eq!(across(7.0), "100.00%");
        assert_eq!(colour(3), "c3");
        assert_eq!(colour(7), "c7");
        assert_eq!(colour(usize::MAX), "c7");
    }
}
