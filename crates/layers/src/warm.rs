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
        self.0.inner.lock().let_go();
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
        self.queue.inner.lock().hold(Instant::now());
        Hold(Arc::clone(&self.queue))
    }

    /// Queues a layer to be warmed, unless it is in the queue already.
    pub fn add(&self, layer: &Arc<Served>) {
        self.queue.inner.lock().add(layer);
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
            match inner.turn(Instant::now()) {
                Turn::Ended => return None,
                Turn::Layer(layer) => return Some(layer),
                Turn::Held(until) => {
                    let _woken = self.changed.wait_until(&mut inner, until);
                }
                Turn::Nobody => self.changed.wait(&mut inner),
            }
        }
    }
}

/// What a thread that warms layers does next.
#[derive(Debug)]
enum Turn<T> {
    /// It ends.
    Ended,
    /// It waits, until then at the latest.
    Held(Instant),
    /// It waits for a layer.
    Nobody,
    /// It warms this layer.
    Layer(Arc<T>),
}

impl<T> Inner<T> {
    /// Delays all from `now` on; those who hold them already do not do so for longer.
    fn hold(&mut self, now: Instant) {
        self.holds += 1;
        self.held_until.get_or_insert(now + HELD_MAX);
    }

    fn let_go(&mut self) {
        self.holds -= 1;
        if self.holds == 0 {
            self.held_until = None;
        }
    }

    /// Queues a layer, unless it is in the queue already.
    fn add(&mut self, layer: &Arc<T>) {
        let is_it = |waiting: &Weak<T>| waiting.as_ptr() == Arc::as_ptr(layer);
        if !self.waiting.iter().any(is_it) {
            self.waiting.push_back(Arc::downgrade(layer));
        }
    }

    fn turn(&mut self, now: Instant) -> Turn<T> {
        if self.closed {
            return Turn::Ended;
        }
        if let Some(until) = self.held_until.filter(|until| *until > now) {
            return Turn::Held(until);
        }
        while let Some(layer) = self.waiting.pop_front() {
            if let Some(layer) = layer.upgrade() {
                self.running.push(Arc::clone(&layer));
                return Turn::Layer(layer);
            }
        }
        Turn::Nobody
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

    /// Who warms next at this moment.
    fn turn(queue: &Queue<i32>, now: Instant) -> Option<i32> {
        let turn = queue.inner.lock().turn(now);
        match turn {
            Turn::Layer(layer) => Some(*layer),
            Turn::Held(until) => {
                assert!(until > now);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn warming_is_held_back_and_nothing_of_it_is_lost() {
        let (queue, start) = (Queue::new(), Instant::now());
        let layers = [0, 1, 2].map(Arc::new);
        queue.inner.lock().hold(start);
        for layer in layers.iter().chain(&layers) {
            queue.inner.lock().add(layer);
        }
        assert_eq!(turn(&queue, start), None);
        // Another one who attaches layers holds it for as long as the first may, and no longer.
        let later = start + HELD_MAX / 2;
        queue.inner.lock().hold(later);
        queue.inner.lock().let_go();
        assert_eq!(turn(&queue, later), None);
        let over = start + HELD_MAX;
        assert_eq!(turn(&queue, over), Some(0));
        // One that is being warmed is warmed again when it is asked for: pages may have been evicted meanwhile.
        queue.inner.lock().add(&layers[0]);
        queue.inner.lock().let_go();
        let rest = [(); 3].map(|()| turn(&queue, later));
        assert_eq!(
            rest,
            [1, 2, 0].map(Some),
            "each once, in the order in which they came"
        );
        assert!(matches!(queue.inner.lock().turn(later), Turn::Nobody));
    }

    #[test]
    fn a_hold_begins_anew_when_the_last_one_was_let_go() {
        let (queue, start) = (Queue::new(), Instant::now());
        let layer = Arc::new(0);
        queue.inner.lock().add(&layer);
        queue.inner.lock().hold(start);
        queue.inner.lock().let_go();
        let second = start + HELD_MAX;
        queue.inner.lock().hold(second);
        assert_eq!(turn(&queue, second), None);
        queue.inner.lock().let_go();
        assert_eq!(turn(&queue, second), Some(0));
    }
}
