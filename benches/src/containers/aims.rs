//! The aims of container starts, beside what was measured.

use super::sample::{Group, Sample, Way};
use crate::aims::Aim;
use crate::boots::Disk;
use crate::report::count;

/// Returns the aims of each group that was measured on a contended disk.
#[must_use]
pub fn of_samples(samples: &[Sample]) -> Vec<Aim> {
    let groups = Group::all(samples);
    let contended = groups
        .iter()
        .filter(|group| matches!(group.disk, Disk::Contended(_)));
    contended.flat_map(of_group).collect()
}

fn of_group(group: &Group<'_>) -> Vec<Aim> {
    let measured = |way| group.ready(way).is_some();
    let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
    let name = |what: &str| format!("{}: {what}", group.subject);
    let [cold, ours, warm] = Way::COMPARED.map(|way| group.ready(way));
    let faster = ratio(cold, ours);
    if measured(Way::Recording) {
        let to_cold = ratio(group.ready(Way::Recording), cold);
        return vec![Aim::at_most(
            1.15,
            name("recorded first start to native cold"),
            to_cold,
        )];
    }
    let Some(program) = group.program(Way::Yolofs) else {
        return vec![Aim::at_least(4.0, name("native cold to our time"), faster)];
    };
    let program = ratio(Some(program), group.program(Way::NativeWarm));
    let reads = group.median(Way::Yolofs, |sample| sample.fuse_reads().map(count));
    vec![
        Aim::at_most(1.25, name("time to native warm"), ratio(ours, warm)),
        Aim::at_most(
            1.05,
            name("the program's part, which reads, to native warm"),
            program,
        ),
        Aim::at_least(5.0, name("native cold to our time"), faster),
        Aim::at_most(0.0, name("READ requests to the daemon, median"), reads),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::sample;
    use super::*;

    #[test]
    fn an_image_has_three_limits_and_a_count() {
        let samples = [
            sample("nginx", Way::NativeCold, 5000.0, 4000.0),
            sample("nginx", Way::Yolofs, 500.0, 100.0),
            sample("nginx", Way::NativeWarm, 400.0, 100.0),
        ];
        let measured: Vec<_> = of_samples(&samples)
            .into_iter()
            .map(|aim| (aim.measured, aim.reached()))
            .collect();
        let expected = [
            (Some(1.25), Some(true)),
            (Some(1.0), Some(true)),
            (Some(10.0), Some(true)),
            (Some(0.0), Some(true)),
        ];
        assert_eq!(measured, expected);
    }

    #[test]
    fn a_recording_is_held_against_a_cold_start() {
        let samples = [
            sample("first start of nginx", Way::NativeCold, 1000.0, 900.0),
            sample("first start of nginx", Way::Recording, 1300.0, 900.0),
        ];
        let aims = of_samples(&samples);
        assert_eq!(
            (aims.len(), aims[0].measured, aims[0].reached()),
            (1, Some(1.3), Some(false))
        );
    }
}
