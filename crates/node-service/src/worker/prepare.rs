//! From what the node hands over to a file system that can be served.

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use blocks::{BlockCache, BlockRange, BlockSource, CachedSource, FileKey, Lookup, SwapCache, Tree};
use bootimg::{Attached, Image};
use localfs::{DirSource, Patience, SourceRoot, TimedSource};
use yolofs::{Config, FileSystem, Mode};

use super::access_log::AccessLog;
use super::changes::Changes;
use super::names;
use crate::wire::{Fault, Handed};
use bootstore::store::StoreSettings;
use mounting::assemble::{Timed, Unusable, choose_image, mode, refuse_foreign, warn_stale};
use mounting::nic::{BootBlocks, Nic, NicBoot};
use mounting::source::{Source, space_within};
use mounting::xattrs::answers;
use node_api::boot_choice::BootChoice;
use node_api::nic::{NicName, NicSpec};
use node_api::serve_mode::ServeMode;
use node_api::spec::{MountSpec, Place};

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
    pub(super) image: Arc<Attached>,
    pub(super) blocks: BootBlocks,
}

impl Boot {
    fn attach(name: String, image: Arc<Image>, tree: &Tree) -> Self {
        let image = Arc::new(image.attach(tree));
        let blocks = BootBlocks::Own(Arc::clone(&image));
        Self::of(NicBoot {
            name,
            image,
            blocks,
        })
    }

    fn of(boot: NicBoot) -> Self {
        let NicBoot {
            name,
            image,
            blocks,
        } = boot;
        warn_stale(&name, &image);
        Self {
            name,
            image,
            blocks,
        }
    }
}

impl BlockCache for Boot {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.blocks.get(file, range, out)
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.blocks.get_once(file, range, out)
    }
}

/// The place of a boot image, which may be exchanged.
pub(super) type BootPlace = SwapCache<Boot>;

/// What is served.
pub(super) struct Prepared {
    pub(super) fs: Arc<FileSystem>,
    pub(super) mode: Mode,
    pub(super) tree: Arc<Tree>,
    pub(super) boot: Arc<BootPlace>,
    /// The source, if it is on a disk.
    pub(super) disk: Option<Disk>,
    /// The block service, if one is asked.
    pub(super) nic: Option<Arc<Nic>>,
    pub(super) cached: Arc<CachedSource<Arc<BootPlace>, Arc<dyn BlockSource>>>,
    /// Hears what is asked for, if that is to be learned from.
    pub(super) access_log: Option<Arc<AccessLog>>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("mode", &self.mode)
            .field("boot", &self.boot)
            .finish_non_exhaustive()
    }
}

/// A source that is on a disk.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) root: Arc<SourceRoot>,
    pub(super) source: Arc<Timed>,
}

/// Prepares a mount. `told` says whether the kernel was answered by an earlier worker: then the
/// names are those that it knows, and a boot image that is gone costs speed only.
pub(super) fn prepare(spec: &MountSpec, handed: &Handed, told: bool) -> Result<Prepared, Refusal> {
    let place = spec.place();
    match place.map_err(|error| Refusal::new(Fault::Invalid, error))? {
        Place::Disk(nic) => prepare_disk(spec, nic.as_ref(), handed, told),
        Place::Nic(nic, name) => prepare_nic(spec, &nic, &name, handed, told),
    }
}

/// Prepares a mount whose source is at a block service only.
fn prepare_nic(
    spec: &MountSpec,
    asked: &NicSpec,
    name: &NicName,
    handed: &Handed,
    told: bool,
) -> Result<Prepared, Refusal> {
    let served = names::read_index(&handed.names, told)?.map(Arc::new);
    let is_first = served.is_none();
    let nic = Nic::alone(asked, name, served, Patience::default().deadline)
        .map_err(|error| Refusal::new(Fault::Invalid, error))?;
    if is_first {
        names::write_index(&handed.names, nic.index())?;
    }
    let tree = Arc::clone(nic.index().tree());
    // Who waits for the next worker waits for no boot image: that one is fetched later.
    let boot = match (is_first, &spec.boot) {
        (false, BootChoice::Auto) => None,
        _ => nic_boot(&nic, &spec.boot).or_else(|refusal| left_out(spec, refusal, told))?,
    };
    let boot = Arc::new(SwapCache::new(boot.map(Arc::new)));
    let source = nic.source().context("the service has no source")?;
    let below = Arc::clone(source) as Arc<dyn BlockSource>;
    let cached = Arc::new(CachedSource::new(Arc::clone(&boot), below));
    let mode = match spec.mode {
        Some(ServeMode::Disk) => Mode::Disk,
        Some(ServeMode::Lower) | None => Mode::Lower,
    };
    let config = Config {
        mode,
        ..Config::default()
    };
    let waiter = nic
        .waiter()
        .context("there is no thread that waits for the service")?;
    let fs = FileSystem::new(Arc::clone(&tree) as _, Arc::clone(&cached) as _, config)
        .with_xattr_answers(answers(spec.all_xattrs))
        .with_waiter(waiter);
    Ok(Prepared {
        fs: Arc::new(fs),
        mode,
        tree,
        boot,
        disk: None,
        nic: Some(Arc::new(nic)),
        cached,
        access_log: None,
    })
}

/// Opens a boot image for a source of a block service.
///
/// # Errors
/// If it was asked for and cannot be used.
pub(super) fn nic_boot(nic: &Nic, choice: &BootChoice) -> Result<Option<Boot>, Refusal> {
    let boot = nic.choose_boot(choice);
    let boot = boot.map_err(|error| Refusal::new(Fault::Invalid, error))?;
    Ok(boot.map(Boot::of))
}

/// Does without a boot image, if the kernel goes by what an earlier worker said already.
fn left_out(spec: &MountSpec, refusal: Refusal, told: bool) -> Result<Option<Boot>, Refusal> {
    if !told {
        return Err(refusal);
    }
    let place = spec.mountpoint.display();
    log::warn!("{place}: served without a boot image: {:#}", refusal.error);
    Ok(None)
}

/// Prepares a mount whose source is on a disk.
fn prepare_disk(
    spec: &MountSpec,
    asked: Option<&NicSpec>,
    handed: &Handed,
    told: bool,
) -> Result<Prepared, Refusal> {
    let (root, scanned) = names_of(spec, handed, told)?;
    let (changes, earlier) = Changes::open(&handed.names)?;
    if !earlier.is_empty() {
        let place = spec.mountpoint.display();
        log::info!("{place}: {} files had changed before", earlier.len());
    }
    let boot = open_boot(spec, &spec.boot, &root, &scanned);
    let boot = boot.or_else(|refusal| left_out(spec, refusal, told))?;
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
    let nic = match asked {
        Some(asked) => Nic::beside(asked, &tree)?.map(Arc::new),
        None => None,
    };
    let below: Arc<dyn BlockSource> = match nic.as_ref().and_then(|nic| nic.cache()) {
        Some(cache) => Arc::new(CachedSource::new(Arc::clone(cache), Arc::clone(&source))),
        None => Arc::clone(&source) as _,
    };
    let cached = Arc::new(CachedSource::new(Arc::clone(&boot_place), below));
    let mode = mode(spec.mode, &root);
    let config = Config {
        mode,
        ..Config::default()
    };
    // No file is passed through: our successor would not know the ids that the kernel has of those.
    let mut fs = FileSystem::new(Arc::clone(&tree) as _, Arc::clone(&cached) as _, config)
        .with_xattr_answers(answers(spec.all_xattrs))
        .with_sparse(Arc::clone(&source) as _)
        .with_attrs(Arc::clone(&source) as _)
        .with_space(space_within(&source, &root))
        .with_ledger(Arc::new(changes), &earlier)
        .with_waiter(source.waiter());
    let access_log = spec.auto.then(|| Arc::new(AccessLog::new()));
    if let Some(access_log) = &access_log {
        fs = fs.with_listener(Arc::clone(access_log) as _);
    }
    Ok(Prepared {
        fs: Arc::new(fs),
        mode,
        tree,
        boot: boot_place,
        disk: Some(Disk { root, source }),
        nic,
        cached,
        access_log,
    })
}

/// Returns the source and the names that it is served with. The first worker of a mount scans the
/// source, and writes down what it found.
fn names_of(
    spec: &MountSpec,
    handed: &Handed,
    told: bool,
) -> Result<(Arc<SourceRoot>, Arc<Tree>), Refusal> {
    let source = handed.source.as_ref();
    let source = source.ok_or_else(|| {
        Refusal::new(
            Fault::Invalid,
            anyhow!("the descriptor of its source is missing"),
        )
    })?;
    let known = names::read(&handed.names, told)?;
    let label = match &known {
        Some(names) => names.label.clone(),
        None => SourceRoot::label_of(source.as_fd(), &spec.source)
            .map_err(|error| Refusal::new(Fault::Invalid, error))?
            .into_vec(),
    };
    let dir = source.try_clone().context("opening the source")?;
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
    let store = StoreSettings::to_read(spec.store.clone());
    let chosen = choose_image(choice, Unusable::LeftOut, &store, root);
    let chosen = chosen.map_err(|error| Refusal::new(Fault::Invalid, error))?;
    let Some((name, image)) = chosen else {
        return Ok(None);
    };
    let boot = Boot::attach(name, image, tree);
    // What is not a wish is of an engine's layer, which may have been moved since.
    if spec.lasting {
        refuse_foreign(choice, &boot.name, &boot.image, root)
            .map_err(|error| Refusal::new(Fault::Invalid, error))?;
    }
    Ok(Some(boot))
}
