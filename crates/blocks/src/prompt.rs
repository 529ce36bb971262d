//! Threads that must not wait, and waiters in their place.
//!
//! A thread that answers requests from memory must not be blocked by a source that does not respond. So it
//! calls within [`now`]: a source that would have to wait returns
//! [`WouldWait`](crate::SourceErrorKind::WouldWait) instead. Then the whole request goes to a
//! [`Waiter`], on whose threads it is repeated ([`may_hang`]), to its end.

use std::cell::Cell;

use crate::SourceError;

/// What the calling thread may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Wait within the caller's deadline.
    #[default]
    Bounded,
    /// Not wait at all.
    None,
    /// Wait for ever: the thread is made for that, and another one watches the deadline.
    Endless,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Bounded) };
}

/// Puts back what was there before, also if what was done panics.
struct Before(Patience);

impl Drop for Before {
    fn drop(&mut self) {
        PATIENCE.set(self.0);
    }
}

/// Does something that must not wait.
pub fn now<T>(work: impl FnOnce() -> T) -> T {
    with(Patience::None, work)
}

/// Does something on a thread that may hang in it.
pub fn may_hang<T>(work: impl FnOnce() -> T) -> T {
    with(Patience::Endless, work)
}

/// Returns what the calling thread may do.
#[must_use]
pub fn patience() -> Patience {
    PATIENCE.get()
}

fn with<T>(patience: Patience, work: impl FnOnce() -> T) -> T {
    let _before = Before(PATIENCE.replace(patience));
    work()
}

/// A bounded pool of threads that may hang, with deadlines for their results.
pub trait Waiter: Send + Sync {
    /// Runs `work` on a thread that [may hang](may_hang), and returns at once. If it is not done by
    /// a deadline, or cannot be begun, `late` is called with the reason, once; `work` may still be
    /// done then, at the same time or later.
    fn wait_for(&self, work: Box<dyn FnOnce() + Send>, late: Box<dyn FnOnce(SourceError) + Send>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_may_do_ends_with_what_it_does() {
        assert_eq!(patience(), Patience::Bounded);
        now(|| {
            assert_eq!(patience(), Patience::None);
            assert_eq!(may_hang(patience), Patience::Endless);
            assert_eq!(patience(), Patience::None);
        });
        let panicked = std::panic::catch_unwind(|| now(|| panic!("part of the test")));
        assert!(panicked.is_err());
        assert_eq!(patience(), Patience::Bounded);
    }
}
