//! Layers that are opened by the data of the start, without their blobs.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use blocks::prompt;
use lsmt::{Expected, Layer, LsmtError, ReadAt, SegmentBudget};

use super::{BlobContent, opened};
use crate::LayerStart;
use crate::cache::{CachedBlob, PlanFetcher};
use crate::start_data::{StartData, StartedContent};

/// The data of the start of an image that is used, and what is fetched if it is worth less than it seems.
#[derive(Debug)]
pub(super) struct Started {
    data: Arc<StartData>,
    fetcher: PlanFetcher,
    layers: Vec<Arc<LaterContent>>,
}

impl Started {
    pub(super) const fn new(
        data: Arc<StartData>,
        fetcher: PlanFetcher,
        layers: Vec<Arc<LaterContent>>,
    ) -> Self {
        Self {
            data,
            fetcher,
            layers,
        }
    }

    /// Returns whether nothing more comes.
    pub(super) fn is_done(&self) -> bool {
        self.fetcher.is_done() && self.instead().all(PlanFetcher::is_done)
    }

    /// Returns whether all came, or was fetched of the layers instead.
    pub(super) fn is_complete(&self) -> bool {
        let came = self.fetcher.is_complete() || self.instead().count() == self.layers.len();
        came && self.instead().all(PlanFetcher::is_complete)
    }

    fn instead(&self) -> impl Iterator<Item = &PlanFetcher> {
        let fetching = self.layers.iter().map(|layer| layer.fetching.get());
        fetching.flatten()
    }

    /// Verifies all of it, and has the layers fetched instead if it is wrong, or did not come.
    pub(super) fn check(&self) {
        if !self.data.is_right() {
            self.layers.iter().for_each(|layer| layer.fetch_plan());
        }
    }
}

/// A layer that was opened by the data of the start.
pub(super) struct StartedLayer {
    pub(super) layer: Layer,
    /// The bytes of its blob that the start reads and the data has not.
    pub(super) elsewhere: Vec<(usize, Range<u64>)>,
    pub(super) content: Arc<LaterContent>,
}

/// Opens the layer in a blob without its blob, by the data of the start; `None` if that is not possible.
pub(super) fn open_started(
    blob: &Arc<CachedBlob>,
    data: &Arc<StartData>,
    start: LayerStart<'_>,
    budget: &SegmentBudget,
) -> Option<StartedLayer> {
    let pieces = data.of_layer(&blob.digest().to_string())?;
    let plan = start.plan();
    let (there, elsewhere): (Vec<_>, Vec<_>) =
        plan.into_iter().partition(|(_, range)| pieces.has(range));
    let rest = Arc::new(LaterContent {
        blob: Arc::clone(blob),
        size: pieces.len(),
        opened: OnceLock::new(),
        plan: there,
        fetching: OnceLock::new(),
    });
    let missed = Arc::clone(&rest);
    let content = StartedContent {
        data: Arc::clone(data),
        pieces,
        rest: Arc::clone(&rest) as Arc<_>,
        missed: Box::new(move || missed.fetch_plan()),
    };
    let opened = Layer::open_within(start.watched(Arc::new(content)), budget);
    let warn = |error: &LsmtError| {
        let digest = blob.digest();
        log::warn!("{digest} is opened without the data of its start: {error}");
    };
    let layer = opened.inspect_err(warn).ok()?;
    // Without it, what is not in the data is fetched when it is read.
    let elsewhere = match elsewhere.is_empty() {
        true => Vec::new(),
        false => rest.stored(&elsewhere).unwrap_or_default(),
    };
    Some(StartedLayer {
        layer,
        elsewhere,
        content: rest,
    })
}

/// The content of a blob that is opened when it is read first.
pub(super) struct LaterContent {
    blob: Arc<CachedBlob>,
    size: u64,
    opened: OnceLock<BlobContent>,
    /// What the start reads of it, and should not have to be fetched since the data of the start has it.
    plan: Vec<(usize, Range<u64>)>,
    /// It is fetched after all.
    fetching: OnceLock<PlanFetcher>,
}

impl fmt::Debug for LaterContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaterContent")
            .field("blob", &self.blob.digest())
            .finish_non_exhaustive()
    }
}

impl LaterContent {
    /// Fetches what the data of the start should have had, once.
    fn fetch_plan(&self) {
        let may_wait = prompt::patience() != prompt::Patience::None;
        if self.fetching.get().is_some() || !may_wait {
            return;
        }
        if let Ok(stored) = self.stored(&self.plan) {
            let ranges = stored.into_iter();
            let plan: Vec<_> = ranges
                .map(|(_, range)| (Arc::clone(&self.blob), range))
                .collect();
            self.fetching.get_or_init(|| PlanFetcher::start(&plan));
        }
    }

    /// Returns which bytes of the blob ranges of a plan are in.
    fn stored(&self, plan: &[(usize, Range<u64>)]) -> io::Result<Vec<(usize, Range<u64>)>> {
        let content = self.content()?;
        let stored = plan.iter();
        let stored = stored.filter_map(|(place, range)| Some((*place, content.stored(range)?)));
        Ok(stored.collect())
    }

    fn content(&self) -> io::Result<&BlobContent> {
        if let Some(content) = self.opened.get() {
            return Ok(content);
        }
        let content = opened(&self.blob, || BlobContent::open(&self.blob))?;
        if content.reader().size()? != self.size {
            let why = "its content has another length than the data of its start says";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(self.opened.get_or_init(|| content))
    }
}

impl ReadAt for LaterContent {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.content()?.reader().read_at(buffer, offset)
    }

    fn expect(&self, ranges: &[Range<u64>]) -> Option<Expected> {
        self.opened.get()?.reader().expect(ranges)
    }
}
