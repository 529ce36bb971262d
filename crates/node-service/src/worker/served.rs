//! One mount that is served.

use std::io::Write as _;
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use devices::OpenedImage;
use yolofs::{Connection, End, Ended, Hello, Lock, Readahead, ServeOptions, Serving};

use super::access_log::AccessLog;
use super::names::Init;
use super::open::Opened;
use super::prepare::{Prepared, Refusal, Way, nic_boot, open_boot, prepare};
use super::presence::predecessors;
use crate::descriptors::MountDescriptors;
use crate::wire::{Adoption, Fault};
use mounting::assembly::{Assembly, Parts};
use mounting::boot::Boot;
use mounting::descriptors::files_for_each_of;
use mounting::prewarming::{PrewarmRequest, Prewarming};
use node_api::boot_choice::BootChoice;
use node_api::image::{KeptPlan, StartPlanState};
use node_api::mount_daemon::PrewarmSummary;
use node_api::mount_state::{MountState, PrewarmState};
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_records::company::SHARED_BY;

/// One block in so many is held back from the page cache of a mount that is learned from: some
/// thirty of a usual boot image, each of which costs a boot one request.
const SAMPLE: NonZeroU32 = NonZeroU32::new(256).unwrap();

/// Receives the name of a mount whose session is over.
pub(super) type Over = Sender<(String, End)>;

/// A mount that this process serves.
#[derive(Debug)]
pub(super) struct Served {
    id: String,
    spec: MountSpec,
    parts: Parts,
    /// Records requests, if boot images are made of them.
    access_log: Option<Arc<AccessLog>>,
    serving: Serving,
    image: Option<OpenedImage>,
    prewarming: Prewarming,
    /// For a node that has lost its own.
    device: OwnedFd,
    source: Option<OwnedFd>,
    names: OwnedFd,
    #[expect(
        dead_code,
        reason = "the last field: it is dropped when all others are"
    )]
    opened: Option<Opened>,
}

impl Served {
    /// Serves a mount from now on.
    ///
    /// # Errors
    /// If its source or the requested boot image cannot be used, or an earlier worker gave another
    /// FUSE_INIT response.
    pub(super) fn start(
        adoption: Adoption,
        handed: MountDescriptors,
        over: Over,
        way: Way<'_>,
    ) -> Result<Self, Refusal> {
        let Adoption { id, spec, hello } = adoption;
        let answer = Some(hello.answer).filter(|answer| !answer.is_empty());
        let hello = Hello::from_parts(hello.request, answer)
            .map_err(|error| Refusal::new(Fault::Invalid, error))?;
        let threads = NonZeroUsize::new(usize::from(spec.threads))
            .ok_or_else(|| Refusal::new(Fault::Invalid, anyhow!("a mount needs a thread")))?;
        let init = match hello.answer() {
            Some(_) => Init::Answered,
            None => Init::Unanswered,
        };
        let Prepared {
            assembly,
            access_log,
            image,
        } = prepare(&spec, &handed, init, way)?;
        let Assembly { fs, parts } = assembly;
        let MountDescriptors {
            device,
            source,
            names,
            private,
        } = handed;
        let name = id.clone();
        let options = ServeOptions {
            threads,
            readahead: readahead(&spec, image.as_ref()),
            ended: Some(Ended::new(move |end| {
                // The other end lives as long as the process.
                let _told = over.send((name.clone(), end.clone()));
            })),
            // What a block service has of a source never changes, so no earlier worker can inject older pages.
            predecessors: source.as_ref().and_then(|_| predecessors(&names, &id)),
        };
        let leaving = private.is_none();
        let connection = Connection::from_parts(device, hello);
        let serving = Serving::start(Arc::new(fs), &connection, private, &options)
            .with_context(|| format!("serving {}", spec.mountpoint.display()))?;
        if leaving {
            serving.let_go();
        }
        Ok(Self {
            id,
            spec,
            parts,
            access_log,
            serving,
            image,
            prewarming: Prewarming::new(PrewarmState::Off),
            device: connection.into_parts().0,
            source,
            names,
            opened: None,
        })
    }

    /// Marks it as open, until all of it is closed.
    pub(super) fn noted(self, opened: Opened) -> Self {
        Self {
            opened: Some(opened),
            ..self
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the FUSE_INIT response.
    pub(super) fn hello(&self) -> Vec<u8> {
        self.serving.hello().answer().unwrap_or_default().to_vec()
    }

    /// Returns whether its last user is gone.
    pub(super) fn is_over(&self) -> bool {
        self.serving.end() == Some(End::SessionOver)
    }

    /// Returns whether it has a boot image that shall be in the page cache, or may have one.
    pub(super) fn wants_prewarm(&self) -> bool {
        let has_one = self.parts.boot.current().is_some() || self.misses_boot();
        self.spec.inject && self.serving.visible() && has_one
    }

    /// Returns whether the service may have a boot image of it that was not waited for.
    fn misses_boot(&self) -> bool {
        let is_far = self.parts.disk.is_none();
        is_far && self.spec.boot == BootChoice::Auto && self.parts.boot.current().is_none()
    }

    /// Loads the boot image into the page cache, as the mount's specification requires.
    ///
    /// # Errors
    /// As [`Served::prewarm`].
    pub(super) fn prewarm_first(&self) -> anyhow::Result<()> {
        self.fetch_boot();
        match self.parts.boot.current() {
            Some(boot) if self.wants_prewarm() => {
                self.run_prewarm(&boot, self.spec.budget_bytes).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Serves from the boot image that the service has of the source, if it was not waited for.
    fn fetch_boot(&self) {
        let Parts { nic, boot, .. } = &self.parts;
        let Some(nic) = nic.as_ref().filter(|_| self.misses_boot()) else {
            return;
        };
        match nic_boot(nic, &BootChoice::Auto) {
            // Another may have been put in its place meanwhile.
            Ok(Some(found)) if self.misses_boot() => {
                drop(boot.exchange(Some(found)));
            }
            Ok(_) => {}
            Err(refusal) => log::warn!("{}: {:#}", self.id, refusal.error),
        }
    }

    /// Loads the boot image into the page cache now.
    ///
    /// # Errors
    /// If there is none, or the mount is gone.
    pub(super) fn prewarm(&self, budget_bytes: Option<u64>) -> Result<PrewarmSummary, Refusal> {
        let boot = self.parts.boot.current();
        let boot = boot
            .ok_or_else(|| Refusal::new(Fault::Conflict, anyhow!("the mount has no boot image")))?;
        Ok(self.run_prewarm(&boot, budget_bytes)?)
    }

    fn run_prewarm(&self, boot: &Boot, budget: Option<u64>) -> anyhow::Result<PrewarmSummary> {
        let request = PrewarmRequest {
            lock: if self.spec.lock { Lock::Yes } else { Lock::No },
            budget_bytes: budget,
            max_pins: Some(files_for_each_of(SHARED_BY as u64)),
            hold_back: self.spec.auto.then_some(SAMPLE),
        };
        self.prewarming
            .prewarm(boot, &request, |plan, blocks, options| {
                self.serving.prewarm(plan, blocks, options)
            })
    }

    /// Serves from another boot image, or from none, from now on. All of it is read and verified
    /// first; one that is damaged is refused, and the old one stays.
    ///
    /// # Errors
    /// If it is not there or damaged.
    pub(super) fn swap(&self, choice: &BootChoice) -> Result<(), Refusal> {
        let Parts { tree, .. } = &self.parts;
        let boot = match (&self.parts.disk, &self.parts.nic) {
            (Some(disk), _) => open_boot(&self.spec, choice, &disk.root, tree)?,
            (None, Some(nic)) => nic_boot(nic, choice)?,
            (None, None) => None,
        };
        match &boot {
            Some(boot) => check(boot).map_err(|error| Refusal::new(Fault::Invalid, error))?,
            None if *choice == BootChoice::None => {}
            None => {
                let none = anyhow!("the store has no boot image of this source");
                return Err(Refusal::new(Fault::Invalid, none));
            }
        }
        self.prewarming.cancel();
        let _before = self.parts.boot.exchange(boot);
        Ok(())
    }

    /// Writes the requests since the last report as a trace.
    ///
    /// # Errors
    /// If requests were not recorded, or the trace cannot be written.
    pub(super) fn write_heard(&self, to: OwnedFd) -> Result<(), Refusal> {
        let Parts { disk, tree, .. } = &self.parts;
        let heard = self.access_log.as_ref().zip(disk.as_ref());
        let (access_log, disk) = heard.ok_or_else(|| {
            Refusal::new(
                Fault::Conflict,
                anyhow!("the mount was made without `auto`: its accesses are not recorded"),
            )
        })?;
        let trace = access_log.take(&disk.root, tree).write();
        let trace = trace.context("writing the accesses of the mount")?;
        std::fs::File::from(to)
            .write_all(&trace)
            .context("writing the accesses of the mount")?;
        Ok(())
    }

    /// Lets go of the private mount, and of all that is held in it.
    pub(super) fn let_go(&self) {
        self.prewarming.cancel();
        self.serving.let_go();
    }

    /// Reads no more requests, and returns when all that were read are answered.
    ///
    /// # Errors
    /// If some may be left.
    pub(super) fn retire(&self, deadline: Instant) -> anyhow::Result<()> {
        self.prewarming.cancel();
        let place = || self.spec.mountpoint.display().to_string();
        self.serving.retire(deadline).with_context(place)
    }

    /// Returns descriptors for a node that has lost its own.
    ///
    /// # Errors
    /// If no more files may be open.
    pub(super) fn hand(&self) -> anyhow::Result<MountDescriptors> {
        let private = self.serving.dir_fd();
        let private = private.map(|fd| fd.try_clone()).transpose();
        let all = || -> std::io::Result<MountDescriptors> {
            Ok(MountDescriptors {
                device: self.device.try_clone()?,
                source: self.source.as_ref().map(OwnedFd::try_clone).transpose()?,
                names: self.names.try_clone()?,
                private: private?,
            })
        };
        all().context("handing over a mount")
    }

    /// Returns the status, from counters.
    pub(super) fn status(&self) -> MountStatus {
        let counters = self.serving.counters();
        MountStatus {
            id: self.id.clone(),
            mountpoint: self.spec.mountpoint.clone(),
            source: self.spec.source.clone(),
            source_inode: self.parts.source_inode(),
            mode: self.parts.mount_mode(),
            state: if self.serving.visible() {
                MountState::Serving
            } else {
                MountState::Leaving
            },
            pid: Some(std::process::id()),
            boot: self.parts.boot_status(&counters, self.prewarming.state()),
            nic: self.parts.nic.as_ref().map(|nic| nic.status()),
            warnings: self.parts.warnings(),
            image: self.image.as_ref().map(OpenedImage::status),
            served: Some(self.parts.served_status(&counters)),
        }
    }

    /// Has those who wait for a registry to read the block image give up.
    pub(super) fn give_up(&self) {
        if let Some(image) = &self.image {
            image.give_up(Duration::ZERO);
        }
    }

    /// Makes a plan of what was read of the block image.
    ///
    /// # Errors
    /// If it is none, is not being recorded, or nothing was read.
    pub(super) fn keep_plan(&self) -> Result<KeptPlan, Refusal> {
        let image = self.image.as_ref();
        let image = image.ok_or_else(|| {
            Refusal::new(Fault::Conflict, anyhow!("the mount has no block image"))
        })?;
        let kept = image.keep_plan();
        kept.map_err(|error| Refusal::new(Fault::Conflict, error))
    }
}

/// How far the kernel reads ahead where a plan says what a start reads, or is made of it: what is beside that would be
/// waited for, again and again.
const PLANNED_READAHEAD_KIB: u32 = 16;

fn readahead(spec: &MountSpec, image: Option<&OpenedImage>) -> Readahead {
    let is_planned =
        image.is_some_and(|image| image.status().start.plan != StartPlanState::Unknown);
    match spec.readahead_kib {
        None if is_planned => Readahead::Kib(PLANNED_READAHEAD_KIB),
        asked => asked.map_or(Readahead::Kernel, Readahead::Kib),
    }
}

/// Reads and verifies every byte of a boot image.
fn check(boot: &Boot) -> anyhow::Result<()> {
    // The chunks of a plan are verified as they come.
    let Some(image) = boot.image() else {
        return Ok(());
    };
    let report = image
        .image()
        .verify(&mut bootimg::unwatched)
        .map_err(|_| anyhow!("verifying it was cancelled"))?;
    if !report.is_sound() {
        bail!("boot image {} is damaged: see bootimg verify", boot.name);
    }
    Ok(())
}
