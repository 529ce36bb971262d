//! A picture of the table: time over round trip, a panel for each rate.

use std::collections::BTreeSet;

use super::sample::{Point, Sample, Way};
use super::table::Measured;
use crate::chart::{COLOURS, Chart, Line, Panel, Scale};

/// Milliseconds below and above are not drawn: tenths of a second to minutes.
const SCALE: Scale = Scale::Logarithmic(100.0, 100_000.0);

/// The ways that are drawn, with their colours.
const WAYS: [(Way, &str); 3] = [
    (Way::BootImage, COLOURS[2]),
    (Way::OnDemand, COLOURS[1]),
    (Way::Recording, COLOURS[0]),
];

/// Draws what was measured, as SVG.
#[must_use]
pub fn svg(measured: &Measured<'_>) -> String {
    let points = measured.points();
    let rates: BTreeSet<u64> = points.iter().map(|point| point.mbit).collect();
    let trips: BTreeSet<u64> = points.iter().map(|point| point.rtt_ms).collect();
    let panels = rates.into_iter().map(|mbit| panel(measured, mbit, &trips));
    let chart = Chart {
        scale: SCALE,
        unit: "ms",
        panels: panels.collect(),
    };
    chart.svg()
}

fn panel(measured: &Measured<'_>, mbit: u64, trips: &BTreeSet<u64>) -> Panel {
    let at = |rtt_ms: &u64| Point {
        rtt_ms: *rtt_ms,
        mbit,
    };
    let floor = Line {
        name: "floor".to_owned(),
        colour: COLOURS[5],
        is_reference: true,
        heights: trips
            .iter()
            .map(|trip| Some(measured.floor.ms(at(trip))))
            .collect(),
    };
    let ways = WAYS.map(|(way, colour)| Line {
        name: format!("{way}, from the call"),
        colour,
        is_reference: false,
        heights: trips
            .iter()
            .map(|trip| measured.median(way, at(trip), Sample::from_call_ms))
            .collect(),
    });
    Panel {
        title: format!("{mbit} Mbit/s"),
        marks: trips.iter().map(|trip| format!("{trip} ms")).collect(),
        lines: ways.into_iter().chain([floor]).collect(),
    }
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
    }
}
