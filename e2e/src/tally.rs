//! What readers saw.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Guest, Histogram};

/// How many wrong answers and failures are described; more say nothing new.
const DESCRIBED: usize = 8;

/// What readers asked, and what became of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Operations that gave what they must.
    pub right: u64,
    /// Operations that gave an error, by error number; 0 stands for what has none, such as a
    /// program that failed.
    pub failed: BTreeMap<i32, u64>,
    /// The first of those without a number, in words.
    pub said: Vec<String>,
    /// Operations that gave something else than they must: the first of them in words.
    pub wrong: Vec<String>,
    /// How many those were.
    pub wrong_count: u64,
    /// How long all of them took.
    pub took: Histogram,
    /// What guests saw, apart: how long they take is mostly theirs.
    pub guests: BTreeMap<Guest, Self>,
}

impl Tally {
    /// Notes one operation.
    pub fn note(&mut self, took: Duration, result: &Outcome) {
        self.took.note(took);
        match result {
            Ok(None) => self.right += 1,
            Ok(Some(wrong)) => {
                self.wrong_count += 1;
                if self.wrong.len() < DESCRIBED {
                    self.wrong.push(wrong.clone());
                }
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                if errno == 0 && self.said.len() < DESCRIBED {
                    self.said.push(error.to_string());
                }
                *self.failed.entry(errno).or_default() += 1;
            }
        }
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        self.right += other.right;
        for (errno, count) in &other.failed {
            *self.failed.entry(*errno).or_default() += count;
        }
        self.wrong_count += other.wrong_count;
        self.wrong.extend(other.wrong.iter().cloned());
        self.wrong.truncate(DESCRIBED);
        self.said.extend(other.said.iter().cloned());
        self.said.truncate(DESCRIBED);
        self.took.add(&other.took);
        for (guest, tally) in &other.guests {
            self.guests.entry(*guest).or_default().add(tally);
        }
    }

    /// Returns how many operations failed, those of guests included.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures_but(&[])
    }

    /// Returns how many failed with another error than these.
    #[must_use]
    pub fn failures_but(&self, allowed: &[i32]) -> u64 {
        let others = self
            .failed
            .iter()
            .filter(|(errno, _)| !allowed.contains(errno));
        let own: u64 = others.map(|(_, count)| count).sum();
        own + self.of_guests(|guest| guest.failures_but(allowed))
    }

    /// Returns how many operations gave something wrong, those of guests included.
    #[must_use]
    pub fn wrongs(&self) -> u64 {
        self.wrong_count + self.of_guests(Self::wrongs)
    }

    fn of_guests(&self, count: impl Fn(&Self) -> u64) -> u64 {
        self.guests.values().map(count).sum()
    }
}

/// What one operation gave: what it must, something wrong in words, or an error.
pub(crate) type Outcome = io::Result<Option<String>>;

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} right, {} failed, {} wrong; p50 {:?}, p99 {:?}, longest {:?}",
            self.right,
            self.failed.values().sum::<u64>(),
            self.wrong_count,
            self.took.quantile(500),
            self.took.quantile(990),
            self.took.max(),
        )?;
        for (errno, count) in &self.failed {
            let name = match errno {
                0 => "a program that failed or was killed".to_owned(),
                errno => io::Error::from_raw_os_error(*errno).to_string(),
            };
            write!(f, "\n      failed {count} times: {name}")?;
        }
        for said in &self.said {
            write!(f, "\n      said: {said}")?;
        }
        for wrong in &self.wrong {
            write!(f, "\n      wrong: {wrong}")?;
        }
        for (guest, tally) in &self.guests {
            write!(f, "\n      {guest:?}: {tally}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_tallies_are_added() {
        let eio = || io::Error::from_raw_os_error(5);
        let mut one = Tally::default();
        one.note(Duration::ZERO, &Ok(None));
        one.note(Duration::ZERO, &Err(eio()));
        let mut all = Tally::default();
        for _ in 0..10 {
            all.note(Duration::ZERO, &Ok(Some("a zero".to_owned())));
        }
        all.note(Duration::ZERO, &Err(io::ErrorKind::Other.into()));
        all.add(&one);
        assert_eq!((all.right, all.failures(), all.wrong_count), (1, 2, 10));
        assert_eq!(all.failures_but(&[5]), 1);
        assert_eq!(all.wrong.len(), DESCRIBED);
        assert_eq!(all.took.count(), 13);
    }

    #[test]
    fn what_guests_saw_counts() {
        let mut guest = Tally::default();
        guest.note(Duration::ZERO, &Ok(Some("a zero".to_owned())));
        guest.note(Duration::ZERO, &Err(io::Error::other("no such file")));
        let mut all = Tally::default();
        for _ in 0..2 {
            let guests = BTreeMap::from([(Guest::Vm, guest.clone())]);
            all.add(&Tally {
                guests,
                ..Tally::default()
            });
        }
        assert_eq!((all.failures(), all.wrongs()), (2, 2));
        assert_eq!(all.wrong_count, 0, "its own");
        assert!(all.to_string().contains("Vm: 0 right, 2 failed"), "{all}");
    }
}
