//! A picture of the table: time over round trip, a panel for each rate.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::sample::{Point, Sample, Way};
use super::table::Measured;
use crate::report::count;

/// Pixels of a panel, and of the room around it.
const WIDTH: f64 = 230.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const GAP: f64 = 20.0;
const BELOW: f64 = 60.0;
/// Times below and above are not drawn: tenths of a second to minutes.
const LOW_MS: f64 = 100.0;
const HIGH_MS: f64 = 100_000.0;

/// The ways that are drawn, with their colours.
const WAYS: [(Way, &str); 3] = [
    (Way::BootImage, "#1b7837"),
    (Way::OnDemand, "#2166ac"),
    (Way::Recording, "#b2182b"),
];
const FLOOR: &str = "#888888";

/// Draws what was measured, as SVG.
#[must_use]
pub fn svg(measured: &Measured<'_>) -> String {
    let points = measured.points();
    let rates: BTreeSet<u64> = points.iter().map(|point| point.mbit).collect();
    let trips: Vec<u64> = points
        .iter()
        .map(|point| point.rtt_ms)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let panels = count(rates.len() as u64);
    let width = LEFT + panels * (WIDTH + GAP);
    let height = TOP + HEIGHT + BELOW;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for decade in [100.0, 1_000.0, 10_000.0, 100_000.0] {
        label(
            &mut text,
            LEFT - 6.0,
            y(decade) + 4.0,
            "end",
            &format!("{} s", decade / 1e3),
        );
    }
    for (index, mbit) in rates.iter().enumerate() {
        let left = LEFT + count(index as u64) * (WIDTH + GAP);
        panel(&mut text, measured, left, *mbit, &trips);
    }
    legend(&mut text, height - 14.0);
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, measured: &Measured<'_>, left: f64, mbit: u64, trips: &[u64]) {
    let step = WIDTH / count(trips.len().max(2) as u64 - 1);
    let x = |index: usize| left + count(index as u64) * step;
    label(
        text,
        left + WIDTH / 2.0,
        TOP - 12.0,
        "middle",
        &format!("{mbit} Mbit/s"),
    );
    for decade in [100.0, 1_000.0, 10_000.0, 100_000.0] {
        line(
            text,
            &[(left, y(decade)), (left + WIDTH, y(decade))],
            "#dddddd",
            "",
        );
    }
    for (index, trip) in trips.iter().enumerate() {
        label(
            text,
            x(index),
            TOP + HEIGHT + 16.0,
            "middle",
            &format!("{trip} ms"),
        );
    }
    let at = |index: usize| Point {
        rtt_ms: trips[index],
        mbit,
    };
    let all = 0..trips.len();
    let floor: Vec<_> = all
        .clone()
        .map(|index| (x(index), y(measured.floor.ms(at(index)))))
        .collect();
    line(text, &floor, FLOOR, "4 3");
    for (way, colour) in WAYS {
        let place = |index| {
            let ms = measured.median(way, at(index), Sample::from_call_ms)?;
            Some((x(index), y(ms)))
        };
        let places: Vec<_> = all.clone().filter_map(place).collect();
        line(text, &places, colour, "");
        for (x, y) in places {
            // Writing to a string does not fail.
            let _written = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
    }
}

fn legend(text: &mut String, at: f64) {
    let ways = WAYS.map(|(way, colour)| (format!("{way}, from the call"), colour));
    let floor = ("floor".to_owned(), FLOOR);
    for (index, (what, colour)) in ways.into_iter().chain([floor]).enumerate() {
        let x = LEFT + count(index as u64) * 200.0;
        line(text, &[(x, at - 4.0), (x + 20.0, at - 4.0)], colour, "");
        label(text, x + 26.0, at, "start", &what);
    }
}

/// The height of a time, on a logarithmic axis.
fn y(ms: f64) -> f64 {
    let share = (ms.clamp(LOW_MS, HIGH_MS) / LOW_MS).log10() / (HIGH_MS / LOW_MS).log10();
    TOP + HEIGHT * (1.0 - share)
}

fn line(text: &mut String, places: &[(f64, f64)], colour: &str, dashes: &str) {
    let places: Vec<_> = places
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _written = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" \
         stroke-dasharray=\"{dashes}\"/>",
        places.join(" ")
    );
}

fn label(text: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let _written = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::sample::{Floor, Wire};

    #[test]
    fn each_sample_is_a_point_of_its_panel() {
        let samples = [25, 1000].map(|mbit| Sample {
            way: Way::OnDemand,
            point: Point { rtt_ms: 20, mbit },
            mount_ms: 0.0,
            after_ms: 1_000.0,
            each_ms: vec![],
            daemon_cpu_ms: 0.0,
            wire: Wire::default(),
            status: serde_json::Value::Null,
        });
        let measured = Measured {
            samples: &samples,
            floor: Floor::default(),
        };
        let drawn = svg(&measured);
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(drawn.contains(">25 Mbit/s<") && drawn.contains(">1000 Mbit/s<"));
        assert_eq!(y(1_000_000.0), TOP);
    }
}
