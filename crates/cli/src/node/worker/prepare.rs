//! From what the node hands over to a file system that can be served.

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use anyhow::Context as _;
use blocks::{BlockCache, BlockRange, CachedSource, FileKey, Lookup, SwapCache, Tree};
use bootimg::Attached;
use localfs::{DirSource, Patience, SourceRoot, TimedSource};
use yolofs::{Config, FileSystem, Mode};

use super::ears::Ears;
use super::names;
use crate::node::spec::MountSpec;
use crate::node::wire::{Fault, Handed};
use crate::source::{Source, space_within};
use crate::store::StoreArgs;
use crate::yolofs::BootChoice;
use crate::yolofs::assemble::{Timed, Unusable, choose_image, mode, warn_stale};

/// Why something was not done, and whose fault it is.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) fault: Fault,
    pub(super) error: anyhow::Error,
}

impl Refusal {
    pub(super) fn new(fault: Fault, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { fault, error }
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Fault::Failed, error)
    }
}

/// A boot image in use.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) name: String,
    pub(super) image: Attached,
}

impl BlockCache for Boot {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.image.get(file, range, out)
    }
}

/// The place of a boot image, which may be exchanged.
pub(super) type BootPlace = SwapCache<Boot>;

/// What is served.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) fs: Arc<FileSystem>,
    pub(super) mode: Mode,
    pub(super) root: Arc<SourceRoot>,
    pub(super) tree: Arc<Tree>,
    pub(super) boot: Arc<BootPlace>,
    pub(super) source: Arc<Timed>,
    pub(super) cached: Arc<CachedSource<Arc<BootPlace>, Arc<Timed>>>,
    /// Hears what is asked for, if that is to be learned from.
    pub(super) ears: Option<Arc<Ears>>,
}

/// Prepares a mount. `told` says whether the kernel was answered by an earlier worker: then the
/// names are those that it knows, and a boot image that is gone costs speed only.
pub(super) fn prepare(spec: &MountSpec, handed: &Handed, told: bool) -> Result<Prepared, Refusal> {
    let (root, scanned) = names_of(spec, handed, told)?;
    let boot = match open_boot(spec, &spec.boot, &root, &scanned) {
        Ok(boot) => boot,
        Err(refusal) if told => {
            let place = spec.mountpoint.display();
            log::warn!("{place}: served without a boot image: {:#}", refusal.error);
            None
        }
        Err(refusal) => return Err(refusal),
    };
    // Mostly the two trees are equal. One of them is enough then: the trees are most of what a mount
    // takes of memory.
    let tree = match &boot {
        Some(boot) if **boot.image.image().tree() == *scanned => {
            Arc::clone(boot.image.image().tree())
        }
        _ => scanned,
    };
    let boot_place = Arc::new(SwapCache::new(boot.map(Arc::new)));
    let reader = DirSource::new(Arc::clone(&root), Arc::clone(&tree) as _);
    let source = Arc::new(TimedSource::new(Arc::new(reader), Patience::default()));
    let cached = CachedSource::new(Arc::clone(&boot_place), Arc::clone(&source));
    let cached = Arc::new(cached);
    let mode = mode(spec.mode, &root);
    let config = Config {
        mode,
        ..Config::default()
    };
    // No file is passed through: our successor would not know the ids that the kernel has of those.
    let mut fs = FileSystem::new(Arc::clone(&tree) as _, Arc::clone(&cached) as _, config)
        .with_sparse(Arc::clone(&source) as _)
        .with_space(space_within(&source, &root));
    let ears = spec.auto.then(|| Arc::new(Ears::new()));
    if let Some(ears) = &ears {
        fs = fs.with_listener(Arc::clone(ears) as _);
    }
    Ok(Prepared {
        fs: Arc::new(fs),
        mode,
        root,
        tree,
        boot: boot_place,
        source,
        cached,
        ears,
    })
}

/// Returns the source and the names that it is served with. The first worker of a mount scans the
/// source, and writes down what it found.
fn names_of(
    spec: &MountSpec,
    handed: &Handed,
    told: bool,
) -> Result<(Arc<SourceRoot>, Arc<Tree>), Refusal> {
    let known = names::read(&handed.names, told)?;
    let label = match &known {
        Some(names) => names.label.clone(),
        None => SourceRoot::label_of(handed.source.as_fd(), &spec.source)
            .map_err(|error| Refusal::new(Fault::Invalid, error))?
            .into_vec(),
    };
    let dir = handed.source.try_clone().context("opening the source")?;
    let root = SourceRoot::resume_within(dir, &label, Patience::default().deadline)
        .context("opening the source")?;
    let root = Arc::new(root);
    if let Some(names) = known {
        return Ok((root, Arc::new(names.tree)));
    }
    let tree = Source::scan(Arc::clone(&root))?.tree;
    names::write(&handed.names, &tree, &label)?;
    Ok((root, tree))
}

/// Opens a boot image for a tree.
///
/// # Errors
/// If it was asked for and cannot be used.
pub(super) fn open_boot(
    spec: &MountSpec,
    choice: &BootChoice,
    root: &SourceRoot,
    tree: &Tree,
) -> Result<Option<Boot>, Refusal> {
    let store = StoreArgs::to_read(spec.store.clone());
    let chosen = choose_image(choice, Unusable::LeftOut, &store, root);
    let chosen = chosen.map_err(|error| Refusal::new(Fault::Invalid, error))?;
    Ok(chosen.map(|(name, image)| {
        let image = image.attach(tree);
        warn_stale(&name, &image);
        Boot { name, image }
    }))
}
