//! A source, opened: what `record`, `from-trace`, `verify` and `mount` start from.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use blocks::{FileId, Timestamp, Tree};
use bootimg::SourceInfo;
use host::progress;
use localfs::{DirSource, Patience, Reason, SourceKind, SourceRoot, TimedSource};
use rawio::destination::destination;
use tracer::{Trace, TraceInfo};
use yolofs::Space;

/// A source with all of its metadata.
///
/// ```
/// use mounting::source::Source;
///
/// let dir = tempfile::tempdir()?;
/// std::fs::write(dir.path().join("file"), [7; 5000])?;
/// let source = Source::open(dir.path())?;
/// assert_eq!(source.bytes(), 5000);
/// assert!(source.tree.resolve(b"file").is_some());
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Source {
    /// The opened directory.
    pub root: Arc<SourceRoot>,
    /// Its metadata.
    pub tree: Arc<Tree>,
}

impl Source {
    /// Opens a directory tree or a disk image, and scans it.
    ///
    /// # Errors
    /// If it cannot be opened or scanned.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let root = SourceRoot::open_within(path, Patience::default().deadline)?;
        Self::scan(Arc::new(root))
    }

    /// Scans an opened source. Files that cannot be read are logged.
    ///
    /// # Errors
    /// If it cannot be scanned, or does not respond.
    pub fn scan(root: Arc<SourceRoot>) -> anyhow::Result<Self> {
        Self::scan_within(root, Patience::default().deadline)
    }

    /// Does what [`Source::scan`] does, with another deadline for each step.
    ///
    /// # Errors
    /// As there.
    pub fn scan_within(root: Arc<SourceRoot>, deadline: Duration) -> anyhow::Result<Self> {
        let bar = progress::counter("scanning the source");
        let scan = localfs::scan_within(&root, deadline, |progress| {
            bar.set_position(progress.files);
        })?;
        bar.finish_and_clear();
        for note in scan.report.notes() {
            let path = OsStr::from_bytes(&note.path).display();
            let what = match note.reason {
                Reason::OtherMount => "another file system is mounted there: left out".to_owned(),
                Reason::Changed => "changed while it was scanned".to_owned(),
                Reason::Unreadable { errno } => {
                    format!(
                        "cannot be read: {}",
                        std::io::Error::from_raw_os_error(errno)
                    )
                }
                Reason::NotServable => "cannot be served: left out".to_owned(),
            };
            log::warn!("{path}: {what}");
        }
        if scan.report.more() > 0 {
            log::warn!("and {} more warnings of this kind", scan.report.more());
        }
        Ok(Self {
            root,
            tree: Arc::new(scan.tree),
        })
    }

    /// Returns what reads the source's files.
    #[must_use]
    pub fn reader(&self) -> Arc<DirSource> {
        Arc::new(DirSource::new(
            Arc::clone(&self.root),
            Arc::clone(&self.tree) as Arc<_>,
        ))
    }

    /// Returns the disk image of a disk source: its name, and its file in the tree.
    ///
    /// # Errors
    /// If the source is a directory tree.
    pub fn disk(&self) -> anyhow::Result<(&OsStr, FileId)> {
        let name = match self.root.kind() {
            SourceKind::Disk { name, .. } => Some(name.as_os_str()),
            SourceKind::Tree => None,
        };
        let name = name.context("the source is a directory tree, not a disk image")?;
        let file = self
            .tree
            .resolve(name.as_bytes())
            .context("the disk image is gone")?;
        Ok((name, file))
    }

    /// Returns the description of this source for a boot image that is made now. The caller adds the recorded
    /// command and its result, if it knows them.
    #[must_use]
    pub fn info(&self) -> SourceInfo {
        SourceInfo {
            label: self.root.label().to_string_lossy().into_owned(),
            id: self.root.id(),
            recorded_at: timestamp(SystemTime::now()).secs,
            command: Vec::new(),
            tool: concat!("yolofs ", env!("CARGO_PKG_VERSION")).to_owned(),
            ready_ms: Vec::new(),
            similarity_ppm: None,
            source_bytes: self.bytes(),
        }
    }

    /// Returns the bytes of all regular files: what shares are shares of.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes_of(&self.tree)
    }
}

/// Returns the bytes of all regular files of a tree.
#[must_use]
pub fn bytes_of(tree: &Tree) -> u64 {
    let files = tree.files().map(|(_, inode)| inode.attr);
    files
        .filter(|attr| attr.kind == blocks::NodeKind::File)
        .map(|attr| attr.size)
        .sum()
}

/// An opened source that is scanned when its metadata is first wanted: after a boot that is
/// recorded, not before.
#[derive(Debug)]
pub struct LateSource {
    root: Arc<SourceRoot>,
    scanned: Option<Source>,
}

impl LateSource {
    /// Returns an opened source that was not scanned.
    #[must_use]
    pub const fn new(root: Arc<SourceRoot>) -> Self {
        let scanned = None;
        Self { root, scanned }
    }

    /// Returns the opened directory.
    #[must_use]
    pub const fn root(&self) -> &Arc<SourceRoot> {
        &self.root
    }

    /// Returns the source with its metadata, which is read now unless it was before.
    ///
    /// # Errors
    /// If it cannot be scanned.
    pub fn scanned(&mut self) -> anyhow::Result<&Source> {
        match &mut self.scanned {
            Some(source) => Ok(source),
            none => Ok(none.insert(Source::scan(Arc::clone(&self.root))?)),
        }
    }
}

/// Returns what tells how full a source's file system is.
fn space(root: &Arc<SourceRoot>) -> impl Fn() -> io::Result<Space> + Send + Sync + 'static {
    let root = Arc::clone(root);
    move || {
        let all = root.statfs()?;
        Ok(Space {
            block_size: u32::try_from(all.fragment_size()).unwrap_or(4096),
            blocks: all.blocks(),
            blocks_free: all.blocks_free(),
            blocks_available: all.blocks_available(),
            inodes: all.files(),
            inodes_free: all.files_free(),
        })
    }
}

/// Returns the same as `space`, with the deadline that the source's files have.
pub fn space_within(
    files: &Arc<TimedSource<DirSource>>,
    root: &Arc<SourceRoot>,
) -> impl Fn() -> io::Result<Space> + Send + Sync + 'static {
    let (files, ask) = (Arc::clone(files), Arc::new(space(root)));
    move || {
        let ask = Arc::clone(&ask);
        let space = files.within("asking for its space", move |_| ask());
        space.map_err(io::Error::other)?
    }
}

/// Returns the description of this source for a trace.
#[must_use]
pub fn trace_info(root: &SourceRoot, started: SystemTime) -> TraceInfo {
    TraceInfo {
        label: root.label().into_vec(),
        source: root.id(),
        started: timestamp(started),
    }
}

/// Returns a moment as file systems write it.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    // A clock before 1970 is not set yet: 0 says as much.
    Timestamp::of(time)
}

/// Writes a trace to a file atomically.
///
/// # Errors
/// If the file cannot be written.
pub fn write_trace(trace: &Trace, path: &Path) -> anyhow::Result<()> {
    let bytes = trace.write().context("encoding the trace")?;
    let doing = || format!("writing the trace to {}", path.display());
    let path = &destination(path).with_context(doing)?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(".part");
    // What was left there, and not what a link of somebody's leads to.
    let _gone = std::fs::remove_file(&aside);
    rawio::private::create_new(Path::new(&aside))
        .and_then(|mut file| file.write_all(&bytes))
        .and_then(|()| std::fs::rename(&aside, path))
        .with_context(doing)
}
