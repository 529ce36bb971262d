//! A thread that collects garbage when there is much of it.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::{LiveImage, Pace};
use crate::error::{Doing, LsmtError, Result};

/// When garbage is collected, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectorOptions {
    /// How much of the data has to be garbage, in percent.
    pub garbage_percent: u8,
    /// How many bytes of it at least.
    pub garbage_bytes: u64,
    /// How often that is looked at.
    pub interval: Duration,
    /// The limit of the copy rate, if there is one.
    pub bytes_per_second: Option<NonZeroU64>,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self {
            garbage_percent: 50,
            garbage_bytes: 64 << 20,
            interval: Duration::from_secs(10),
            bytes_per_second: NonZeroU64::new(32 << 20),
        }
    }
}

/// Collects garbage in the background, until it is dropped.
#[derive(Debug)]
pub struct Collector {
    stop: Option<Sender<()>>,
    pace: Arc<Pace>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    /// Starts the thread. `report` receives the result of each collection, and errors.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started.
    pub fn start(
        image: Arc<LiveImage>,
        options: CollectorOptions,
        report: impl Fn(Result<super::Collected>) + Send + 'static,
    ) -> Result<Self> {
        let pace = Arc::new(
            options
                .bytes_per_second
                .map_or_else(Pace::unlimited, Pace::bytes_per_second),
        );
        let (stop, stopped) = channel::<()>();
        let paced = pace.clone();
        let run = move || {
            while stopped.recv_timeout(options.interval) == Err(RecvTimeoutError::Timeout) {
                if is_due(&image, &options) {
                    match image.collect(&paced) {
                        // It is due after the other operation, too.
                        Err(LsmtError::Busy { .. } | LsmtError::Canceled { .. }) => {}
                        done => report(done),
                    }
                }
            }
        };
        let thread = Builder::new().name("lsmt-collect".to_owned()).spawn(run);
        Ok(Self {
            stop: Some(stop),
            pace,
            thread: Some(thread.doing("start the collector's thread")?),
        })
    }
}

fn is_due(image: &LiveImage, options: &CollectorOptions) -> bool {
    image.image().upper().is_ok_and(|upper| {
        let usage = upper.usage();
        let garbage = usage.data_bytes.saturating_sub(usage.live_bytes);
        let percent = u64::from(options.garbage_percent);
        garbage >= options.garbage_bytes.max(1) && garbage * 100 >= usage.data_bytes * percent
    })
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.pace.cancel();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A collector that panicked has nothing more to say.
            drop(thread.join());
        }
    }
}
