//! Selects the latest records when there are too many.

/// Which records stay. As many go as it takes for the next to be late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latest {
    /// The oldest that stay are of this time.
    since: u64,
    /// How many of that time are still to be taken.
    left: usize,
}

impl Latest {
    /// Looks through the times of all records, and lets all of them stay if there are no more than
    /// `most`, else the latest three quarters of as many.
    ///
    /// # Errors
    /// The first of the times' own.
    pub(super) fn of<E>(times: impl Iterator<Item = Result<u64, E>>, most: u64) -> Result<Self, E> {
        let mut times = times.collect::<Result<Vec<_>, _>>()?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if times.len() <= most {
            let (since, left) = (0, usize::MAX);
            return Ok(Self { since, left });
        }
        let stay = most / 4 * 3;
        let (later, since, _) = times.select_nth_unstable_by(stay, |a, b| b.cmp(a));
        let since = *since;
        let later = later.iter().filter(|time| **time > since).count();
        let left = stay - later;
        Ok(Self { since, left })
    }

    /// Returns whether a record of this time stays.
    pub(super) const fn takes(&mut self, time: u64) -> bool {
        if time == self.since && self.left > 0 {
            self.left -= 1;
            return true;
        }
        time > self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_stay() {
        let stay = |times: &[u64], most| {
            let all = times.iter().map(|time| Ok::<_, ()>(*time));
            let mut latest = Latest::of(all, most).unwrap();
            let stay = times.iter().copied().filter(|time| latest.takes(*time));
            stay.collect::<Vec<_>>()
        };
        assert_eq!(stay(&[3, 0, 2], 3), [3, 0, 2]);
        assert_eq!(stay(&[5, 1, 4, 2, 3], 4), [5, 4, 3]);
        assert_eq!(stay(&[7, 7, 7, 8, 7, 7], 4), [7, 7, 8]);
        assert!(stay(&[1, 2], 0).is_empty());
        assert!(stay(&[], 0).is_empty());
    }
}
