//! The thread that measures the load of the machine.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::sources::Sources;
use super::{Judge, Level, Load, Reading, Thresholds};

/// How often the load is measured. The kernel updates its averages every two seconds.
const EVERY: Duration = Duration::from_secs(1);

/// Keeps a [`Load`] up to date until it is dropped.
#[derive(Debug)]
pub struct LoadWatch {
    /// Nothing is ever sent: the thread ends when this is dropped.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadWatch {
    /// Starts to measure. If the system provides no measurements, a warning is logged, and no load
    /// is shed.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(load: Arc<Load>, thresholds: Thresholds) -> io::Result<Self> {
        let sources = Sources::find();
        let watched = watched(&sources.read());
        if watched.is_empty() {
            log::warn!(
                "neither PSI nor a control group tells the load of the machine: no load will be shed"
            );
        }
        load.set_watched(watched);
        let (stop, stopped) = channel::<()>();
        let watch = move || {
            let mut judge = Judge::default();
            loop {
                look(&sources, &thresholds, &mut judge, &load);
                if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("nicfetch-load".to_owned());
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread.spawn(watch)?),
        })
    }
}

impl Drop for LoadWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it is on the log.
            let _ended = thread.join();
        }
    }
}

/// Returns the names of the measurements that the system provides.
fn watched(reading: &Reading) -> Vec<&'static str> {
    let measures = [
        (reading.cpu, "cpu"),
        (reading.memory, "memory"),
        (reading.io, "io"),
        (reading.memory_used, "memory_used"),
    ];
    let there = measures.into_iter().filter(|(value, _)| value.is_some());
    there.map(|(_, name)| name).collect()
}

fn look(sources: &Sources, thresholds: &Thresholds, judge: &mut Judge, load: &Load) {
    let reading = sources.read();
    load.set_watched(watched(&reading));
    let before = load.level();
    let (wanted, reason) = reading.judge(thresholds);
    let level = judge.next(wanted, Instant::now());
    let reason = match level {
        Level::Normal => None,
        // It only waits for the end of the hold.
        _ if wanted < level => load.report().reason,
        _ => reason,
    };
    if level != before {
        let why = reason.as_deref().unwrap_or("the overload has ended");
        log::warn!(
            "the load is {} now, and was {}: {why}",
            level.word(),
            before.word()
        );
    }
    load.set(level, reason);
}
