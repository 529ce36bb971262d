//! Doing the same to many, a few at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use host::caught::caught;
use parking_lot::{Condvar, Mutex};

/// What takes longer makes room for the next: sources that do not answer are waited for, but not by the others.
const SLOW: Duration = Duration::from_secs(5);
/// At most so many at a time, slow ones included.
const MOST: usize = 64;

/// How many are done at a time.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// So many that are not slow.
    count: usize,
    /// After that an item is slow.
    slow: Duration,
    /// So many in all.
    most: usize,
}

/// Calls `act` with each item, `count` at a time, and returns when all are done. One that takes long makes room for
/// another. A panic over one item is logged with its `name`, and keeps no other from its turn.
pub(crate) fn few_at_a_time<T: Send>(
    count: usize,
    items: Vec<T>,
    name: impl Fn(&T) -> String + Sync,
    act: impl Fn(T) + Sync,
) {
    let pace = Pace {
        count,
        slow: SLOW,
        most: MOST,
    };
    at_pace(pace, items, name, act);
}

fn at_pace<T: Send>(
    pace: Pace,
    items: Vec<T>,
    name: impl Fn(&T) -> String + Sync,
    act: impl Fn(T) + Sync,
) {
    // Since when, of each that is being done.
    let begun: Mutex<BTreeMap<usize, Instant>> = Mutex::default();
    let ended = Condvar::new();
    let (name, act) = (&name, &act);
    std::thread::scope(|scope| {
        for (turn, item) in items.into_iter().enumerate() {
            let mut now = begun.lock();
            loop {
                match room(pace, &now) {
                    Room::Now => break,
                    Room::At(slow) => {
                        let _timed_out = ended.wait_until(&mut now, slow);
                    }
                    Room::WhenOneEnds => ended.wait(&mut now),
                }
            }
            now.insert(turn, Instant::now());
            drop(now);
            let (begun, ended) = (&begun, &ended);
            scope.spawn(move || {
                let name = name(&item);
                if let Err(panicked) = caught(|| act(item)) {
                    log::error!("{name}: {panicked}");
                }
                begun.lock().remove(&turn);
                ended.notify_all();
            });
        }
    });
}

/// When the next item has its turn.
enum Room {
    Now,
    /// When another one is slow, if none ends before.
    At(Instant),
    WhenOneEnds,
}

fn room(pace: Pace, begun: &BTreeMap<usize, Instant>) -> Room {
    if begun.len() >= pace.most {
        return Room::WhenOneEnds;
    }
    let late = begun.values().map(|began| *began + pace.slow);
    let now = Instant::now();
    let quick: Vec<Instant> = late.filter(|late| *late > now).collect();
    match quick.iter().min() {
        Some(first) if quick.len() >= pace.count => Room::At(*first),
        _ => Room::Now,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn each_is_done_once() {
        let done = Mutex::new(Vec::new());
        let name = i32::to_string;
        few_at_a_time(3, (0..100).collect(), name, |item| done.lock().push(item));
        let mut done = done.into_inner();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        few_at_a_time(3, Vec::new(), name, |_| panic!("there is nothing to do"));
    }

    #[test]
    fn what_hangs_makes_room_for_the_others() {
        let pace = Pace {
            count: 2,
            slow: Duration::from_millis(20),
            most: 5,
        };
        let (done, free) = (Mutex::new(0), Condvar::new());
        // A panic would be caught.
        let in_vain = AtomicUsize::new(0);
        // Four that hang until all others are done.
        at_pace(pace, (0..20).collect(), i32::to_string, |item| {
            let mut done = done.lock();
            if item >= 4 {
                *done += 1;
                free.notify_all();
                return;
            }
            let waits = free.wait_while_for(&mut done, |done| *done < 16, Duration::from_secs(30));
            in_vain.fetch_add(usize::from(waits.timed_out()), Relaxed);
        });
        assert_eq!(in_vain.into_inner(), 0, "the others waited for what hangs");
        assert_eq!(done.into_inner(), 16);
    }

    #[test]
    fn so_many_at_a_time_and_no_more() {
        for (most, slow) in [(3, Duration::from_secs(60)), (4, Duration::ZERO)] {
            let pace = Pace {
                count: 3,
                slow,
                most,
            };
            let (at_a_time, highest) = (Mutex::new(0), Mutex::new(0));
            at_pace(pace, (0..40).collect(), i32::to_string, |_| {
                *at_a_time.lock() += 1;
                std::thread::yield_now();
                let now = *at_a_time.lock();
                let mut highest = highest.lock();
                *highest = now.max(*highest);
                *at_a_time.lock() -= 1;
            });
            assert!(highest.into_inner() <= most);
        }
    }

    /// A node has many mounts to restore, and one of them may be what nobody has thought of.
    #[test]
    fn a_panic_over_one_keeps_no_other_from_its_turn() {
        let done = Mutex::new(Vec::new());
        for count in [1, 3] {
            few_at_a_time(count, (0..10).collect(), i32::to_string, |item| {
                assert_ne!(item % 3, 0, "part of the test");
                done.lock().push(item);
            });
            let mut done = std::mem::take(&mut *done.lock());
            done.sort_unstable();
            assert_eq!(done, [1, 2, 4, 5, 7, 8]);
        }
    }
}
