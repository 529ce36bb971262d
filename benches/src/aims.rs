//! The aims of boots, beside what was measured.

pub use crate::aim::{Aim, Good};
use crate::boots::{Disk, Mode, Sample, Subject};
use crate::report::{count, fuse_reads, median_of, ready, select};

/// Returns the aims that whole boots answer to, for the conditions that were measured.
#[must_use]
pub fn of_boots(samples: &[Sample]) -> Vec<Aim> {
    let mut groups: Vec<_> = samples
        .iter()
        .map(|sample| (sample.subject, sample.disk))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
        .into_iter()
        .flat_map(|(subject, disk)| of_group(samples, subject, disk))
        .collect()
}

fn of_group(samples: &[Sample], subject: Subject, disk: Disk) -> Vec<Aim> {
    let [cold, ours, warm] = [Mode::NativeCold, Mode::Yolofs, Mode::NativeWarm]
        .map(|mode| select(samples, subject, disk, mode));
    let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
    let to_warm = ratio(ready(&ours), ready(&warm));
    let name = |what: &str| format!("{subject}, {disk}: {what}");
    match (subject, disk) {
        (Subject::Container, Disk::Contended(_)) => {
            let worst = ours
                .iter()
                .filter_map(|sample| fuse_reads(sample))
                .max()
                .map(count);
            vec![
                Aim::at_most(1.10, name("time to native warm"), to_warm),
                Aim::at_least(
                    50.0,
                    name("native cold to our time"),
                    ratio(ready(&cold), ready(&ours)),
                ),
                Aim::at_most(0.0, name("READ requests of the worst boot"), worst),
            ]
        }
        (Subject::Vm(_), Disk::Slow(_)) => {
            let reads = |of| median_of(of, |sample| Some(count(sample.disk_reads)));
            let percent = ratio(reads(&ours), reads(&cold)).map(|share| share * 100.0);
            vec![
                Aim::at_most(2.0, name("disk reads in % of native cold"), percent),
                Aim::at_most(1.15, name("time to native warm"), to_warm),
            ]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_of_a_limit() {
        assert_eq!(Aim::at_most(1.0, "x", Some(1.0)).reached(), Some(true));
        assert_eq!(Aim::at_most(1.0, "x", Some(1.1)).reached(), Some(false));
        assert_eq!(Aim::at_least(1.0, "x", Some(0.9)).reached(), Some(false));
        assert_eq!(Aim::at_least(1.0, "x", None).reached(), None);
    }

    fn sample(mode: Mode, ready_ms: f64, disk_reads: u64, subject: Subject, disk: Disk) -> Sample {
        let fuse_requests = (mode == Mode::Yolofs).then(|| [("read".to_owned(), 1)].into());
        Sample {
            subject,
            disk,
            mode,
            round: 1,
            ready_ms,
            prepare_ms: 0.0,
            disk_reads,
            disk_bytes: 0,
            guest_reads: None,
            fuse_requests,
        }
    }

    #[test]
    fn aims_of_a_container_on_a_contended_disk() {
        let of = |mode, ms| sample(mode, ms, 0, Subject::Container, Disk::Contended(150));
        let samples = [
            of(Mode::NativeCold, 600.0),
            of(Mode::Yolofs, 10.0),
            of(Mode::NativeWarm, 8.0),
        ];
        let measured: Vec<_> = of_boots(&samples)
            .into_iter()
            .map(|aim| (aim.measured, aim.reached()))
            .collect();
        let expected = [
            (Some(1.25), Some(false)),
            (Some(60.0), Some(true)),
            (Some(1.0), Some(false)),
        ];
        assert_eq!(measured, expected);
    }

    #[test]
    fn aims_of_a_machine_on_a_slow_disk() {
        let of = |mode, reads| {
            sample(
                mode,
                5.0,
                reads,
                Subject::Vm(crate::vm::Cache::None),
                Disk::Slow(50),
            )
        };
        let aims = of_boots(&[of(Mode::NativeCold, 200), of(Mode::Yolofs, 3)]);
        assert_eq!(aims[0].measured, Some(1.5));
        assert_eq!(aims[1].reached(), None);
    }
}
