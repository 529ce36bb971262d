//! Doing the same to many, a few at a time.

use host::caught::caught;
use parking_lot::Mutex;

/// Calls `act` with each item, on `count` threads at most, and returns when all are done. A panic over one item is
/// logged with its `name`, and keeps no other from its turn.
pub(crate) fn few_at_a_time<T: Send>(
    count: usize,
    items: Vec<T>,
    name: impl Fn(&T) -> String + Sync,
    act: impl Fn(T) + Sync,
) {
    let count = items.len().min(count);
    let waiting = Mutex::new(items.into_iter());
    let next = || waiting.lock().next();
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(item) = next() {
                    let name = name(&item);
                    if let Err(panicked) = caught(|| act(item)) {
                        log::error!("{name}: {panicked}");
                    }
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
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
