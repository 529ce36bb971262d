//! Links of the programs of sources: read from the store in the background, kept in memory.
//!
//! They are looked for when a source is added while the service runs, and when somebody starts one without a plan: that start does
//! without them.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blocks::ContentId;
use chunks::index::{Index, ZEROS};
use chunks::{Catalog, ChunkStore, Class};
use parking_lot::{Condvar, Mutex};

use crate::programs;

/// Bytes of links that are kept.
const KEPT_BYTES: u64 = 16 << 20;
/// Sources whose links are kept, or known not to be there.
const KEPT_MAX: usize = 1024;
/// Sources that wait to be read.
const WAITING_MAX: usize = 16;
/// Between two looks at whether sources were added.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The links of sources, and the thread that reads them.
#[derive(Debug)]
pub(crate) struct LinkTables {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The last used is the last. `None`: there are no links, or they are being read.
    kept: VecDeque<(ContentId, Option<Arc<Vec<u8>>>)>,
    waiting: VecDeque<Arc<Index>>,
    is_over: bool,
}

impl LinkTables {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(catalog: Arc<Catalog>, store: Arc<dyn ChunkStore>) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = Arc::clone(&shared);
        let added = catalog.additions();
        let known = catalog.names().into_iter().map(|(_, id)| id).collect();
        let run = move || Reader::new(of_thread, catalog, store, (added, known)).run();
        let thread = std::thread::Builder::new().name("nicfetch-links".to_owned());
        Ok(Self {
            shared,
            thread: Some(thread.spawn(run)?),
        })
    }

    /// Returns the links of a source as they are sent. The first time there are none: they are read then.
    pub(crate) fn of(&self, index: &Arc<Index>) -> Option<Arc<Vec<u8>>> {
        let mut state = self.shared.state.lock();
        let at = state.kept.iter().position(|(id, _)| *id == index.id());
        if let Some(kept) = at.and_then(|at| state.kept.remove(at)) {
            let links = kept.1.clone();
            state.kept.push_back(kept);
            return links;
        }
        if state.waiting.len() < WAITING_MAX {
            state.kept.push_back((index.id(), None));
            state.waiting.push_back(Arc::clone(index));
            drop(state);
            self.shared.more.notify_one();
        }
        None
    }

    /// Returns how many bytes of memory they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.state.lock().bytes()
    }
}

impl Drop for LinkTables {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}

impl State {
    fn bytes(&self) -> u64 {
        let kept = self.kept.iter().filter_map(|(_, links)| links.as_ref());
        kept.map(|links| links.len() as u64).sum()
    }

    fn keep(&mut self, id: ContentId, links: Option<Arc<Vec<u8>>>) {
        self.kept.retain(|(of, _)| *of != id);
        self.kept.push_back((id, links));
        while self.bytes() > KEPT_BYTES || self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }
}

/// The work of the thread.
struct Reader {
    shared: Arc<Shared>,
    catalog: Arc<Catalog>,
    store: Arc<dyn ChunkStore>,
    /// Sources that were added before the last look.
    added: u64,
    known: HashSet<ContentId>,
}

impl Reader {
    fn new(
        shared: Arc<Shared>,
        catalog: Arc<Catalog>,
        store: Arc<dyn ChunkStore>,
        (added, known): (u64, HashSet<ContentId>),
    ) -> Self {
        Self {
            shared,
            catalog,
            store,
            added,
            known,
        }
    }

    fn run(mut self) {
        // The start that asks for links does without them, and is not to wait for them either.
        if let Err(error) = rawio::idle::idle_processor() {
            log::debug!("links are read at the usual priority: {error}");
        }
        while let Some(next) = self.next() {
            if let Some(index) = next {
                self.read(&index);
            }
            for index in self.fresh() {
                self.read(&index);
            }
        }
    }

    /// Waits for a source that somebody starts; `None` at the end.
    fn next(&self) -> Option<Option<Arc<Index>>> {
        let mut state = self.shared.state.lock();
        if state.waiting.is_empty() && !state.is_over {
            self.shared.more.wait_for(&mut state, LOOK_EVERY);
        }
        (!state.is_over).then(|| state.waiting.pop_front())
    }

    /// Returns the sources that were added since the last look and have no plan.
    fn fresh(&mut self) -> impl Iterator<Item = Arc<Index>> + use<> {
        let added = self.catalog.additions();
        let mut names = Vec::new();
        if added != self.added {
            self.added = added;
            names = self.catalog.names();
            names.retain(|(_, id)| !self.known.contains(id) && self.catalog.boots(id).is_empty());
            let all = self.catalog.names().into_iter();
            self.known = all.map(|(_, id)| id).collect();
        }
        let catalog = Arc::clone(&self.catalog);
        let source = move |(name, _): (Vec<u8>, ContentId)| {
            let failed = |error: &chunks::CatalogError| log::info!("no links of programs: {error}");
            catalog.source(&name).inspect_err(failed).ok().flatten()
        };
        names.into_iter().filter_map(source)
    }

    fn read(&self, index: &Arc<Index>) {
        let content = |number| {
            let (id, place) = (index.chunk(number)?, index.place(number)?);
            if id == ZEROS {
                return Some(Arc::new(vec![0; place.len as usize]));
            }
            let stored = self.store.get(&id, Class::Prefetch)?;
            stored.open(&id).ok().map(Arc::new)
        };
        let goes_on = || !self.shared.state.lock().is_over;
        let Some(links) = programs::find(index, &content, &goes_on) else {
            return;
        };
        let bytes = (!links.is_empty()).then(|| Arc::new(links.encode(&index.id())));
        let bytes = bytes.filter(|bytes| !bytes.is_empty());
        log::info!(
            "{} links of programs of {}",
            links.len(),
            index.label().escape_ascii()
        );
        self.shared.state.lock().keep(index.id(), bytes);
    }
}
