//! Boot images that virtual machines of one host share by way of the service: what the first one
//! recorded, the second one starts from.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use blocks::{BlockSource, CachedSource, ReplayPlan, Tree};
use bootimg::{Image, Progress, SourceInfo, Variant, WriteRequest, unite, write_image};
use tracer::{MergeOptions, Trace};

use super::Nic;
use crate::source::timestamp;
use crate::yolofs::BootChoice;

/// How long a mount waits for a boot image to be compared with the source.
const COMPARING: Duration = Duration::from_secs(30);
/// How long a daemon whose mount is over makes a boot image.
const MAKING: Duration = Duration::from_secs(60);

/// Watches until so much time is over, and cancels.
fn within(time: Duration) -> impl FnMut(Progress) -> ControlFlow<()> {
    let end = Instant::now() + time;
    move |_| match Instant::now() < end {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

impl Nic {
    /// Returns the boot image that is chosen for the source, with what to call it.
    ///
    /// # Errors
    /// If one that was asked for cannot be used.
    pub(crate) fn choose_boot(
        &self,
        choice: &BootChoice,
    ) -> anyhow::Result<Option<(String, Arc<Image>)>> {
        match choice {
            BootChoice::None => Ok(None),
            BootChoice::Auto => Ok(self.newest_boot()),
            BootChoice::File(path) => {
                let image = Image::open(path).context("opening the boot image")?;
                Ok(Some((path.display().to_string(), Arc::new(image))))
            }
            BootChoice::Image(image) => bail!(
                "the store knows no sources of a service: give boot image {image} as a file, or \
                 have the service's (--boot auto)"
            ),
        }
    }

    /// Returns the newest boot image that the service has of the source, with what to call it.
    /// One that cannot be had costs speed only: it is logged.
    fn newest_boot(&self) -> Option<(String, Arc<Image>)> {
        match self.try_newest_boot() {
            Ok(found) => found,
            Err(error) => {
                log::warn!(
                    "{}: no boot image from the service: {error:#}",
                    self.name.label()
                );
                None
            }
        }
    }

    fn try_newest_boot(&self) -> anyhow::Result<Option<(String, Arc<Image>)>> {
        let name = self.name.name.as_bytes();
        let Some(newest) = self.client.boots(name)?.into_iter().next() else {
            return Ok(None);
        };
        let bytes = self.client.boot(name, &newest)?;
        let image = Arc::new(Image::from_bytes(bytes).context("opening it")?);
        self.compare(&image)?;
        let called = format!("{}:{}", self.name.label(), newest.id.short());
        Ok(Some((called, image)))
    }

    /// Compares a boot image with the source, every chunk of which is verified. Another machine
    /// made the image, and its id says only that it came whole.
    fn compare(&self, image: &Arc<Image>) -> anyhow::Result<()> {
        let source = self.source().context("only a source of the service")?;
        let tree = self.index().tree();
        let compared = image.verify_against(tree, &**source, &mut within(COMPARING));
        let compared = compared.map_err(|_| anyhow!("comparing it took longer than {COMPARING:?}"));
        let Some(wrong) = compared?.differences.into_iter().next() else {
            return Ok(());
        };
        let path = String::from_utf8_lossy(&wrong.path).into_owned();
        match wrong.failed {
            Some(reason) => bail!("{path} could not be compared with the source: {reason}"),
            None => {
                bail!("it has another {path} than the source: who made it is not to be trusted")
            }
        }
    }

    /// Makes a boot image of what was recorded, and of what the newest one at the service has, and
    /// gives it to the service, unless that has all of it. `aside` is where it may lie meanwhile.
    ///
    /// # Errors
    /// If it cannot be made, or the service does not take it.
    pub(crate) fn share(&self, trace: &Trace, tree: &Tree, aside: &Path) -> anyhow::Result<()> {
        let options = MergeOptions::default();
        let recorded = tracer::merge(std::slice::from_ref(trace), tree, &options);
        let recorded = recorded.context("making a plan of what was recorded")?.plan;
        if recorded.extents.is_empty() && recorded.touches.is_empty() {
            return Ok(());
        }
        let source = self
            .source()
            .context("only a source of the service is shared")?;
        let united;
        let cached;
        let (plan, blocks): (&ReplayPlan, &dyn BlockSource) = match self.newest_boot() {
            None => (&recorded, &**source),
            Some((_, image)) => {
                let attached = Arc::new(image.attach(tree));
                united = unite([&recorded, attached.plan()]);
                if united.block_count() == attached.plan().block_count() {
                    return Ok(());
                }
                // What it has need not come from the service once more.
                cached = CachedSource::new(attached, Arc::clone(source));
                (&united, &cached)
            }
        };
        let info = SourceInfo {
            label: self.name.label(),
            id: self.name.source_id(),
            recorded_at: timestamp(SystemTime::now()).secs,
            command: Vec::new(),
            tool: concat!("yolofs ", env!("CARGO_PKG_VERSION")).to_owned(),
            ready_ms: Vec::new(),
            similarity_ppm: None,
            source_bytes: crate::source::bytes_of(tree),
        };
        let request = WriteRequest {
            tree,
            info: &info,
            plan,
            blocks,
            variant: Variant::Packed,
        };
        let written = write_image(aside, &request, &mut within(MAKING));
        let bytes = written
            .map_err(|error| anyhow!(error))
            .and_then(|_| fs::read(aside).map_err(Into::into));
        // Whatever became of it, it is not needed here.
        let _gone = fs::remove_file(aside);
        let bytes = bytes.context("writing the boot image")?;
        let id = self.client.keep_boot(self.name.name.as_bytes(), &bytes)?;
        log::info!(
            "{}: boot image {} is at the service",
            self.name.label(),
            id.short()
        );
        Ok(())
    }
}
