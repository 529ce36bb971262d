//! The threads that bring boot images of layers into the page cache, one layer after the other.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use host::caught::{caught, caught_or};
use parking_lot::{Condvar, Mutex};

use super::served::Served;

/// Layers that are warmed at a time. Warming is one copy after the other: more threads would
/// only take the processors from those who start containers.
const THREADS: usize = 2;

/// The longest that warming waits for layers that are being attached: binding a layer may take as
/// long as the disk does, and others are wanted meanwhile.
const HELD_MAX: Duration = Duration::from_secs(2);

/// Warms layers in the order in which they were attached, until dropped.
#[derive(Debug)]
pub struct WarmPool {
    queue: Arc<Queue<Served>>,
    threads: Vec<JoinHandle<()>>,
}

/// Holds each attached layer at most once, so it is bounded by the layers. Weak: a layer that is
/// gone before its turn is not kept for it.
#[derive(Debug)]
struct Queue<T> {
    inner: Mutex<Inner<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: VecDeque<Weak<T>>,
    running: Vec<Arc<T>>,
    /// How many hold the pool back, and until when at the latest.
    holds: usize,
    held_until: Option<Instant>,
    closed: bool,
}

/// Holds warming back until dropped, but not for long.
#[derive(Debug)]
pub struct Hold(Arc<Queue<Served>>);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.holds -= 1;
        if inner.holds == 0 {
            inner.held_until = None;
        }
        self.0.changed.notify_all();
    }
}

impl WarmPool {
    /// # Errors
    /// If no threads can be started.
    pub fn start() -> anyhow::Result<Self> {
        let queue = Arc::new(Queue::new());
        let mut pool = Self {
            queue,
            threads: Vec::new(),
        };
        for _ in 0..THREADS {
            let queue = Arc::clone(&pool.queue);
            let thread = std::thread::Builder::new()
                .name("warm-layers".to_owned())
                .spawn(move || queue.work(prewarm))
                .context("starting the thread that warms layers")?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Delays warming: a caller that attaches many layers wants all of them served first.
    pub fn hold(&self) -> Hold {
        let mut inner = self.queue.inner.lock();
        inner.holds += 1;
        inner
            .held_until
            .get_or_insert_with(|| Instant::now() + HELD_MAX);
        Hold(Arc::clone(&self.queue))
    }

    /// Queues a layer to be warmed, unless it is in the queue already.
    pub fn add(&self, layer: &Arc<Served>) {
        let mut inner = self.queue.inner.lock();
        let is_it = |waiting: &Weak<Served>| waiting.as_ptr() == Arc::as_ptr(layer);
        if inner.waiting.iter().any(is_it) {
            return;
        }
        inner.waiting.push_back(Arc::downgrade(layer));
        self.queue.changed.notify_one();
    }
}

fn prewarm(layer: &Served) {
    if let Err(error) = caught_or(|| layer.prewarm().map(drop)) {
        let layer = layer.layer().short();
        log::warn!("layer {layer}: cannot prewarm: {error:#}; serving reads one by one");
    }
}

impl<T> Queue<T> {
    fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                waiting: VecDeque::new(),
                running: Vec::new(),
                holds: 0,
                held_until: None,
                closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Prewarms layers until the pool ends. A panic over one keeps no other from its turn.
    fn work(&self, prewarm: impl Fn(&T)) {
        while let Some(layer) = self.next() {
            let prewarmed = caught(|| prewarm(&layer));
            self.inner
                .lock()
                .running
                .retain(|running| !Arc::ptr_eq(running, &layer));
            // The last one that holds a layer unmounts it.
            if let Err(panicked) = prewarmed.and_then(|()| caught(|| drop(layer))) {
                log::error!("prewarming a layer, or ending it after that: {panicked}");
            }
        }
    }

    /// Waits for the next layer; `None` when the pool ends.
    fn next(&self) -> Option<Arc<T>> {
        let mut inner = self.inner.lock();
        loop {
            if inner.closed {
                return None;
            }
            if let Some(until) = inner.held_until.filter(|until| *until > Instant::now()) {
                let _woken = self.changed.wait_until(&mut inner, until);
                continue;
            }
            while let Some(layer) = inner.waiting.pop_front() {
                if let Some(layer) = layer.upgrade() {
                    inner.running.push(Arc::clone(&layer));
                    return Some(layer);
                }
            }
            self.changed.wait(&mut inner);
        }
    }
}

impl Drop for WarmPool {
    fn drop(&mut self) {
        let running = {
            let mut inner = self.queue.inner.lock();
            inner.closed = true;
            inner.waiting.clear();
            inner.running.clone()
        };
        for layer in running {
            layer.cancel_prewarm();
        }
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that warms layers panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_over_one_layer_keeps_no_other_from_its_turn() {
        let queue = Queue::new();
        let layers = [0, 1, 2].map(Arc::new);
        queue.inner.lock().waiting = layers.iter().map(Arc::downgrade).collect();
        let warmed = Mutex::new(Vec::new());
        queue.work(|layer| {
            queue.inner.lock().closed = *layer == 2;
            assert_ne!(*layer, 1, "part of the test");
            warmed.lock().push(*layer);
        });
        assert_eq!(warmed.into_inner(), [0, 2]);
        let running = &queue.inner.lock().running;
        assert!(running.is_empty(), "{running:?}");
    }
}
