//! For whom a thread reads what may have to be fetched: all that one read of a device needs, or its opening, however often
//! that is wrong, has one deadline; and it ends when the device does.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocks::prompt;
use ranges::{Ending, Wait};

/// What a thread is at.
#[derive(Clone, Debug)]
struct Scope {
    began: Instant,
    /// What it does now may be done without, and is not waited for after that.
    by: Option<Instant>,
    ending: Option<Arc<Ending>>,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
    static WOULD_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// A read of a device, or its opening, by this thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    before: Option<Scope>,
}

impl Reading {
    /// Notes that it began then, and is over when the device is.
    pub(crate) fn begun(began: Instant, ending: Option<Arc<Ending>>) -> Self {
        let scope = Scope {
            began,
            by: None,
            ending,
        };
        Self {
            before: SCOPE.replace(Some(scope)),
        }
    }

    /// Begins what may be done without: it is waited for at most so long, and at most a quarter of the time that is left of
    /// `patience`.
    pub(crate) fn of_hint(most: Duration, patience: Duration) -> Self {
        let now = Instant::now();
        let left = wait(patience).deadline().saturating_duration_since(now);
        let by = now + most.min(left / 4);
        let before = SCOPE.with_borrow(Clone::clone);
        let scope = before.clone().unwrap_or(Scope {
            began: now,
            by: None,
            ending: None,
        });
        let by = Some(scope.by.map_or(by, |before| before.min(by)));
        SCOPE.set(Some(Scope { by, ..scope }));
        Self { before }
    }

    /// Goes on with what another thread began.
    pub(crate) fn continued(of: &Continued) -> Self {
        Self {
            before: SCOPE.replace(of.0.clone()),
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        SCOPE.set(self.before.take());
    }
}

/// What a thread is at, for those that help it.
#[derive(Debug)]
pub(crate) struct Continued(Option<Scope>);

/// Returns what this thread is at.
pub(crate) fn at_hand() -> Continued {
    Continued(SCOPE.with_borrow(Clone::clone))
}

/// Returns how long this thread may wait if a read may take so long; from now on if it is at none.
pub(crate) fn wait(patience: Duration) -> Wait {
    SCOPE.with_borrow(|scope| match scope {
        Some(Scope { began, by, ending }) => {
            let until = *began + patience;
            let until = by.map_or(until, |by| by.min(until));
            Wait::of_device(until, ending.clone())
        }
        None => Wait::until(Instant::now() + patience),
    })
}

/// Returns whether this thread may wait at all, and notes that it would have to if it may not.
pub(crate) fn may_wait() -> bool {
    let may = prompt::patience() != prompt::Patience::None;
    if !may {
        WOULD_WAIT.set(true);
    }
    may
}

/// Reads, and returns whether it failed only since this thread may not wait.
pub(crate) fn would_wait<T, E>(read: impl FnOnce() -> Result<T, E>) -> (Result<T, E>, bool) {
    WOULD_WAIT.set(false);
    let done = read();
    let would = done.is_err() && WOULD_WAIT.get();
    (done, would)
}
