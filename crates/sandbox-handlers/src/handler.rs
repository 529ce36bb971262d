//! One handler: its requests, its queue, and its sandboxes.

use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use sandbox::cache::{Hits, Kept};

use crate::error::{CallError, Result};
use crate::instance::Instance;
use crate::spec::HandlerSpec;

/// A handler.
#[derive(Debug)]
pub(crate) struct Handler {
    pub(crate) spec: HandlerSpec,
    state: Mutex<State>,
    /// A sandbox is free, or there may be one more.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Idle ones, the last used last.
    idle: Vec<Instance>,
    /// All that there are, and are being started.
    live: u32,
    /// Those that are being frozen or ended: not available meanwhile.
    aside: u32,
    waiting: u32,
    hits: Hits,
    /// How long the last start took, in milliseconds.
    start_ms: f64,
    closed: bool,
}

/// The next step of a request.
#[derive(Debug)]
pub(crate) enum Place {
    /// A sandbox that has loaded the handler.
    Instance(Box<Instance>),
    /// The right to start one.
    Start,
}

/// How many sandboxes a handler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) live: u32,
    pub(crate) idle: u32,
    pub(crate) waiting: u32,
}

impl Handler {
    pub(crate) fn new(spec: HandlerSpec) -> Self {
        Self {
            spec,
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Waits for a place, if as many may wait.
    pub(crate) fn enter(&self, deadline: Instant) -> Result<Place> {
        let name = || self.spec.name.clone();
        let mut state = self.state.lock();
        state.hits.add(Instant::now());
        let mut waits = false;
        let place = loop {
            if state.closed {
                break Err(CallError::Unknown(name()));
            }
            if let Some(instance) = state.idle.pop() {
                break Ok(Place::Instance(Box::new(instance)));
            }
            if state.aside > 0 {
                if self.freed.wait_until(&mut state, deadline).timed_out() {
                    let patience = self.spec.timeout();
                    break Err(CallError::Late {
                        name: name(),
                        patience,
                    });
                }
                continue;
            }
            if state.live < self.spec.instances_max {
                state.live += 1;
                break Ok(Place::Start);
            }
            if !waits {
                if state.waiting >= self.spec.queue_max {
                    return Err(CallError::Busy(name()));
                }
                state.waiting += 1;
                waits = true;
            }
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                let patience = self.spec.timeout();
                break Err(CallError::Late {
                    name: name(),
                    patience,
                });
            }
        };
        if waits {
            state.waiting -= 1;
        }
        if place.is_err() {
            // What it was woken for is another's.
            self.freed.notify_one();
        }
        place
    }

    /// Records the duration of a start.
    pub(crate) fn started_in(&self, start_ms: f64) {
        self.state.lock().start_ms = start_ms;
    }

    /// Keeps a sandbox for the next request.
    pub(crate) fn keep(&self, mut instance: Instance) {
        instance.idle_since = Instant::now();
        let mut state = self.state.lock();
        if state.closed {
            state.live -= 1;
            drop(state);
            return;
        }
        state.idle.push(instance);
        self.freed.notify_one();
    }

    /// Gives back the place of a sandbox that was taken out to be ended.
    pub(crate) fn gone(&self) {
        self.state.lock().aside -= 1;
        self.leave();
    }

    /// Gives back the place of a sandbox that is no more.
    pub(crate) fn leave(&self) {
        self.state.lock().live -= 1;
        self.freed.notify_all();
    }

    /// Takes out the least recently used one for which `wants` is true: [`Self::put_back`] or
    /// [`Self::gone`] follows.
    pub(crate) fn take_idle(&self, wants: impl Fn(&Instance) -> bool) -> Option<Instance> {
        let mut state = self.state.lock();
        let place = state.idle.iter().position(wants)?;
        state.aside += 1;
        Some(state.idle.remove(place))
    }

    /// Returns one that was taken out, to the least recently used ones.
    pub(crate) fn put_back(&self, instance: Instance) {
        let mut state = self.state.lock();
        state.aside -= 1;
        if state.closed {
            state.live -= 1;
            return;
        }
        state.idle.insert(0, instance);
        // Whoever waits for it, and not for a place in the queue.
        self.freed.notify_all();
    }

    /// Returns the cache data of frozen ones, to choose which is evicted first.
    pub(crate) fn kept(&self) -> Vec<Kept> {
        let now = Instant::now();
        let state = self.state.lock();
        let mut kept = Vec::new();
        // The one that is used next is worth most: of several, each next one is needed less often.
        for (rank, instance) in state.idle.iter().rev().enumerate() {
            let Some(bytes) = instance.frozen_bytes else {
                continue;
            };
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let share = (rank + 1) as f64;
            kept.push(Kept {
                id: instance.sandbox.id().to_owned(),
                bytes,
                saved_ms: state.start_ms,
                hits: state.hits.count(now) / share,
                children: 0,
            });
        }
        kept
    }

    /// Accepts no more requests, and ends the idle sandboxes.
    pub(crate) fn close(&self) {
        let idle = {
            let mut state = self.state.lock();
            state.closed = true;
            let idle = std::mem::take(&mut state.idle);
            state.live -= u32::try_from(idle.len()).unwrap_or(state.live);
            idle
        };
        self.freed.notify_all();
        drop(idle);
    }

    pub(crate) fn numbers(&self) -> Numbers {
        let state = self.state.lock();
        Numbers {
            live: state.live,
            idle: u32::try_from(state.idle.len()).unwrap_or(u32::MAX),
            waiting: state.waiting,
        }
    }
}
