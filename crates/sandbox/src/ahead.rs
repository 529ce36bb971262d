//! Things that are made before they are asked for, a few at a time, by a thread that nobody waits for.
//!
//! Each is handed out once. Where none is ready, who asks makes its own.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::error::{Result, step};

/// How many are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stock {
    /// How few are ready when more are made: several at a time, as a thread has to wake for them.
    pub(crate) min: usize,
    /// How many are ready at most.
    pub(crate) max: usize,
}

struct State<T> {
    ready: Vec<T>,
    /// Whether one was asked for since it was last tried to make some.
    is_wanted: bool,
    is_closing: bool,
}

impl<T> State<T> {
    const fn needs_more(&self, stock: Stock) -> bool {
        self.is_wanted && self.ready.len() <= stock.min
    }
}

struct Shared<T> {
    stock: Stock,
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// Those that are ready, and the thread that makes them. Nothing is made before the first is asked for.
pub(crate) struct Ahead<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T> fmt::Debug for Ahead<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ahead")
    }
}

impl<T: Send + 'static> Ahead<T> {
    /// Starts the thread. `prepare` is called there, and returns what makes one.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start<M: FnMut() -> Result<T>>(
        name: &str,
        stock: Stock,
        prepare: impl FnOnce() -> Result<M> + Send + 'static,
    ) -> Result<Self> {
        let state = State {
            ready: Vec::new(),
            is_wanted: false,
            is_closing: false,
        };
        let shared = Arc::new(Shared {
            stock,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || match prepare() {
            Ok(make) => theirs.fill(make),
            Err(error) => log::warn!("nothing is made in advance: {error}"),
        });
        let thread = Some(thread.map_err(step("starting a thread"))?);
        Ok(Self { shared, thread })
    }

    /// Takes one that nobody had; `None` if none is ready.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.shared.state.lock();
        let taken = state.ready.pop();
        state.is_wanted = true;
        if state.ready.len() <= self.shared.stock.min {
            self.shared.changed.notify_one();
        }
        taken
    }

    #[cfg(test)]
    pub(crate) fn ready(&self) -> usize {
        self.shared.state.lock().ready.len()
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        self.shared.state.lock().is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that makes things in advance ended in a panic");
        }
    }
}

impl<T> Shared<T> {
    /// Makes more whenever few are ready.
    fn fill(&self, mut make: impl FnMut() -> Result<T>) {
        while self.wait_for_few() {
            while self.has_room() {
                match make() {
                    Ok(made) => self.state.lock().ready.push(made),
                    Err(error) => {
                        log::warn!("making something in advance: {error}");
                        // Not again before somebody asks, who may find more of what lacks.
                        self.state.lock().is_wanted = false;
                        break;
                    }
                }
            }
        }
    }

    /// Waits until few are ready and one was asked for; `false` at the end.
    fn wait_for_few(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_closing && !state.needs_more(self.stock) {
            self.changed.wait(&mut state);
        }
        !state.is_closing
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.is_closing && state.ready.len() < self.stock.max
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::error::SandboxError;

    const PATIENCE: Duration = Duration::from_secs(60);
    const STOCK: Stock = Stock { min: 2, max: 5 };

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < deadline, "not in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_few_are_made_once_one_is_asked_for_and_none_is_handed_out_twice() {
        let (made, makes) = channel();
        let ahead = Ahead::start("test-ahead", STOCK, move || {
            let mut next = 0_u32;
            Ok(move || {
                next += 1;
                made.send(next).unwrap();
                Ok(next)
            })
        });
        let ahead = ahead.unwrap();
        assert_eq!(ahead.take(), None);
        let mut seen = BTreeSet::new();
        wait_until(|| ahead.ready() == STOCK.max);
        for _ in 0..4 {
            // New ones are made as soon as few are left, and until then none.
            wait_until(|| ahead.ready() > STOCK.min);
            assert!(ahead.ready() <= STOCK.max);
            for _ in 0..STOCK.max {
                if let Some(taken) = ahead.take() {
                    assert!(seen.insert(taken), "{taken} twice");
                }
            }
        }
        assert!(seen.len() > 4 * STOCK.min, "{seen:?}");
        drop(ahead);
        // No more were made than were taken and are ready.
        assert!(makes.iter().count() <= seen.len() + STOCK.max);
    }

    #[test]
    fn what_cannot_be_made_is_tried_again_when_it_is_asked_for() {
        let (tried, tries) = channel();
        let ahead = Ahead::start("test-ahead", STOCK, move || {
            let mut turn = 0_u32;
            Ok(move || {
                turn += 1;
                tried.send(turn).unwrap();
                match turn {
                    1 => Err(SandboxError::Closed),
                    _ => Ok(turn),
                }
            })
        });
        let ahead = ahead.unwrap();
        assert_eq!(ahead.take(), None);
        assert_eq!(tries.recv_timeout(PATIENCE), Ok(1));
        wait_until(|| !ahead.shared.state.lock().is_wanted);
        assert_eq!((tries.try_recv().ok(), ahead.take()), (None, None));
        wait_until(|| ahead.ready() == STOCK.max);
    }
}
