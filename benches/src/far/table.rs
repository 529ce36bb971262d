//! What was measured, as tables and beside what is asked for.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::sample::{Floor, Point, Sample, Way};
use crate::aims::Aim;
use crate::report::count;
use crate::rounds::median;

/// The line of the aims that are for one line only.
const USUAL: Point = Point {
    rtt_ms: 20,
    mbit: 1000,
};

/// All samples of a run, with their floor.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// What no start can beat.
    pub floor: Floor,
}

impl Measured<'_> {
    /// Returns the median of something over the samples of a way on a line.
    #[must_use]
    pub fn median(&self, way: Way, point: Point, of: impl Fn(&Sample) -> f64) -> Option<f64> {
        let mine = |sample: &&Sample| sample.way == way && sample.point == point;
        let values: Vec<f64> = self.samples.iter().filter(mine).map(of).collect();
        median(&values)
    }

    /// Returns all ways that were measured.
    #[must_use]
    pub fn ways(&self) -> BTreeSet<Way> {
        self.samples.iter().map(|sample| sample.way).collect()
    }

    /// Returns all lines that were measured.
    #[must_use]
    pub fn points(&self) -> BTreeSet<Point> {
        self.samples.iter().map(|sample| sample.point).collect()
    }

    /// Writes one table for each way, in Markdown: a row for each line.
    #[must_use]
    pub fn markdown(&self) -> String {
        let Floor {
            own_ms,
            touched_bytes,
            touched_chunks,
        } = self.floor;
        let mut text = format!(
            "Floor: the programs' own time, {own_ms:.0} ms, or the transfer of the {touched_chunks} chunks \
             that they touch, {:.1} MB as they are stored, whichever is more.\n",
            count(touched_bytes) / 1e6
        );
        for way in self.ways() {
            self.write_table(way, &mut text);
        }
        text
    }

    fn write_table(&self, way: Way, text: &mut String) {
        // Writing to a string does not fail.
        let _written = write!(
            text,
            "\n{way}, medians:\n\n\
             | round trip | Mbit/s | from the call | after the mount | to the floor | MB | requests | twice |\n\
             | --: | --: | --: | --: | --: | --: | --: | --: |\n"
        );
        for point in self.points() {
            let of = |what: fn(&Sample) -> f64| self.median(way, point, what);
            let Some(call) = of(Sample::from_call_ms) else {
                continue;
            };
            let [after, down, requests, twice] = [
                of(|sample| sample.after_ms),
                of(|sample| count(sample.wire.down) / 1e6),
                of(|sample| count(sample.wire.requests)),
                of(|sample| count(sample.wire.twice)),
            ]
            .map(Option::unwrap_or_default);
            let Point { rtt_ms, mbit } = point;
            let to_floor = match way {
                // Its floor is another one.
                Way::Files => String::new(),
                _ => format!("{:.2}", call / self.floor.ms(point)),
            };
            let _written = writeln!(
                text,
                "| {rtt_ms} ms | {mbit} | {call:.0} ms | {after:.0} ms | {to_floor} | {down:.1} | \
                 {requests:.0} | {twice:.0} |"
            );
        }
    }

    /// Returns the aims, beside what was measured.
    #[must_use]
    pub fn aims(&self) -> Vec<Aim> {
        let usual = |way, of: fn(&Sample) -> f64| self.median(way, USUAL, of);
        let ms = |what: &str| format!("ms, {what}, {USUAL}");
        let boot = Way::BootImage;
        let touched = count(self.floor.touched_bytes);
        let bytes = usual(boot, |sample| count(sample.wire.down)).map(|down| down / touched);
        let near = self.points().into_iter().find(|point| point.rtt_ms == 0);
        let after = near.and_then(|near| self.median(boot, near, |sample| sample.after_ms));
        let mut aims = vec![
            Aim::at_most(
                320.0,
                ms("boot image, after the mount"),
                usual(boot, |sample| sample.after_ms),
            ),
            Aim::at_most(
                420.0,
                ms("boot image, from the call"),
                usual(boot, Sample::from_call_ms),
            ),
            Aim::at_most(
                1000.0,
                ms("on demand, from the call"),
                usual(Way::OnDemand, Sample::from_call_ms),
            ),
            Aim::at_most(
                3000.0,
                ms("2 000 random files"),
                usual(Way::Files, |sample| sample.after_ms),
            ),
            Aim::at_most(
                1.05,
                format!("bytes to the touched chunks', {USUAL}"),
                bytes,
            ),
            Aim::at_most(
                12.0,
                format!("requests before the last program ends, {USUAL}"),
                usual(boot, |sample| count(sample.wire.requests)),
            ),
            Aim::at_most(
                1.15,
                "no delay, after the mount, to native warm",
                after.map(|after| after / self.floor.own_ms),
            ),
        ];
        let recording = usual(Way::Recording, Sample::from_call_ms);
        let unrecorded = usual(Way::OnDemand, Sample::from_call_ms);
        let ratio = recording
            .zip(unrecorded)
            .map(|(with, without)| with / without);
        aims.push(Aim::at_most(
            1.3,
            format!("first recording to on demand, {USUAL}"),
            ratio,
        ));
        let points = self.points();
        let worst = points.iter().filter_map(|point| {
            let call = self.median(boot, *point, Sample::from_call_ms)?;
            Some(call / self.floor.ms(*point))
        });
        aims.push(Aim::at_most(
            1.3,
            "boot image, from the call, to the floor, worst line",
            worst.reduce(f64::max),
        ));
        let again = self.samples.iter().map(|sample| count(sample.wire.twice));
        aims.push(Aim::at_most(
            0.0,
            "chunks that came twice, worst start",
            again.reduce(f64::max),
        ));
        aims
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::far::sample::Wire;

    fn sample(way: Way, after_ms: f64) -> Sample {
        Sample {
            way,
            point: USUAL,
            mount_ms: 100.0,
            after_ms,
            each_ms: vec![],
            daemon_cpu_ms: 0.0,
            wire: Wire {
                down: 11_000_000,
                requests: 9,
                twice: 1,
                ..Wire::default()
            },
            status: serde_json::Value::Null,
        }
    }

    #[test]
    fn tables_and_aims_are_of_medians() {
        let samples = [
            sample(Way::BootImage, 300.0),
            sample(Way::BootImage, 900.0),
            sample(Way::BootImage, 310.0),
        ];
        let floor = Floor {
            own_ms: 205.0,
            touched_bytes: 10_000_000,
            touched_chunks: 500,
        };
        let measured = Measured {
            samples: &samples,
            floor,
        };
        let text = measured.markdown();
        let row = "| 20 ms | 1000 | 410 ms | 310 ms | 2.00 | 11.0 | 9 | 1 |";
        assert!(text.contains(row), "{text}");
        let aims = measured.aims();
        assert_eq!(aims[0].measured, Some(310.0));
        assert_eq!(
            (aims[1].measured, aims[1].reached()),
            (Some(410.0), Some(true))
        );
        assert_eq!(aims[2].measured, None);
        assert_eq!(aims[4].measured, Some(1.1));
        assert_eq!(aims[9].reached(), Some(false));
    }
}
