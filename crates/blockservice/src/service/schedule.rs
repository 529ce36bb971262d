//! The order of jobs: strict between priorities, deficit round robin between virtual machines.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::wire::Priority;
use chunks::CHUNK_MAX;

/// The bytes that a virtual machine may send in a round. No job costs more, so that one more round
/// is always enough for its first job.
const QUANTUM: u64 = CHUNK_MAX as u64;

/// How many jobs of an owner are looked at for one that can be done: those of a connection that is not
/// read must not keep the owner's other connections waiting.
const LOOKED_AT: usize = 256;

/// Queued jobs, each of one owner and one priority. Pure: threads that work on them call
/// [`pop`](Self::pop).
#[derive(Debug)]
pub(crate) struct Schedule<K, J> {
    classes: [Class<K, J>; 3],
}

#[derive(Debug)]
struct Class<K, J> {
    /// Owners with jobs, in round-robin order.
    turns: VecDeque<K>,
    queues: HashMap<K, Queue<J>>,
}

#[derive(Debug)]
struct Queue<J> {
    jobs: VecDeque<(u64, J)>,
    /// The rest of its quanta.
    deficit: u64,
}

impl<K: Clone + Eq + Hash, J> Schedule<K, J> {
    pub(crate) fn new() -> Self {
        let class = || Class {
            turns: VecDeque::new(),
            queues: HashMap::new(),
        };
        Self {
            classes: [class(), class(), class()],
        }
    }

    /// Appends a job of `owner`, which costs so many bytes, at most 128 KiB.
    pub(crate) fn push(&mut self, priority: Priority, owner: &K, cost: u64, job: J) {
        let class = &mut self.classes[priority as usize];
        let queue = class.queues.entry(owner.clone()).or_insert_with(|| {
            class.turns.push_back(owner.clone());
            Queue {
                jobs: VecDeque::new(),
                deficit: 0,
            }
        });
        queue.jobs.push_back((cost.min(QUANTUM), job));
    }

    /// Takes the next job out of those that can be done now; `None` if there is none.
    pub(crate) fn pop(&mut self, can: impl Fn(&J) -> bool) -> Option<J> {
        self.classes.iter_mut().find_map(|class| class.pop(&can))
    }

    /// Returns whether a job of this priority waits.
    pub(crate) fn waits(&self, priority: Priority) -> bool {
        !self.classes[priority as usize].turns.is_empty()
    }

    /// Returns how many jobs wait.
    pub(crate) fn len(&self) -> usize {
        let queues = self.classes.iter().flat_map(|class| class.queues.values());
        queues.map(|queue| queue.jobs.len()).sum()
    }
}

impl<K: Clone + Eq + Hash, J> Class<K, J> {
    fn pop(&mut self, can: impl Fn(&J) -> bool) -> Option<J> {
        // Each owner is looked at once, and those that can go a second time with a new quantum.
        for _ in 0..2 * self.turns.len() {
            let owner = self.turns.front()?.clone();
            let queue = self.queues.get_mut(&owner)?;
            let jobs = queue.jobs.iter().take(LOOKED_AT);
            let mut costs = jobs.enumerate().filter(|(_, (_, job))| can(job));
            let Some((at, cost)) = costs.next().map(|(at, (cost, _))| (at, *cost)) else {
                // Who cannot go saves nothing up.
                queue.deficit = 0;
                self.turns.rotate_left(1);
                continue;
            };
            if queue.deficit < cost {
                queue.deficit += QUANTUM;
                self.turns.rotate_left(1);
                continue;
            }
            queue.deficit -= cost;
            let (_, job) = queue.jobs.remove(at)?;
            if queue.jobs.is_empty() {
                self.queues.remove(&owner);
                self.turns.pop_front();
            }
            return Some(job);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain<K: Clone + Eq + Hash, J>(schedule: &mut Schedule<K, J>) -> Vec<J> {
        std::iter::from_fn(|| schedule.pop(|_| true)).collect()
    }

    #[test]
    fn what_is_urgent_goes_first() {
        let mut schedule = Schedule::new();
        schedule.push(Priority::Prefetch, &1, 1, "prefetch");
        schedule.push(Priority::Readahead, &1, 1, "readahead");
        schedule.push(Priority::Demand, &2, 1, "demand");
        assert!(schedule.waits(Priority::Demand));
        assert_eq!(drain(&mut schedule), ["demand", "readahead", "prefetch"]);
        assert!(!schedule.waits(Priority::Demand));
        assert_eq!(schedule.len(), 0);
    }

    #[test]
    fn who_asks_for_much_does_not_keep_others_waiting() {
        let mut schedule = Schedule::new();
        for n in 0..1000 {
            schedule.push(Priority::Demand, &"greedy", QUANTUM, ("greedy", n));
        }
        schedule.push(Priority::Demand, &"modest", QUANTUM, ("modest", 0));
        let order = drain(&mut schedule);
        let place = order.iter().position(|(who, _)| *who == "modest");
        assert!(place.unwrap() <= 2, "{place:?}");
    }

    #[test]
    fn what_cannot_go_keeps_nothing_else_of_its_owner_waiting() {
        let mut schedule = Schedule::new();
        for job in ["stuck", "first", "stuck", "second"] {
            schedule.push(Priority::Readahead, &1, QUANTUM, job);
        }
        let mut next = || schedule.pop(|job| *job != "stuck");
        assert_eq!(
            [next(), next(), next()],
            [Some("first"), Some("second"), None]
        );
        assert_eq!(drain(&mut schedule), ["stuck", "stuck"]);
    }

    #[test]
    fn bytes_are_shared_and_not_requests() {
        let mut schedule = Schedule::new();
        for _ in 0..100 {
            schedule.push(Priority::Demand, &"large", QUANTUM, ("large", QUANTUM));
        }
        for _ in 0..6400 {
            schedule.push(
                Priority::Demand,
                &"small",
                QUANTUM / 64,
                ("small", QUANTUM / 64),
            );
        }
        let (mut large, mut small) = (0, 0);
        while let Some((who, cost)) = schedule.pop(|_| true) {
            *(if who == "large" {
                &mut large
            } else {
                &mut small
            }) += cost;
            assert!(large.abs_diff(small) <= 2 * QUANTUM, "{large} and {small}");
        }
    }

    #[test]
    fn who_cannot_go_is_passed_over() {
        let mut schedule = Schedule::new();
        schedule.push(Priority::Demand, &1, 9, 1);
        schedule.push(Priority::Demand, &2, 9, 2);
        schedule.push(Priority::Prefetch, &3, 9, 3);
        assert_eq!(schedule.pop(|job| *job == 3), Some(3));
        assert_eq!(schedule.pop(|job| *job == 2), Some(2));
        assert_eq!(schedule.pop(|_| false), None);
        assert_eq!(schedule.pop(|_| true), Some(1));
    }

    proptest! {
        /// Against the naive model: nothing is lost, and within an owner and a priority the order
        /// stays.
        #[test]
        fn every_job_comes_once_and_in_order(
            jobs in prop::collection::vec((0_u8..3, 0_u8..4, 1_u64..QUANTUM), 0..200),
        ) {
            let mut schedule = Schedule::new();
            for (n, (priority, owner, cost)) in jobs.iter().enumerate() {
                let priority = Priority::from_number(*priority).unwrap();
                schedule.push(priority, owner, *cost, (priority, *owner, n));
            }
            prop_assert_eq!(schedule.len(), jobs.len());
            let order = drain(&mut schedule);
            prop_assert_eq!(order.len(), jobs.len());
            let urgency: Vec<_> = order.iter().map(|(priority, ..)| *priority).collect();
            prop_assert!(urgency.is_sorted());
            for owner in 0..4 {
                for priority in 0..3 {
                    let mine = order.iter().filter(|(p, o, _)| *p as u8 == priority && *o == owner);
                    prop_assert!(mine.map(|(.., n)| *n).is_sorted());
                }
            }
        }
    }
}
