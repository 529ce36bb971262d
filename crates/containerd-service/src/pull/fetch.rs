//! The downloads of a pull: several layers at once, each unpacked where it is staged.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use engine::containerd::{BlobSink, Lease};
use oci::registry::{Access, RegistryConfig, Repository};
use oci::unpack::{Implied, Limits, Unpacked};
use oci::{DownloadWatch, Incoming, IncomingError, Reference, fetch_layer};
use parking_lot::Mutex;
use snapshotter::Staged;
use tiering::lass::{Line, Placement};

use super::blobs;
use super::wanted::Layer;
use crate::disk_writes::DiskWrites;
use crate::placement::predicted::Predicted;
use crate::placement::streamed::{Begun, Seen, came_of, left_of, weighed};
use crate::placement::{network, sizes};
use crate::snapshotter_service::staging::SnapshotterClient;
use crate::snapshotter_service::status::StagingPlaces;
use host::interrupt::Interrupt;
use host::progress::Bar;
use host::run_dir::RunDir;

/// What is booked at once for a layer that takes more than was foreseen.
const MORE: u64 = 16 << 20;
/// How often the snapshotter is notified that the pull continues.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The downloads of one pull.
pub(super) struct Fetch<'a> {
    pub(super) reference: &'a Reference,
    pub(super) registry: &'a RegistryConfig,
    pub(super) layers: &'a [Layer],
    pub(super) places: &'a [Placement],
    pub(super) staging: &'a StagingPlaces,
    pub(super) client: &'a SnapshotterClient,
    pub(super) pull: &'a str,
    pub(super) interrupt: &'a Interrupt,
    pub(super) bar: &'a Bar,
    pub(super) run_dir: &'a RunDir,
    pub(super) concurrent: NonZeroUsize,
    /// Stores the blobs, if they are kept.
    pub(super) keeper: Option<&'a Lease<'a>>,
    pub(super) shared: Shared,
}

/// What the downloads have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    next: AtomicUsize,
    /// Whether one of them has failed.
    pub(super) failed: AtomicBool,
    begun: Mutex<BTreeMap<usize, Begun>>,
    /// When the first byte came.
    first_byte: OnceLock<Instant>,
    /// When the last byte came.
    last_byte: Mutex<Option<Instant>>,
    said: Mutex<Option<Instant>>,
}

/// A layer that is unpacked, and waits for those below.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) staged: Staged,
    pub(super) unpacked: Unpacked,
    pub(super) implied: Implied,
    pub(super) place: Placement,
}

/// Where each layer goes: those that are downloaded last, and above, are waited for.
pub(super) fn places(
    layers: &[Layer],
    concurrent: NonZeroUsize,
    staging: &StagingPlaces,
) -> Vec<Placement> {
    let sizes: Vec<u64> = layers.iter().map(|layer| layer.blob.size).collect();
    let predicted = Predicted::of(&sizes, concurrent).filter(|_| staging.fast.is_some());
    let place = |at| predicted.map_or(Placement::Slow, |predicted| predicted.place(at));
    (0..layers.len()).map(place).collect()
}

impl Shared {
    pub(super) fn last_byte(&self) -> Option<Instant> {
        *self.last_byte.lock()
    }

    pub(super) fn came(&self) -> u64 {
        came_of(&self.begun.lock())
    }
}

impl Fetch<'_> {
    /// Downloads layers until there are no more, and sends each.
    pub(super) fn run(&self, done: &Sender<(usize, anyhow::Result<Ready>)>) {
        let repository = Repository::open(self.reference, Access::Pull, self.registry);
        let repository = match repository.context("setting up the registry") {
            Ok(repository) => repository,
            Err(error) => {
                // Whoever waits for the first missing layer hears it.
                let at = self.shared.next.fetch_add(1, SeqCst);
                let _sent = done.send((at, Err(error)));
                return;
            }
        };
        loop {
            let at = self.shared.next.fetch_add(1, SeqCst);
            let Some(layer) = self.layers.get(at) else {
                return;
            };
            if self.shared.failed.load(SeqCst) {
                return;
            }
            let fetched = self.layer(&repository, at, layer);
            if fetched.is_err() {
                self.shared.failed.store(true, SeqCst);
            }
            if done.send((at, fetched)).is_err() {
                return;
            }
        }
    }

    fn layer(&self, repository: &Repository, at: usize, layer: &Layer) -> anyhow::Result<Ready> {
        let foreseen = sizes::archive_of(layer.blob.size);
        if let Some(staged) = self.fast(at, foreseen)? {
            match self.into(repository, at, layer, staged, Some(foreseen))? {
                Some(ready) => return Ok(ready),
                None => log::info!(
                    "the layer {} does not fit on the fast tier, and goes to the disk",
                    layer.blob.digest.short()
                ),
            }
        }
        let staged = Staged::make(&self.staging.disk)?;
        let ready = self.into(repository, at, layer, staged, None)?;
        ready.context("a layer on the disk is bound by nothing")
    }

    /// Stages a layer on the fast place, if it is to go there and there is room.
    fn fast(&self, at: usize, foreseen: u64) -> anyhow::Result<Option<Staged>> {
        let Some(fast) = &self.staging.fast else {
            return Ok(None);
        };
        if self.begin(at) != Placement::Fast {
            return Ok(None);
        }
        let staged = Staged::make(fast)?;
        let booked = self.client.book(staged.name(), foreseen)?;
        Ok(booked.then_some(staged))
    }

    /// Chooses the place of a layer whose download begins now.
    fn begin(&self, at: usize) -> Placement {
        let mut begun = self.shared.begun.lock();
        let place = self.weighed(at, &begun);
        let place = place.or_else(|| self.places.get(at).copied());
        let place = place.unwrap_or(Placement::Slow);
        let (came, unpacked) = (0, 0);
        begun.insert(
            at,
            Begun {
                came,
                unpacked,
                place,
            },
        );
        place
    }

    /// Weighs what the disk can have written when the download ends; `None` if it is not known how fast
    /// the disk is, or the network.
    fn weighed(&self, at: usize, begun: &BTreeMap<usize, Begun>) -> Option<Placement> {
        let disk = DiskWrites::below(&self.staging.disk)?;
        let seen = Seen {
            rate: disk.rate(self.run_dir)?,
            waiting: disk.waiting(),
        };
        let (came, since) = (came_of(begun), *self.shared.first_byte.get()?);
        let line = Line {
            rate: network::rate(came, since.elapsed())?,
            concurrent: self.concurrent,
        };
        let blobs = self.keeper.map(|_| line.rate);
        let disk = left_of(seen, begun, since.elapsed(), blobs)?;
        let sizes: Vec<u64> = self.layers.iter().map(|layer| layer.blob.size).collect();
        weighed(at, &sizes, begun, &line, &disk, self.staging.room)
    }

    /// Notes how far a layer is.
    fn note(&self, at: usize, change: impl FnOnce(&mut Begun)) {
        let mut begun = self.shared.begun.lock();
        let of = begun.entry(at).or_insert(Begun {
            came: 0,
            unpacked: 0,
            place: Placement::Slow,
        });
        change(of);
    }

    /// Downloads a layer into a directory; `None` if that is bound, and too small for it.
    fn into(
        &self,
        repository: &Repository,
        at: usize,
        layer: &Layer,
        staged: Staged,
        booked: Option<u64>,
    ) -> anyhow::Result<Option<Ready>> {
        let into = staged.fs();
        let incoming = Incoming {
            blob: &layer.blob,
            diff_id: layer.diff_id,
            into: &into,
            limits: Limits::default(),
        };
        let is_full = AtomicBool::new(false);
        let fetch = |sink: Option<&BlobSink>| {
            let watch = LayerWatch {
                fetch: self,
                at,
                staged: &staged,
                booked: booked.map(AtomicU64::new),
                is_full: &is_full,
                sink,
            };
            fetch_layer(repository, &incoming, &watch)
        };
        let fetched = match self.keeper {
            None => fetch(None),
            Some(lease) => {
                let attempt = staged.name().as_str();
                let of = (self.reference, layer);
                blobs::keep(lease, of, attempt, |sink| fetch(Some(sink)))?
            }
        };
        let is_full = is_full.load(SeqCst);
        match fetched {
            Ok((unpacked, implied)) => Ok(Some(Ready {
                staged,
                unpacked,
                implied,
                place: match booked {
                    Some(_) => Placement::Fast,
                    None => Placement::Slow,
                },
            })),
            Err(error) if booked.is_some() && (is_full || is_no_space(&error)) => {
                self.shared.begun.lock().remove(&at);
                Ok(None)
            }
            Err(error) => Err(no_room(error, &into)
                .context(format!("pulling the layer {}", layer.blob.digest.short()))),
        }
    }

    fn hears(&self) -> ControlFlow<()> {
        self.bar.set_position(self.shared.came());
        self.say();
        self.goes_on()
    }

    fn goes_on(&self) -> ControlFlow<()> {
        match self.interrupt.asked() || self.shared.failed.load(SeqCst) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Notifies the snapshotter now and then that the pull continues.
    fn say(&self) {
        {
            let mut said = self.shared.said.lock();
            if said.is_some_and(|at| at.elapsed() < SAY_EVERY) {
                return;
            }
            *said = Some(Instant::now());
        }
        if let Err(error) = self.client.places(Some(self.pull)) {
            log::debug!("{error:#}");
        }
    }
}

/// Follows the download of one layer.
struct LayerWatch<'a> {
    fetch: &'a Fetch<'a>,
    at: usize,
    staged: &'a Staged,
    /// The space reserved for it on the fast place.
    booked: Option<AtomicU64>,
    is_full: &'a AtomicBool,
    /// Where the blob goes, too, if it is kept.
    sink: Option<&'a BlobSink>,
}

impl DownloadWatch for LayerWatch<'_> {
    fn at(&self, _came: u64) -> ControlFlow<()> {
        self.fetch.hears()
    }

    fn came(&self, bytes: &[u8]) -> ControlFlow<()> {
        if let Some(sink) = self.sink {
            sink.put(bytes);
        }
        self.fetch.shared.first_byte.get_or_init(Instant::now);
        *self.fetch.shared.last_byte.lock() = Some(Instant::now());
        let count = bytes.len() as u64;
        // What is to be told of a blob in the end is all of it, which `at` may not hear.
        self.fetch.note(self.at, |of| of.came += count);
        ControlFlow::Continue(())
    }

    fn unpacked(&self, bytes: u64) -> ControlFlow<()> {
        self.fetch.goes_on()?;
        self.fetch.note(self.at, |of| of.unpacked = bytes);
        let Some(booked) = &self.booked else {
            return ControlFlow::Continue(());
        };
        // Files take whole blocks: a quarter more, as the snapshotter foresees it.
        let needed = bytes.saturating_add(bytes / 4);
        if needed <= booked.load(SeqCst) {
            return ControlFlow::Continue(());
        }
        let more = needed.saturating_add(MORE);
        match self.fetch.client.book(self.staged.name(), more) {
            Ok(true) => {
                booked.store(more, SeqCst);
                ControlFlow::Continue(())
            }
            refused => {
                log::debug!("no more room for a layer: {refused:?}");
                self.is_full.store(true, SeqCst);
                ControlFlow::Break(())
            }
        }
    }
}

/// Says what to do about a full disk.
fn no_room(error: IncomingError, into: &Path) -> anyhow::Error {
    let is_no_space = is_no_space(&error);
    let error = anyhow::Error::new(error);
    match is_no_space {
        true => error.context(format!(
            "the disk of {} is full; remove images there",
            into.display()
        )),
        false => error,
    }
}

/// Returns whether there was no room on a disk.
fn is_no_space(error: &IncomingError) -> bool {
    matches!(error, IncomingError::Unpack(error) if error.is_no_space())
}
