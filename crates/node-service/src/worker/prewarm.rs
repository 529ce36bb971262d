//! Loads boot images into page caches, a few mounts at a time, with lower priority than requests.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use host::caught::{caught, caught_or};
use parking_lot::Mutex;

use super::served::Served;

/// Mounts that are prewarmed at a time: it is one copy after the other, and more would only take
/// the processors from those who start containers.
const THREADS: usize = 2;

/// Prewarms in the background, in the order in which mounts arrive. An entry for each adoption and
/// each swap; a mount that ends while it waits is not kept for it.
#[derive(Debug)]
pub(super) struct Queue(Sender<Weak<Served>>);

impl Queue {
    /// # Errors
    /// If no threads can be started.
    pub(super) fn start() -> anyhow::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..THREADS {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new()
                .name("prewarm".to_owned())
                .spawn(move || work(&receiver, prewarm))
                .context("starting a thread that prewarms")?;
        }
        Ok(Self(sender))
    }

    pub(super) fn add(&self, served: &Arc<Served>) {
        // The threads live as long as the process.
        let _added = self.0.send(Arc::downgrade(served));
    }
}

fn prewarm(served: &Served) {
    let id = served.id();
    if let Err(error) = caught_or(|| served.prewarm_first().map(drop)) {
        log::warn!("{id}: {error:#}; reads are answered one by one");
    }
}

/// Prewarms what comes, until nothing can come any more. A panic over one mount keeps no other from its turn.
fn work<T>(waiting: &Mutex<Receiver<Weak<T>>>, prewarm: impl Fn(&T)) {
    loop {
        let next = waiting.lock().recv();
        let Ok(served) = next else { return };
        // The last one that holds a mount ends it: that is part of it.
        let one = || served.upgrade().iter().for_each(|served| prewarm(served));
        if let Err(panicked) = caught(one) {
            log::error!("prewarming a mount, or ending it after that: {panicked}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_over_one_mount_keeps_no_other_from_its_turn() {
        let (sender, receiver) = channel();
        let mounts = [0, 1, 2].map(Arc::new);
        for mount in &mounts {
            sender.send(Arc::downgrade(mount)).unwrap();
        }
        drop(sender);
        let prewarmed = Mutex::new(Vec::new());
        work(&Mutex::new(receiver), |mount| {
            assert_ne!(*mount, 1, "part of the test");
            prewarmed.lock().push(*mount);
        });
        assert_eq!(prewarmed.into_inner(), [0, 2]);
    }
}
