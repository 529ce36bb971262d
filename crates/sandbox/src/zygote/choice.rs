//! Which Zygote a sandbox is forked from, and when one more is made: decided without any I/O.
//!
//! A sandbox is forked only from a Zygote all of whose packages it requested, in exactly these versions.
//! So a package can affect only interpreters that would have imported it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::packages::Packages;

/// The properties of a Zygote for the choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Candidate<'a> {
    pub(crate) packages: &'a Packages,
    /// How long its packages took to import, in milliseconds.
    pub(crate) import_ms: f64,
    /// Sandboxes that were forked from it.
    pub(crate) forks: u64,
}

/// Returns which candidate saves most imports of those that may be used, and of equal ones that which
/// was used least. One that has all packages of another saves as much, whatever was measured.
pub(crate) fn best(needs: &Packages, candidates: &[Candidate<'_>]) -> Option<usize> {
    let usable: Vec<_> = candidates
        .iter()
        .enumerate()
        .filter(|(_, candidate)| candidate.packages.is_subset(needs))
        .collect();
    let saved = |of: &Candidate<'_>| {
        let within = usable.iter();
        let within = within.filter(|(_, other)| other.packages.is_subset(of.packages));
        within.map(|(_, other)| other.import_ms).fold(0.0, f64::max)
    };
    let better = |a: &Candidate<'_>, b: &Candidate<'_>| {
        let by_time = saved(a).total_cmp(&saved(b));
        let by_count = a.packages.len().cmp(&b.packages.len());
        by_time.then(by_count).then(b.forks.cmp(&a.forks))
    };
    let best = usable.iter().max_by(|(_, a), (_, b)| better(a, b));
    best.map(|(place, _)| *place)
}

/// Returns which Zygotes to make for a repeated need, each forked from the one before or from the best
/// existing one: one for the need itself, and maybe first one for the packages that it shares with another
/// repeated need.
pub(crate) fn plan(
    needs: &Packages,
    there: &[Candidate<'_>],
    others: &[Packages],
) -> Vec<Packages> {
    let has = best(needs, there).map(|place| there[place].packages);
    let nothing = Packages::new();
    let has = has.unwrap_or(&nothing);
    let common = others.iter().filter(|other| *other != needs);
    let common = common.map(|other| other.intersection(needs).cloned().collect::<Packages>());
    let more =
        common.filter(|set| has.is_subset(set) && set.len() > has.len() && set.len() < needs.len());
    let mut chain: Vec<Packages> = more.max_by_key(Packages::len).into_iter().collect();
    chain.push(needs.clone());
    chain
}

/// How long a need is remembered.
const MEMORY: Duration = Duration::from_secs(600);

/// Needs that are remembered at a time.
const NEEDS_MAX: usize = 4096;

/// The needs of the last time, so that a Zygote is made for one that comes again, and not for each.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    last: HashMap<Packages, Seen>,
}

/// When a need was seen last, and whether it was then seen again.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    again: bool,
}

impl Needs {
    /// Records a need. Returns whether it came before, a short time ago.
    pub(crate) fn comes_again(&mut self, needs: &Packages, now: Instant) -> bool {
        let is_recent = |seen: &Seen| now.duration_since(seen.at) < MEMORY;
        if self.last.len() >= NEEDS_MAX {
            self.last.retain(|_, seen| is_recent(seen));
        }
        if self.last.len() >= NEEDS_MAX {
            self.last.clear();
        }
        let again = self.last.get(needs).is_some_and(is_recent);
        self.last.insert(needs.clone(), Seen { at: now, again });
        again
    }

    /// Returns the needs that came again, a short time ago.
    pub(crate) fn hot(&self, now: Instant) -> Vec<Packages> {
        let hot = self.last.iter();
        let hot = hot.filter(|(_, seen)| seen.again && now.duration_since(seen.at) < MEMORY);
        hot.map(|(needs, _)| needs.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    /// Few names and versions, so that sets overlap.
    fn packages() -> impl Strategy<Value = Packages> {
        let package = (0..5, 1..3).prop_map(|(name, version)| format!("p{name}=={version}"));
        btree_set(package, 0..6)
    }

    proptest! {
        /// Whatever there is to choose from, nobody descends from what it did not ask for, and nothing
        /// that may be used would have saved more. One with all packages is taken if there is one.
        #[test]
        fn only_what_was_asked_for_is_inherited(
            needs in packages(),
            zygotes in vec((packages(), 0.0..1000.0, 0_u64..3), 0..12),
        ) {
            let candidates: Vec<_> = zygotes.iter().map(|(packages, import_ms, forks)| Candidate {
                packages, import_ms: *import_ms, forks: *forks,
            }).collect();
            let usable: Vec<_> = candidates.iter().filter(|candidate| {
                candidate.packages.iter().all(|package| needs.contains(package))
            }).collect();
            match best(&needs, &candidates) {
                None => prop_assert!(usable.is_empty()),
                Some(place) => {
                    let chosen = &candidates[place];
                    prop_assert!(usable.contains(&chosen));
                    let within = usable.iter().filter(|other| other.packages.is_subset(chosen.packages));
                    let saved = within.map(|other| other.import_ms).fold(0.0, f64::max);
                    prop_assert!(usable.iter().all(|other| other.import_ms <= saved));
                    let has_all = |one: &Candidate<'_>| *one.packages == needs;
                    prop_assert!(has_all(chosen) || !usable.iter().any(|one| has_all(one)));
                }
            }
        }
    }

    #[test]
    fn a_version_is_part_of_a_package() {
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Packages>()
        };
        let one = set(&["a==1"]);
        let candidates = [Candidate {
            packages: &one,
            import_ms: 5.0,
            forks: 0,
        }];
        assert_eq!(best(&set(&["a==1", "b==1"]), &candidates), Some(0));
        assert_eq!(best(&set(&["a==2"]), &candidates), None);
        assert_eq!(best(&set(&["a"]), &candidates), None);
    }

    fn set(names: &[&str]) -> Packages {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_two_needs_have_in_common_comes_between() {
        let (ab, ac) = (set(&["a==1", "b==1"]), set(&["a==1", "c==1"]));
        assert_eq!(plan(&ab, &[], &[]), vec![ab.clone()]);
        assert_eq!(
            plan(&ab, &[], &[ab.clone(), ac.clone()]),
            [set(&["a==1"]), ab.clone()]
        );
        assert_eq!(
            plan(&ab, &[], &[set(&["c==1"]), set(&["a==2"])]),
            vec![ab.clone()]
        );
        let a = set(&["a==1"]);
        let there = [Candidate {
            packages: &a,
            import_ms: 1.0,
            forks: 0,
        }];
        assert_eq!(plan(&ab, &there, &[ac]), vec![ab.clone()]);
    }

    proptest! {
        /// Whatever was asked for before: who is made for a need has nothing that it did not ask for, each has all of
        /// the one before, and all of what it is forked from.
        #[test]
        fn zygotes_on_the_way_are_subsets(
            needs in packages(),
            zygotes in vec((packages(), 0.0..1000.0), 0..8),
            others in vec(packages(), 0..8),
        ) {
            let candidates: Vec<_> = zygotes.iter().map(|(packages, import_ms)| Candidate {
                packages, import_ms: *import_ms, forks: 0,
            }).collect();
            let chain = plan(&needs, &candidates, &others);
            prop_assert_eq!(chain.last(), Some(&needs));
            prop_assert!(chain.len() <= 2);
            let none = Packages::new();
            let mut before = best(&needs, &candidates).map_or(&none, |place| candidates[place].packages);
            for set in &chain {
                prop_assert!(before.is_subset(set) && set.is_subset(&needs));
                before = set;
            }
        }
    }

    #[test]
    fn a_need_that_comes_again_soon_is_worth_a_zygote() {
        let mut needs = Needs::default();
        let (a, b) = (Packages::from(["a==1".to_owned()]), Packages::new());
        let now = Instant::now();
        assert!(!needs.comes_again(&a, now));
        assert!(!needs.comes_again(&b, now));
        assert!(needs.hot(now).is_empty());
        assert!(needs.comes_again(&a, now + Duration::from_secs(1)));
        assert_eq!(needs.hot(now + Duration::from_secs(2)), vec![a.clone()]);
        assert!(!needs.comes_again(&a, now + Duration::from_secs(1) + MEMORY));
        for number in 0..2 * NEEDS_MAX {
            let one = Packages::from([format!("p=={number}")]);
            needs.comes_again(&one, now);
        }
        assert!(needs.last.len() <= NEEDS_MAX);
    }
}
