//! Doing the same to many, a few at a time.

use parking_lot::Mutex;

/// Calls `act` with each item, on `count` threads at most, and returns when all are done.
pub(crate) fn few_at_a_time<T: Send>(count: usize, items: Vec<T>, act: impl Fn(T) + Sync) {
    let count = items.len().min(count);
    let waiting = Mutex::new(items.into_iter());
    let next = || waiting.lock().next();
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while let Some(item) = next() {
                    act(item);
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
        few_at_a_time(3, (0..100).collect(), |item| done.lock().push(item));
        let mut done = done.into_inner();
        done.sort_unstable();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        few_at_a_time(3, Vec::<u8>::new(), |_| panic!("there is nothing to do"));
    }
}
