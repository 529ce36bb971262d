//! The file system as a plain object.
//!
//! It implements the operations of FUSE with plain values and depends neither on the kernel nor on its
//! protocol. Every operation goes through [`FileSystem::serve`], which counts it, and turns a panic into
//! an error: one bad request must not end the mount for all others.

mod access;
mod counters;
mod data;
mod demand;
mod diversion;
mod error;
mod handles;
mod in_hand;
mod injected;
mod ledger;
mod names;
mod recent;
mod sample;
mod watched;
mod writes;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocks::prompt::{self, Waiter};
use blocks::{
    Attr, AttrSource, BackingFile, BlockSource, Caller, Event, FileId, FileKey, FileWriter,
    Lifetime, Namespace, NodeKind, Observer, Residency, Sparse, Version, WholeCopies,
};

pub use counters::{Counters, ReadOutcome, Request};
pub(crate) use data::ReadAnswer;
pub use data::{Backing, CachePath, OpenDecision, PassedTo, is_program};
pub use error::FsError;
pub use ledger::{Diverted, Ledger};
pub use names::{DirItem, Entry, Node, XattrReply};

use counters::Tally;
use demand::Demand;
use diversion::Diversions;
use in_hand::InHand;
use injected::Injected;
use recent::Recent;
pub(crate) use sample::Sample;
use watched::{Watch, Watched};

/// Returns the number by which the kernel knows a file, and which `stat` shows: the index in the
/// tree and one, because FUSE gives the root number 1.
#[must_use]
pub const fn node_id(file: FileId) -> u64 {
    file.0 as u64 + 1
}

/// How a mount serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// For trees of many files, below an overlay: opening a file costs no request.
    #[default]
    Lower,
    /// For few large files, such as disk images: files without boot data are passed through to
    /// the source.
    Disk,
}

/// Whether requests for extended attributes are answered in a tree that has none. The kernel caches no answers, and
/// an overlay sends one at each look-up; after `ENOSYS` the kernel sends no more requests,
/// and returns `EOPNOTSUPP` to all callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrAnswers {
    /// All requests, until the first one of an overlay.
    #[default]
    UntilOverlay,
    /// All requests, always: one for each file that an overlay looks up.
    Always,
}

/// The settings of a [`FileSystem`] besides its data.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// How it serves.
    pub mode: Mode,
    /// The files of which boot data exist: never passed through to the source.
    pub boot_files: HashSet<FileId>,
}

/// How full the source is, as `statfs(2)` tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in a block of this structure.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that are free for users without privilege.
    pub blocks_available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// How long the kernel may go on with the attributes of a file that has changed. Such files are few, and a
/// second is what programs expect of attributes that are cached.
const CHANGED_LIFETIME: Duration = Duration::from_secs(1);

/// What the names of an overlay's attributes begin with, by root's and by others'.
const OVERLAYS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

type SpaceSource = dyn Fn() -> io::Result<Space> + Send + Sync;

/// A file system over a namespace and a source of blocks, to read only unless it has a
/// [writer](Self::with_writer).
///
/// All operations take `&self` and may be called from many threads. Open files have no state.
pub struct FileSystem {
    names: Arc<dyn Namespace>,
    source: Arc<dyn BlockSource>,
    writer: Option<Arc<dyn FileWriter>>,
    attrs: Option<Arc<dyn AttrSource>>,
    sparse: Option<Arc<dyn Sparse>>,
    backing: Option<Arc<dyn BackingFile>>,
    copies: Option<Arc<dyn WholeCopies>>,
    residency: Option<Arc<dyn Residency>>,
    observer: Option<Arc<dyn Observer>>,
    listener: Option<Arc<dyn Observer>>,
    space: Option<Arc<SpaceSource>>,
    config: Config,
    xattr_answers: XattrAnswers,
    tally: Tally,
    diversions: Diversions,
    recent: Recent,
    injected: Injected,
    sample: Sample,
    watched: Watched,
    demand: Arc<Demand>,
    in_hand: Arc<InHand>,
    waiter: Option<Arc<dyn Waiter>>,
}

impl FileSystem {
    /// Returns the file system with the names of `names` and the bytes of `source`, which must
    /// be of the same files.
    #[must_use]
    pub fn new(names: Arc<dyn Namespace>, source: Arc<dyn BlockSource>, config: Config) -> Self {
        Self {
            names,
            source,
            writer: None,
            attrs: None,
            sparse: None,
            backing: None,
            copies: None,
            residency: None,
            observer: None,
            listener: None,
            space: None,
            config,
            xattr_answers: XattrAnswers::default(),
            tally: Tally::default(),
            diversions: Diversions::default(),
            recent: Recent::default(),
            injected: Injected::default(),
            sample: Sample::default(),
            watched: Watched::default(),
            demand: Arc::default(),
            in_hand: Arc::default(),
            waiter: None,
        }
    }

    /// Adds what writes to the source: then the content of its files can be changed, and neither their sizes nor names.
    /// The kernel has to [know it](crate::Writes) from when the mount is made.
    #[must_use]
    pub fn with_writer(mut self, writer: Arc<dyn FileWriter>) -> Self {
        self.writer = Some(writer);
        self
    }

    /// Adds a source of the files' present attributes. Without it, files that changed are not served
    /// if names and attributes are fixed.
    #[must_use]
    pub fn with_attrs(mut self, attrs: Arc<dyn AttrSource>) -> Self {
        self.attrs = Some(attrs);
        self
    }

    /// Adds a source of the holes of files; without it, every file is all data.
    #[must_use]
    pub fn with_sparse(mut self, sparse: Arc<dyn Sparse>) -> Self {
        self.sparse = Some(sparse);
        self
    }

    /// Adds access to the files of the source; without it, nothing is passed through.
    #[must_use]
    pub fn with_backing(mut self, backing: Arc<dyn BackingFile>) -> Self {
        self.backing = Some(backing);
        self
    }

    /// Adds whole copies of files on faster memory: in `disk` mode a file is passed through to its copy,
    /// whether or not it has boot data.
    #[must_use]
    pub fn with_copies(mut self, copies: Arc<dyn WholeCopies>) -> Self {
        self.copies = Some(copies);
        self
    }

    /// Adds a query of the source's pages in memory, for the observer.
    #[must_use]
    pub fn with_residency(mut self, residency: Arc<dyn Residency>) -> Self {
        self.residency = Some(residency);
        self
    }

    /// Adds a waiter for the source: requests that need the source are completed by it, so that the
    /// threads of a mount are free for all others. Without it they wait for the source themselves.
    #[must_use]
    pub fn with_waiter(mut self, waiter: Arc<dyn Waiter>) -> Self {
        self.waiter = Some(waiter);
        self
    }

    /// Adds an observer of every request: a mount of this file system records. Then nothing is passed
    /// through, and the kernel reads nothing ahead.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Adds an observer of every request of a mount that is served normally: reads that the kernel
    /// answers are not observed, and its readahead is observed like other reads.
    #[must_use]
    pub fn with_listener(mut self, listener: Arc<dyn Observer>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Adds a query of the source's space; without it, `statfs` shows zeros.
    #[must_use]
    pub fn with_space(
        mut self,
        space: impl Fn() -> io::Result<Space> + Send + Sync + 'static,
    ) -> Self {
        self.space = Some(Arc::new(space));
        self
    }

    /// Sets which requests for extended attributes are answered where there are none.
    #[must_use]
    pub const fn with_xattr_answers(mut self, answers: XattrAnswers) -> Self {
        self.xattr_answers = answers;
        self
    }

    /// Returns how the file system serves.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.config.mode
    }

    /// Returns whether the content of files can be changed.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns whether an observer receives every request.
    #[must_use]
    pub const fn is_recording(&self) -> bool {
        self.observer.is_some()
    }

    /// Returns whether any file may be passed through, to the source or to a copy.
    #[must_use]
    pub fn may_pass_through(&self) -> bool {
        let to_any = self.backing.is_some() || self.copies.is_some();
        self.config.mode == Mode::Disk && to_any && !self.is_recording()
    }

    /// Returns whether the kernel need not send a request for an extended attribute again,
    /// whatever the file and the name: it is one of an overlay, and no file has attributes. Before each write the kernel
    /// asks for the privileges of the file.
    #[must_use]
    pub fn is_vain_question(&self, name: &[u8]) -> bool {
        if self.writer.is_some() && !self.names.has_xattrs() {
            return true;
        }
        self.xattr_answers == XattrAnswers::UntilOverlay
            && !self.names.has_xattrs()
            && OVERLAYS.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Returns whether any file may have an access list, which the kernel has to go by.
    #[must_use]
    pub fn has_access_lists(&self) -> bool {
        self.names.has_access_lists()
    }

    /// Returns how long the kernel may cache names and attributes of files that have not changed.
    #[must_use]
    pub fn lifetime(&self) -> Lifetime {
        self.names.lifetime()
    }

    /// Returns how long the kernel may cache the name and the attributes of a file: of one that has changed, for a
    /// moment.
    pub(crate) fn lifetime_of(&self, file: FileId) -> Lifetime {
        match self.names.lifetime() {
            Lifetime::Forever if self.diversions.has(file) => Lifetime::For(CHANGED_LIFETIME),
            lifetime => lifetime,
        }
    }

    /// Returns the counters of requests and responses.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = self.tally.snapshot();
        counters.diverted_files = self.diversions.noted();
        let pages = self.injected.counts();
        counters.injected_pages = pages.injected;
        counters.evicted_pages = pages.evicted;
        let sample = self.sample.counts();
        counters.sampled_blocks = sample.held_back;
        counters.sampled_asked = sample.asked;
        counters.in_hand = self.in_hand.count();
        counters
    }

    /// Returns the files whose source changed since they were scanned or recorded, and which are
    /// served in their present version.
    #[must_use]
    pub fn diverted_files(&self) -> Vec<FileId> {
        self.diversions.files()
    }

    /// Returns a file with the version to read it in.
    ///
    /// # Errors
    /// If the namespace fails.
    pub fn key(&self, file: FileId) -> Result<FileKey, FsError> {
        let version = self.current_attr(file)?.version();
        Ok(FileKey { file, version })
    }

    /// Returns a regular file with the version to read it in, if pushing its pages is useful: other files
    /// have no content, and pages of a file that is passed through to its copy are never read.
    pub(crate) fn key_to_inject(&self, file: FileId) -> Option<FileKey> {
        let key = self.content_key(file)?;
        let copied = self.may_pass_through() && self.has_copy(&key);
        (!copied).then_some(key)
    }

    /// Returns a regular file with the version to read it in; nothing else has content.
    fn content_key(&self, file: FileId) -> Option<FileKey> {
        let attr = self.current_attr(file).ok()?;
        let version = attr.version();
        (attr.kind == NodeKind::File).then_some(FileKey { file, version })
    }

    /// Returns the requests that wait for the source.
    pub(crate) const fn in_hand(&self) -> &Arc<InHand> {
        &self.in_hand
    }

    /// Counts a request without a handler here.
    pub(crate) fn count(&self, request: Request) {
        self.tally.request(request);
    }

    /// Counts a file that was opened on its copy.
    pub(crate) fn count_copy(&self) {
        self.tally.copy_open();
    }

    /// Counts a file that the kernel would not pass another through to.
    pub(crate) fn count_refused(&self, to: PassedTo) {
        if to == PassedTo::Copy {
            self.tally.copy_failed();
        }
    }

    pub(crate) const fn names(&self) -> &Arc<dyn Namespace> {
        &self.names
    }

    pub(crate) const fn diversions(&self) -> &Diversions {
        &self.diversions
    }

    /// Notes that the kernel has invalidated what it cached of a file before the version `now`, and knows
    /// the file's size if it is shorter. With names that are revalidated, the version need not be
    /// remembered any more.
    pub(crate) fn settle(&self, file: FileId, now: Version) {
        match self.names.lifetime() {
            Lifetime::Forever => self.diversions.settle(file, now),
            Lifetime::For(_) => self.diversions.forget(file, now),
        }
    }

    pub(crate) const fn recent(&self) -> &Recent {
        &self.recent
    }

    pub(crate) const fn injected(&self) -> &Injected {
        &self.injected
    }

    /// Returns the blocks that are held back from the page cache.
    pub(crate) const fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Records the versions that are reported of some files, until the returned value is dropped. With fixed
    /// names nothing is recorded: a changed file is diverted.
    pub(crate) fn watch(&self, files: impl Iterator<Item = FileId>) -> Option<Watch<'_>> {
        let may_change = self.names.lifetime() != Lifetime::Forever;
        may_change.then(|| self.watched.watch(files))
    }

    /// Returns whether only the version of the key was reported of its file, if it is watched.
    pub(crate) fn is_still(&self, key: &FileKey) -> bool {
        self.watched.is_still(key)
    }

    pub(crate) const fn waiter(&self) -> Option<&Arc<dyn Waiter>> {
        self.waiter.as_ref()
    }

    /// Counts the result of a request that was handed over: the response that was sent, from the source or
    /// by the deadline. Later results of the source do not count.
    pub(crate) fn count_answer<T>(&self, answer: &Result<T, FsError>) {
        if answer.as_ref().is_err_and(FsError::is_failure) {
            self.tally.error();
        }
    }

    pub(crate) const fn demand(&self) -> &Arc<Demand> {
        &self.demand
    }

    /// The attributes of a file, corrected for what was found out since.
    fn current_attr(&self, file: FileId) -> Result<Attr, FsError> {
        let attr = self.names.attr(file)?;
        Ok(match self.names.lifetime() {
            Lifetime::Forever => self.diversions.correct(file, attr),
            Lifetime::For(_) => {
                self.watched.heard(file, attr.version());
                attr
            }
        })
    }

    /// Answers one request: counts it, counts its failure, and survives its panic.
    fn serve<T>(
        &self,
        request: Request,
        answer: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        // Whoever handed it over has counted it, counts what it comes to, and says when nobody waits for
        // it any more.
        let is_new = prompt::patience() != prompt::Patience::Endless;
        let _busy = is_new.then(|| self.demand.enter());
        if is_new {
            self.tally.request(request);
        }
        // Unwind safety: the locks are parking_lot's, which do not poison, and none of what they
        // guard is left half changed by code that can panic.
        let result = catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            log::error!(
                "a {} request panicked; it is answered with an I/O error",
                request.name()
            );
            Err(FsError::Panicked)
        });
        if is_new {
            self.count_answer(&result);
        }
        result
    }

    fn observe(&self, caller: Caller, since: Instant, event: impl Fn() -> Event) {
        for told in self.observer.iter().chain(&self.listener) {
            told.note(caller, event(), since.elapsed());
        }
    }
}

impl fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSystem")
            .field("config", &self.config)
            .field("recording", &self.is_recording())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
