//! Ways to start the same containers, in turns.

use super::lab::{ContainerLab, Start};
use super::program::Program;
use super::sample::{Sample, Way};
use crate::boots::Disk;
use crate::rounds::Shuffle;

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Comparison<'a> {
    /// What the report calls it.
    pub subject: &'a str,
    /// One container of each of these, all at once.
    pub programs: &'a [Program],
    /// What the disk does meanwhile.
    pub disk: Disk,
    /// From where the images are served.
    pub ways: &'a [Way],
    /// How often each way takes its turn.
    pub rounds: u32,
}

impl Comparison<'_> {
    /// Has the ways take turns, in an order that is shuffled anew each round, and tells each
    /// sample to `heard` as it comes.
    ///
    /// # Errors
    /// If a sample fails.
    pub fn run(&self, lab: &ContainerLab, mut heard: impl FnMut(Sample)) -> anyhow::Result<()> {
        let mut shuffle = Shuffle::from_clock();
        for round in 1..=self.rounds {
            for way in shuffle.order(self.ways) {
                heard(lab.sample(&Start {
                    subject: self.subject,
                    programs: self.programs,
                    disk: self.disk,
                    way,
                    round,
                })?);
            }
        }
        Ok(())
    }
}
