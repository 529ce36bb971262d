//! How long a reader waits for what is fetched, and how that ends earlier.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The end of a device: who reads it waits for no server after that.
#[derive(Default)]
pub struct Ending(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the waits end; `None` as long as the device is to stay.
    by: Option<Instant>,
    waiting: Vec<(u64, Wake)>,
    last: u64,
}

/// Has those who wait look at their deadline again.
type Wake = Arc<dyn Fn() + Send + Sync>;

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ending").field(&self.by()).finish()
    }
}

impl Ending {
    /// Has all that wait, and all that come to wait, give up after this time.
    pub fn within(&self, patience: Duration) {
        let by = Instant::now() + patience;
        let mut state = self.0.lock();
        state.by = Some(state.by.map_or(by, |before| before.min(by)));
        let waiting: Vec<_> = state
            .waiting
            .iter()
            .map(|(_, wake)| Arc::clone(wake))
            .collect();
        drop(state);
        // Without the lock: they take that of a fetcher, which those who wait hold when they look here.
        waiting.iter().for_each(|wake| wake());
    }

    /// Returns when the waits end, if they are to.
    #[must_use]
    pub fn by(&self) -> Option<Instant> {
        self.0.lock().by
    }
}

/// How long a reader waits.
#[derive(Clone, Debug)]
pub struct Wait {
    until: Instant,
    ending: Option<Arc<Ending>>,
}

impl Wait {
    /// Waits until then.
    #[must_use]
    pub const fn until(until: Instant) -> Self {
        Self {
            until,
            ending: None,
        }
    }

    /// The same for the reader of a device, which may end before.
    #[must_use]
    pub fn of_device(until: Instant, ending: Option<Arc<Ending>>) -> Self {
        Self { until, ending }
    }

    /// Returns when it is over, as far as is known now.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let by = self.ending.as_ref().and_then(|ending| ending.by());
        by.map_or(self.until, |by| by.min(self.until))
    }

    /// Returns whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.deadline() <= Instant::now()
    }

    /// Returns whether the device ends.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(|end| end.by().is_some())
    }

    /// Has `wake` called when the wait becomes shorter, until the result is dropped.
    pub(crate) fn woken(&self, wake: impl Fn() + Send + Sync + 'static) -> Woken<'_> {
        let ending = self.ending.as_deref();
        let number = ending.map_or(0, |ending| {
            let mut state = ending.0.lock();
            state.last += 1;
            let number = state.last;
            state.waiting.push((number, Arc::new(wake)));
            number
        });
        Woken { ending, number }
    }
}

/// Somebody who waits.
pub(crate) struct Woken<'a> {
    ending: Option<&'a Ending>,
    number: u64,
}

impl Drop for Woken<'_> {
    fn drop(&mut self) {
        if let Some(ending) = self.ending {
            let mut state = ending.0.lock();
            let gone = state.waiting.iter().position(|(n, _)| *n == self.number);
            let gone = gone.map(|at| state.waiting.swap_remove(at));
            drop(state);
            // Without the lock: it may own the last of a fetcher.
            drop(gone);
        }
    }
}
