//! A list of comparisons, carried out.

use anyhow::Context as _;

use crate::boots::{Disk, Lab, Mode, Sample, Subject};
use crate::rounds::Shuffle;
use crate::throttle::Throttle;

/// Modes against each other, for one subject under one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// What boots.
    pub subject: Subject,
    /// What the disk does meanwhile.
    pub disk: Disk,
    /// How often each mode takes its turn.
    pub rounds: u32,
}

/// Carries out the comparisons, and tells each sample to `heard` as it comes.
///
/// # Errors
/// If a sample fails, or the disk cannot be slowed down.
pub fn run(
    lab: &Lab,
    comparisons: &[Comparison],
    mut heard: impl FnMut(&Sample),
) -> anyhow::Result<Vec<Sample>> {
    let mut shuffle = Shuffle::from_clock();
    let mut samples = Vec::new();
    for comparison in comparisons {
        let Comparison {
            subject,
            disk,
            rounds,
        } = *comparison;
        let throttle = throttle(lab, disk).context("slowing the disk down")?;
        for round in 1..=rounds {
            for mode in shuffle.order(&Mode::ALL) {
                let sample = lab
                    .sample(subject, (disk, throttle.as_ref()), mode, round)
                    .with_context(|| format!("{subject}, {disk}, {mode}, round {round}"))?;
                heard(&sample);
                samples.push(sample);
            }
        }
    }
    Ok(samples)
}

/// Limits the stage's disk as `disk` says.
///
/// # Errors
/// If this machine cannot; the message says why.
pub fn throttle(lab: &Lab, disk: Disk) -> anyhow::Result<Option<Throttle>> {
    match disk {
        Disk::Idle => Ok(None),
        Disk::Slow(iops) | Disk::Contended(iops) => {
            Throttle::new(&lab.stage().device_number()?, iops).map(Some)
        }
    }
}
