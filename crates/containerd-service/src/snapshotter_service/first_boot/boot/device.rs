//! Following a first boot on a block image: the worker of its device records what is read, file system included, and makes
//! a plan of it when this process says that the boot is over.
//!
//! A device is read when it is mounted, too, so only a container whose first process was seen has booted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use node_api::image::{StartPlanState, StartStatus};

use super::super::ending::{Ending, Watcher};
use super::{Boot, End, Keeper, LONGEST};

/// How often it is looked whether the container was started, and whether its boot is over: some end soon.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// How long a node that went away may take to come back: its workers go on recording meanwhile.
const COMES_BACK: Duration = Duration::from_secs(10);

impl Boot {
    /// Waits until the boot is over, and has the plan kept. Returns the name of the image, or why there is no plan.
    pub(super) fn follow_device(
        &self,
        device: &str,
        mut watcher: Watcher<'_>,
        keeper: &Keeper,
    ) -> Result<String, String> {
        let kept = self.wait_device(device, &mut watcher, keeper);
        let kept = kept.and_then(|()| {
            let plan = keeper.node.ask(COMES_BACK, |node| node.keep_plan(device))?;
            log::info!(
                "{} bytes are in the plan {}",
                plan.bytes,
                plan.file.display()
            );
            // Its name is for people only.
            let image = keeper.image_of(self);
            Ok(image.map_or_else(|_| self.top.to_string(), |image| image.reference))
        });
        self.now.lock().is_booted = true;
        kept.map_err(|error| {
            log::warn!("no plan is made of the start of {}: {error:#}", self.key);
            format!("{error:#}")
        })
    }

    fn wait_device(
        &self,
        device: &str,
        watcher: &mut Watcher<'_>,
        keeper: &Keeper,
    ) -> anyhow::Result<()> {
        let mut started = None;
        loop {
            let end = self.now.lock().end;
            if let Some(why) = end.and_then(End::is_no_boot) {
                bail!("{why}");
            }
            if started.is_none() && watcher.has_started() {
                started = Some(Instant::now());
            }
            if end.is_some() {
                ensure!(started.is_some(), "its container was not started");
                return Ok(());
            }
            if let Some(started) = started {
                let start = recording(device, keeper)?;
                if self.is_over_on_device(started, start, watcher) {
                    return Ok(());
                }
            }
            ensure!(
                started.is_some() || self.started.elapsed() < LONGEST,
                "its container was not started within {} s",
                LONGEST.as_secs()
            );
            let mut now = self.now.lock();
            if now.end.is_none() {
                self.changed.wait_for(&mut now, LOOK_EVERY);
            }
        }
    }

    fn is_over_on_device(
        &self,
        started: Instant,
        start: StartStatus,
        watcher: &mut Watcher<'_>,
    ) -> bool {
        let since = started.elapsed();
        let is_over = match self.ending {
            Ending::Quiet(time) => {
                let quiet = start.quiet_ms.map_or(since, Duration::from_millis);
                quiet.min(since) >= time
            }
            Ending::After(time) => return since >= time,
            Ending::Exit | Ending::Tcp(_) => watcher.sees_end(self.ending, None, None),
        };
        is_over || since >= LONGEST
    }
}

/// Returns how the recording goes.
fn recording(device: &str, keeper: &Keeper) -> anyhow::Result<StartStatus> {
    let devices = keeper.node.ask(COMES_BACK, |node| node.devices());
    let devices = devices.context("asking the node for the recording")?;
    let found = devices.into_iter().find(|one| one.name == device);
    let found = found.with_context(|| format!("the device {device} is gone"))?;
    let start = found.served.and_then(|served| served.start);
    let start = start.context("the worker that recorded it is being replaced")?;
    ensure!(
        start.plan == StartPlanState::Recording,
        "it is not being recorded any more: its worker was replaced, or another container\'s start was kept"
    );
    Ok(start)
}
