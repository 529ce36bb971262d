//! Layers that are fetched on demand: from a registry through the cache, checked, and fetched again where
//! they are wrong.

mod started;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use blocks::Digest;
use lsmt::{Expected, Layer, LsmtError, ReadAt, SegmentBudget, Window, ZFile};
use parking_lot::Mutex;

use crate::cache::{BlobCache, CachedBlob, Filler, PlanFetcher};
use crate::origin::{OriginConfig, Registries, repository_of};
use crate::reads::{self, Reading};
use crate::start_data::{StartData, StartDataRef};
use crate::{BlobSource, ImageError, LayerStart, Origin, RemoteLayer, Start};
use started::{LaterContent, Started, open_started};

/// How often what is wrong is fetched again before a read fails.
const REFETCHES: usize = 2;

/// The same, with those after waiting for the registry: a mirror that lies is all there is while the registry is away.
const WAITS: usize = 16;

/// The longest blob: its chunks have 32-bit numbers, and this is more than registries take.
const BLOB_MAX_BYTES: u64 = 1 << 44;

/// Layers that are opened at the same time.
const OPENED_TOGETHER: usize = 16;

/// Makes the origin of a blob, of the address of its repository and its digest.
pub type MakeOrigin = dyn Fn(&oci::Reference, Digest) -> io::Result<Origin> + Send + Sync;

/// Opens blobs of registries through a cache.
pub struct CachedBlobs {
    cache: Arc<BlobCache>,
    make_origin: Box<MakeOrigin>,
    background: Background,
    /// The background fetches of each image.
    work: Mutex<Vec<Work>>,
}

/// What is fetched in the background for an image.
#[derive(Debug, Default)]
struct Work {
    /// The data of the start.
    started: Option<Arc<Started>>,
    /// What else is planned.
    plans: Vec<PlanFetcher>,
    fillers: Vec<Filler>,
}

impl std::fmt::Debug for CachedBlobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedBlobs")
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// Which unread data is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Nothing.
    Nothing,
    /// What a start is known to read.
    Plan,
    /// That, and then all of each blob.
    Everything,
}

impl CachedBlobs {
    /// Returns a source of blobs, each from the origin that `make_origin` returns.
    #[must_use]
    pub fn new(
        cache: Arc<BlobCache>,
        background: Background,
        make_origin: Box<MakeOrigin>,
    ) -> Self {
        Self {
            cache,
            make_origin,
            background,
            work: Mutex::default(),
        }
    }

    /// Waits until all plans have been fetched, as long as `go_on` says; it is asked again and again. Verifies the data of
    /// starts, and fetches of the layers what is wrong in it. Returns whether all that is planned is in the cache.
    pub fn wait_for_plans(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        if !self.are_plans_done(go_on) {
            return false;
        }
        let work = self.work.lock();
        let started = work.iter().filter_map(|work| work.started.clone());
        let started: Vec<_> = started.collect();
        drop(work);
        started.iter().for_each(|started| started.check());
        self.are_plans_done(go_on) && self.has_plans()
    }

    fn are_plans_done(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let is_done = || {
            let work = self.work.lock();
            let mut plans = work.iter().flat_map(|work| &work.plans);
            let mut started = work.iter().filter_map(|work| work.started.as_ref());
            plans.all(PlanFetcher::is_done) && started.all(|started| started.is_done())
        };
        while !is_done() {
            if !go_on() {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Returns whether all plans have been fetched, and no part of them failed.
    #[must_use]
    pub fn has_plans(&self) -> bool {
        let work = self.work.lock();
        let mut plans = work.iter().flat_map(|work| &work.plans);
        let mut started = work.iter().filter_map(|work| work.started.as_ref());
        plans.all(|plan| plan.is_done() && plan.is_complete())
            && started.all(|started| started.is_done() && started.is_complete())
    }

    /// Returns a source of blobs of registries, each talked to as `config` says for it.
    #[must_use]
    pub fn of_registries(
        cache: Arc<BlobCache>,
        background: Background,
        config: impl Fn(&oci::Reference) -> io::Result<OriginConfig> + Send + Sync + 'static,
    ) -> Self {
        let registries = Registries::default();
        let make = move |reference: &oci::Reference, digest| {
            let origin = registries.origin(reference, digest, &config(reference)?);
            origin.map_err(io::Error::other)
        };
        Self::new(cache, background, Box::new(make))
    }
}

impl BlobSource for CachedBlobs {
    fn open(
        &self,
        blob_url: &str,
        layers: &[RemoteLayer],
        start: &Start,
        budget: &SegmentBudget,
    ) -> Result<Vec<Layer>, ImageError> {
        let mut work = Work::default();
        let data = self.start_data(blob_url, layers, start);
        let data = data.map(|(data, fetcher)| (Arc::new(data), fetcher));
        let from = (start, data.as_ref().map(|(data, _)| data));
        let opened = self.open_together(blob_url, layers, from, budget)?;
        work.started = data.map(|(data, fetcher)| {
            let layers = opened.iter().filter_map(|blob| blob.started.clone());
            Arc::new(Started::new(data, fetcher, layers.collect()))
        });
        let planned = |blob: &OpenedBlob| {
            let (cached, stored) = (Arc::clone(&blob.cached), blob.planned.clone());
            let ranges = stored.into_iter();
            ranges.map(move |(place, range)| (place, (Arc::clone(&cached), range)))
        };
        let mut plan: Vec<_> = opened.iter().flat_map(planned).collect();
        plan.sort_by_key(|(place, _)| *place);
        let plan: Vec<_> = plan.into_iter().map(|(_, range)| range).collect();
        let failed = |source| ImageError::Origin {
            digest: layers[0].digest.clone(),
            source,
        };
        if self.background != Background::Nothing && !plan.is_empty() {
            work.plans.push(PlanFetcher::start(&plan));
        }
        if self.background == Background::Everything {
            for blob in &opened {
                let filler = Filler::start(Arc::clone(&blob.cached)).map_err(failed)?;
                work.fillers.push(filler);
            }
        }
        self.work.lock().push(work);
        Ok(opened.into_iter().map(|blob| blob.layer).collect())
    }

    fn blob(
        &self,
        blob_url: &str,
        layer: &RemoteLayer,
        start: LayerStart<'_>,
    ) -> Result<Arc<dyn ReadAt>, ImageError> {
        let cached = self.cached(blob_url, (Of::Layer, &layer.digest), layer.size)?;
        let mut work = Work::default();
        let plan = start.plan().into_iter();
        let end = |range: &Range<u64>| range.end.min(layer.size);
        let plan = plan.map(|(_, range)| (Arc::clone(&cached), range.start..end(&range)));
        let plan: Vec<_> = plan.filter(|(_, range)| !range.is_empty()).collect();
        if self.background != Background::Nothing && !plan.is_empty() {
            work.plans.push(PlanFetcher::start(&plan));
        }
        if self.background == Background::Everything {
            let filler = Filler::start(Arc::clone(&cached));
            let filler = filler.map_err(|source| ImageError::Origin {
                digest: layer.digest.clone(),
                source,
            })?;
            work.fillers.push(filler);
        }
        self.work.lock().push(work);
        Ok(start.watched(cached))
    }
}

/// What a blob is.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// It is named by the image.
    Layer,
    /// It is named by anybody who may push to the repository.
    Start,
}

/// A blob that was opened.
struct OpenedBlob {
    layer: Layer,
    /// What is read of it when it was opened by the data of the start.
    started: Option<Arc<LaterContent>>,
    cached: Arc<CachedBlob>,
    /// The bytes of it that the start reads, each with its place in the order of all.
    planned: Vec<(usize, Range<u64>)>,
}

impl CachedBlobs {
    /// Opens layers at the same time, since each takes some requests one after the other.
    fn open_together(
        &self,
        blob_url: &str,
        layers: &[RemoteLayer],
        (start, data): (&Start, Option<&Arc<StartData>>),
        budget: &SegmentBudget,
    ) -> Result<Vec<OpenedBlob>, ImageError> {
        let next = AtomicUsize::new(0);
        let at_hand = reads::at_hand();
        let opened = Mutex::new(Vec::with_capacity(layers.len()));
        thread::scope(|scope| {
            let work = || {
                let _opening = Reading::continued(&at_hand);
                while let Some(at) =
                    Some(next.fetch_add(1, Relaxed)).filter(|at| *at < layers.len())
                {
                    let layer = &layers[at];
                    let from = (start.of_layer(layer.number), data);
                    let blob = self.open_one(blob_url, layer, from, budget);
                    opened.lock().push((at, blob));
                }
            };
            for _ in 1..layers.len().min(OPENED_TOGETHER) {
                // With fewer threads it takes longer.
                let builder = thread::Builder::new().name("blob-open".to_owned());
                let _started = builder.spawn_scoped(scope, work);
            }
            work();
        });
        let mut opened = opened.into_inner();
        opened.sort_by_key(|(at, _)| *at);
        opened.into_iter().map(|(_, blob)| blob).collect()
    }

    /// Returns a blob that is fetched when it is read.
    fn cached(
        &self,
        blob_url: &str,
        (of, digest): (Of, &str),
        size: u64,
    ) -> Result<Arc<CachedBlob>, ImageError> {
        let failed = |source: io::Error| ImageError::Origin {
            digest: digest.to_owned(),
            source,
        };
        let parsed = digest.parse::<Digest>();
        let parsed = parsed.map_err(|error| failed(io::Error::other(error)))?;
        if size == 0 || size > BLOB_MAX_BYTES {
            let why = "the configuration has no valid size for it";
            return Err(failed(io::Error::other(why)));
        }
        let reference = repository_of(blob_url);
        let reference = reference.map_err(|error| failed(io::Error::other(error)))?;
        let origin = (self.make_origin)(&reference, parsed).map_err(failed)?;
        match of {
            Of::Layer => self.cache.blob(parsed, size, origin),
            Of::Start => self.cache.blob_apart(parsed, size, origin),
        }
    }

    /// Opens the data of the start, if there is any, and fetches it from now on. Without it a start takes longer.
    fn start_data(
        &self,
        blob_url: &str,
        layers: &[RemoteLayer],
        start: &Start,
    ) -> Option<(StartData, PlanFetcher)> {
        let StartDataRef { digest, size } = start
            .data
            .filter(|_| self.background != Background::Nothing)?;
        let open = || -> Result<_, Box<dyn std::error::Error>> {
            let blob = self.cached(blob_url, (Of::Start, &digest.to_string()), size)?;
            // All of it is on its way when its tables are read.
            let fetcher = PlanFetcher::start(&[(Arc::clone(&blob), 0..size)]);
            let trusted = |digest: &Digest| {
                let digest = digest.to_string();
                let known = layers.iter().find(|layer| layer.digest == digest);
                known.and_then(|layer| layer.content)
            };
            Ok((StartData::open(blob, &trusted)?, fetcher))
        };
        let opened = open();
        opened
            .inspect_err(|error| log::warn!("the data of a start, {digest}, is not used: {error}"))
            .ok()
    }

    fn open_one(
        &self,
        blob_url: &str,
        layer: &RemoteLayer,
        (start, data): (LayerStart<'_>, Option<&Arc<StartData>>),
        budget: &SegmentBudget,
    ) -> Result<OpenedBlob, ImageError> {
        let cached = self.cached(blob_url, (Of::Layer, &layer.digest), layer.size)?;
        if let Some(data) = data
            && let Some(started) = open_started(&cached, data, start, budget)
        {
            return Ok(OpenedBlob {
                layer: started.layer,
                planned: started.elsewhere,
                started: Some(started.content),
                cached,
            });
        }
        let opened = open_layer(&cached, start, budget).map_err(|error| ImageError::Origin {
            digest: layer.digest.clone(),
            source: error.into(),
        })?;
        let (layer, content) = opened;
        let plan = start.plan().into_iter();
        let planned = plan.filter_map(|(place, range)| Some((place, content.stored(&range)?)));
        Ok(OpenedBlob {
            planned: planned.collect(),
            started: None,
            layer,
            cached,
        })
    }
}

/// Opens the layer in a blob.
fn open_layer(
    blob: &Arc<CachedBlob>,
    start: LayerStart<'_>,
    budget: &SegmentBudget,
) -> lsmt::Result<(Layer, BlobContent)> {
    opened(blob, || {
        let content = BlobContent::open(blob)?;
        let layer = Layer::open_within(start.watched(content.reader()), budget)?;
        Ok((layer, content))
    })
}

/// Opens what a blob has; what cannot be opened is fetched again, in case that it is wrong.
fn opened<T>(blob: &CachedBlob, open: impl Fn() -> lsmt::Result<T>) -> lsmt::Result<T> {
    let mut tries = 0;
    loop {
        match open() {
            Err(error) if is_damage(&error) && tries < REFETCHES => {
                log::warn!(
                    "{} cannot be opened: {error}; it is fetched again",
                    blob.digest()
                );
                blob.distrust(&(0..blob.size().unwrap_or(0)));
                tries += 1;
            }
            Err(error) if is_damage(&error) && tries < WAITS && blob.wait_for_origin() => {
                blob.distrust(&(0..blob.size().unwrap_or(0)));
                tries += 1;
            }
            other => return other,
        }
    }
}

const fn is_damage(error: &LsmtError) -> bool {
    matches!(
        error,
        LsmtError::Checksum { .. }
            | LsmtError::Compression { .. }
            | LsmtError::Rule { .. }
            | LsmtError::Magic { .. }
            | LsmtError::TooLarge { .. }
    )
}

/// The uncompressed content of a blob.
enum BlobContent {
    /// Nothing in it can be checked before all of it is there.
    Plain(Arc<Window<Arc<CachedBlob>>>, u64),
    Checked(Arc<Checked>),
}

impl BlobContent {
    fn reader(&self) -> Arc<dyn ReadAt> {
        match self {
            Self::Plain(window, _) => Arc::clone(window) as Arc<_>,
            Self::Checked(checked) => Arc::clone(checked) as Arc<_>,
        }
    }

    /// Returns which bytes of the blob a range is in; `None` if it is past the end.
    fn stored(&self, range: &Range<u64>) -> Option<Range<u64>> {
        match self {
            Self::Plain(_, start) => {
                Some(start.saturating_add(range.start)..start.saturating_add(range.end))
            }
            Self::Checked(checked) => {
                // The last block of a layer may be short.
                let end = range.end.min(checked.file.size().ok()?);
                let len = usize::try_from(end.checked_sub(range.start)?).ok()?;
                checked.compressed(range.start, len).ok()
            }
        }
    }
}

/// The uncompressed content of a blob whose blocks have checksums.
struct Checked {
    blob: Arc<CachedBlob>,
    /// Where the compressed file begins in the blob: there may be a tar around it.
    start: u64,
    file: ZFile<Window<Arc<CachedBlob>>>,
}

impl BlobContent {
    fn open(blob: &Arc<CachedBlob>) -> lsmt::Result<Self> {
        let range = lsmt::blob_range(blob)?;
        let window = Window::new(Arc::clone(blob), range.clone());
        let mut magic = [0; 8];
        if range.end - range.start >= 8 {
            let read = window.read_at(&mut magic, 0);
            read.map_err(|source| LsmtError::Storage {
                doing: "read a blob's first bytes",
                source,
            })?;
        }
        if &magic != b"ZFile\0\x01\0" {
            return Ok(Self::Plain(Arc::new(window), range.start));
        }
        Ok(Self::Checked(Arc::new(Checked {
            blob: Arc::clone(blob),
            start: range.start,
            file: ZFile::open(window)?,
        })))
    }
}

impl Checked {
    fn compressed(&self, offset: u64, len: usize) -> lsmt::Result<Range<u64>> {
        let range = self.file.compressed(offset, len as u64)?;
        Ok(self.start + range.start..self.start + range.end)
    }
}

impl ReadAt for Checked {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.file.read(buffer, offset) {
                Err(error) if is_damage(&error) && tries < REFETCHES => {
                    let digest = self.blob.digest();
                    log::warn!("a block of {digest} is wrong: {error}; it is fetched again");
                    self.blob.distrust(&self.compressed(offset, buffer.len())?);
                    tries += 1;
                }
                Err(error) if is_damage(&error) && tries < WAITS && self.blob.wait_for_origin() => {
                    tries += 1;
                    self.blob.distrust(&self.compressed(offset, buffer.len())?);
                }
                other => return Ok(other?),
            }
        }
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        let mut stored: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            let len = usize::try_from(range.end - range.start).ok()?;
            stored.push(self.compressed(range.start, len).ok()?);
        }
        self.blob.expect(&stored)
    }
}
