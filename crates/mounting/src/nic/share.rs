//! Boot images that virtual machines of one host share by way of the service: what the first one
//! recorded, the second one starts from.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use blocks::Tree;
use blockservice::client::{Ask, NicSource, Planned, ServedPlan, Wanted};
use bootimg::{Image, Progress, SourceInfo, Variant, WriteRequest, unite, write_image};
use tracer::{MergeOptions, Trace};

use super::boot::{BootBlocks, NicBoot, Recorded};
use super::{NEEDED, Nic, PlanRequested};
use crate::source::timestamp;
use node_api::boot_choice::BootChoice;

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
    /// Returns the boot image chosen for the source.
    ///
    /// # Errors
    /// If a requested one cannot be used.
    pub fn choose_boot(&self, choice: &BootChoice) -> anyhow::Result<Option<NicBoot>> {
        let tree = self.index().tree();
        match choice {
            BootChoice::None => Ok(None),
            BootChoice::Auto => {
                let source = self.source().context("only a source of the service")?;
                if let Some(boot) = self.served_boot(source) {
                    return Ok(Some(boot));
                }
                let newest = match self.plan_requested {
                    PlanRequested::Yes => None,
                    PlanRequested::No => self.newest_boot(),
                };
                let Some((name, image)) = newest else {
                    source.expect_programs();
                    return Ok(None);
                };
                let image = Arc::new(image.attach(tree));
                let planned = Planned::new(Arc::clone(source), image.plan());
                let blocks = BootBlocks::OfSource(planned);
                let recorded = Recorded::Image(image);
                Ok(Some(NicBoot {
                    name,
                    recorded,
                    blocks,
                }))
            }
            BootChoice::File(path) => {
                let image = Image::open(path).context("opening the boot image")?;
                let image = Arc::new(Arc::new(image).attach(tree));
                let blocks = BootBlocks::Own(Arc::clone(&image));
                let name = path.display().to_string();
                let recorded = Recorded::Image(image);
                Ok(Some(NicBoot {
                    name,
                    recorded,
                    blocks,
                }))
            }
            BootChoice::Image(image) => bail!(
                "the store knows no sources of a service: give boot image {image} as a file, or \
                 have the service's (boot: auto)"
            ),
        }
    }

    /// Returns the plan that came with the source, or that comes now for a source that was known
    /// before. One that cannot be had costs speed only.
    fn served_boot(&self, source: &Arc<NicSource>) -> Option<NicBoot> {
        let plan = match self.plan_requested {
            PlanRequested::Yes => self.plan.clone(),
            PlanRequested::No => self.ask_for_plan(),
        }?;
        source.expect(&plan);
        let blocks = BootBlocks::OfSource(Planned::new(Arc::clone(source), &plan.plan));
        Some(NicBoot {
            name: format!("{}:{}", self.name.label(), plan.id.short()),
            recorded: Recorded::Plan(plan),
            blocks,
        })
    }

    fn ask_for_plan(&self) -> Option<ServedPlan> {
        let wanted = Wanted {
            name: self.name.name.as_bytes(),
            id: Some(self.index().id()),
            have: Some(Arc::clone(self.index())),
            ask: Ask::Plan,
        };
        let started = self.client.start_source(&wanted, NEEDED);
        let failed = |error: &_| log::debug!("{}: no plan: {error}", self.name.label());
        started.inspect_err(failed).ok()?.plan
    }

    /// Returns the newest boot image that the service has of the source, with what to call it.
    /// Another machine made it, and its id says only that it came whole: what boots read is taken
    /// from it, and no byte of that.
    /// One that cannot be had costs speed only: it is logged.
    fn newest_boot(&self) -> Option<(String, Arc<Image>)> {
        match self.try_newest_boot() {
            Ok(found) => found,
            Err(error) => {
                log::warn!(
                    "{}: cannot get a boot image from the service: {error:#}",
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
        let called = format!("{}:{}", self.name.label(), newest.id.short());
        Ok(Some((called, image)))
    }

    /// Makes a boot image of the recording merged with the service's newest one, and
    /// uploads it, unless the service has all of it. `aside` is a directory for temporary files.
    ///
    /// # Errors
    /// If it cannot be made, or the service refuses it.
    pub fn share(&self, trace: &Trace, tree: &Tree, aside: &Path) -> anyhow::Result<()> {
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
        let plan = match self.newest_boot() {
            None => &recorded,
            Some((_, image)) => {
                let attached = Arc::new(image.attach(tree));
                united = unite([&recorded, attached.plan()]);
                if united.block_count() == attached.plan().block_count() {
                    return Ok(());
                }
                &united
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
            // What others made is believed in what boots read, and not in what that is.
            blocks: &**source,
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
