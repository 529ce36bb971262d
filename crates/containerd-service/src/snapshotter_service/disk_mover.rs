//! The thread that moves layers from the fast place to the disk, while none are being unpacked.

use std::ops::ControlFlow;
use std::sync::Weak;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use snapshotter::{Pace, SnapshotError, Snapshotter};
use tiering::Rate;
use tiering::pace::{Pace as _, Throttle};

use super::placing::Placing;
use super::served::ServedLowers;
use host::interrupt::Interrupt;

/// How often it is looked whether there is something to do.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long after a failure, which the next attempt may well meet again: a full disk, say.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How often it is looked whether a pull is over, and how long one is waited for in all before each
/// piece: a pull that hangs must not hold up others for ever.
const YIELD: Duration = Duration::from_millis(50);
const YIELD_MAX: Duration = Duration::from_secs(5);
/// Bytes a second: what an old disk writes while it does something else, too.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// The thread's parameters.
pub(super) struct DiskMover {
    pub(super) snapshotter: Weak<Snapshotter<ServedLowers>>,
    pub(super) placing: Placing,
    /// How long nothing was unpacked before layers go.
    pub(super) stay: Duration,
    pub(super) interrupt: Interrupt,
}

/// Goes slowly, after pulls, and not on when we are asked to end.
struct Slowly<'a> {
    disk_mover: &'a DiskMover,
    throttle: Mutex<Throttle>,
}

impl Pace for Slowly<'_> {
    fn turn(&self, bytes: u64) -> ControlFlow<()> {
        let of = self.disk_mover;
        let mut yielded = Duration::ZERO;
        while of.placing.is_busy(Duration::ZERO) && yielded < YIELD_MAX && !of.interrupt.asked() {
            of.sleep(YIELD);
            yielded += YIELD;
        }
        let cancelled = self.throttle.lock().turn(bytes).is_err();
        match cancelled || of.interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

impl DiskMover {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start(self) -> anyhow::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("disk_mover".to_owned())
            .spawn(move || self.run())
            .context("starting the thread that brings layers to the disk")
    }

    fn run(&self) {
        if let Err(error) = rawio::idle::idle_io() {
            log::debug!("layers are brought to the disk at the usual priority: {error}");
        }
        let pace = Slowly {
            disk_mover: self,
            throttle: Mutex::new(Throttle::new(
                Rate::per_second(BYTES_PER_SECOND),
                std::sync::Arc::default(),
            )),
        };
        while !self.interrupt.asked() {
            self.sleep(LOOK_EVERY);
            if self.interrupt.asked() || self.placing.is_busy(self.stay) {
                continue;
            }
            let Some(snapshotter) = self.snapshotter.upgrade() else {
                return;
            };
            match snapshotter.bring_home(&pace) {
                Ok(0) | Err(SnapshotError::Stopped) => {}
                Ok(layers) => log::info!("moved {layers} layers to the disk"),
                Err(error) => {
                    log::warn!("cannot move layers to the disk now: {error}");
                    drop(snapshotter);
                    self.sleep(AGAIN_AFTER);
                }
            }
        }
    }

    /// Sleeps, or until we are asked to end.
    fn sleep(&self, time: Duration) {
        let mut waits = [PollFd::new(self.interrupt.fd(), PollFlags::POLLIN)];
        let time = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        // Ended early by a signal, which is asked for next.
        let _events = poll(&mut waits, time);
    }
}
