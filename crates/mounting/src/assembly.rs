//! Assembles what a mount serves: a source, its names, a boot image if there is one, and a block service if
//! one is used. A standalone mount, a mount of the node and a layer differ in the [`AssemblyOptions`].

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blockimages::DeviceFile;
use blocks::prompt::Waiter;
use blocks::{
    BLOCK_SIZE, BlockDevice, BlockSource, CachedSource, DeviceAccess, FileId, Namespace, Tree,
};
use localfs::{DirSource, LiveTree, Patience, SourceKind, SourceRoot, TimedSource, Timekeeping};
use yolofs::{Config, FileSystem, Mode, Space, XattrAnswers};

use crate::boot::{Boot, BootSlot};
use crate::nic::{Nic, NicAccess};
use crate::source::space_within;
use bootstore::store::StoreSettings;
use bootstore::tiers::unpassed::CopiedSource;
use bootstore::tiers::whole::SourceCopies;
use node_api::mount_state::MountMode;
use node_api::serve_mode::ServeMode;

/// The source of a mount behind its boot image: what the image does not have, the disk or the service has.
pub type Cached = CachedSource<Arc<BootSlot>, Arc<dyn BlockSource>>;
/// The files of a source, within a deadline.
pub type Timed = TimedSource<DirSource>;

/// How a source is served.
#[derive(Clone, Copy, Debug)]
pub struct AssemblyOptions<'a> {
    /// The mode; by the kind of source if absent.
    pub mode: Option<ServeMode>,
    /// Which requests for extended attributes are answered where no file has any.
    pub xattrs: XattrAnswers,
    /// The deadline of the source.
    pub deadline: Duration,
    /// How long data from the source is cached, if its files may change.
    pub revalidate: Option<Duration>,
    /// The block service that is used besides a source on a disk.
    pub nic: Option<NicAccess<'a>>,
    /// Whether files are passed through.
    pub passthrough: Passthrough<'a>,
}

impl Default for AssemblyOptions<'_> {
    fn default() -> Self {
        Self {
            mode: None,
            xattrs: XattrAnswers::default(),
            deadline: Patience::default().deadline,
            revalidate: None,
            nic: None,
            passthrough: Passthrough::Never,
        }
    }
}

/// Whether the kernel may read files that are not in the boot image without asking this process.
#[derive(Clone, Copy, Debug)]
pub enum Passthrough<'a> {
    /// Never. It is for mounts that another process may serve later: that process would not know the ids
    /// of files that the kernel has open.
    Never,
    /// To the source, or to copies on the tiers of these settings.
    ToFiles(&'a StoreSettings),
}

/// A file system that is ready to be mounted.
#[derive(Debug)]
pub struct Assembly {
    /// The file system.
    pub fs: FileSystem,
    /// Its parts, for as long as it is served.
    pub parts: Parts,
}

/// What a mount consists of.
pub struct Parts {
    /// How it is served.
    pub mode: Mode,
    /// All names and attributes of the source.
    pub tree: Arc<Tree>,
    /// The boot image in use, which may be exchanged.
    pub boot: Arc<BootSlot>,
    /// Where reads are answered from.
    pub source: Arc<Cached>,
    /// The source, if it is on a disk.
    pub disk: Option<Disk>,
    /// The block service, if one is used.
    pub nic: Option<Arc<Nic>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("mode", &self.mode)
            .field("boot", &self.boot)
            .field("nic", &self.nic)
            .finish_non_exhaustive()
    }
}

/// A source that is on a disk.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The opened directory.
    pub root: Arc<SourceRoot>,
    /// Its files.
    pub files: Arc<Timed>,
}

impl Parts {
    /// Returns how long the source was waited for: the disk, or a service that has nothing beside it.
    pub fn timekeeping(&self) -> Timekeeping {
        match (&self.disk, &self.nic) {
            (Some(disk), _) => disk.files.timekeeping(),
            (None, Some(nic)) => nic.timekeeping().unwrap_or_default(),
            (None, None) => Timekeeping::default(),
        }
    }

    /// Returns the inode of the directory that is served, if it is one of this machine.
    pub fn source_inode(&self) -> Option<u64> {
        let disk = self.disk.as_ref();
        let root = disk.and_then(|_| self.tree.inode(FileId::ROOT));
        root.map(|root| root.attr.source_inode)
    }

    /// Returns what the mode is called.
    pub const fn mount_mode(&self) -> MountMode {
        match self.mode {
            Mode::Lower => MountMode::Lower,
            Mode::Disk => MountMode::Disk,
        }
    }
}

/// Assembles a mount of a source on a disk, whose names and attributes are those of `tree`. The boot image is
/// attached to that tree.
///
/// # Errors
/// If the service cannot be used, or a source that may change cannot be revalidated.
pub fn of_disk(
    root: &Arc<SourceRoot>,
    tree: Arc<Tree>,
    boot: Option<Arc<Boot>>,
    options: &AssemblyOptions<'_>,
) -> anyhow::Result<Assembly> {
    let tree = one_tree(tree, boot.as_deref());
    let mode = mode(options.mode, root);
    let (names, files) = timed_files(root, &tree, options)?;
    let nic = options.nic.map(|access| Nic::beside(access, &tree));
    let nic = nic.transpose()?.flatten().map(Arc::new);
    let below: Arc<dyn BlockSource> = match nic.as_ref().and_then(|nic| nic.cache()) {
        Some(cache) => Arc::new(CachedSource::new(Arc::clone(cache), Arc::clone(&files))),
        None => Arc::clone(&files) as _,
    };
    let copies = copies(root, &tree, options);
    let below = match &copies {
        Some(copies) if mode == Mode::Disk => {
            Arc::new(CopiedSource::new(Arc::clone(copies) as _, below)) as _
        }
        _ => below,
    };
    let boot_files = match options.passthrough {
        Passthrough::Never => HashSet::new(),
        Passthrough::ToFiles(_) => boot.as_deref().map(files_of).unwrap_or_default(),
    };
    let (boot, source) = behind(boot, below);
    let config = Config { mode, boot_files };
    let mut fs = FileSystem::new(names, Arc::clone(&source) as _, config)
        .with_xattr_answers(options.xattrs)
        .with_sparse(Arc::clone(&files) as _)
        .with_attrs(Arc::clone(&files) as _)
        .with_space(space_within(&files, root))
        .with_waiter(files.waiter());
    if let Passthrough::ToFiles(_) = options.passthrough {
        fs = fs.with_backing(Arc::clone(&files) as _);
    }
    if let Some(copies) = copies {
        fs = fs.with_copies(copies);
    }
    let root = Arc::clone(root);
    let parts = Parts {
        mode,
        tree,
        boot,
        source,
        disk: Some(Disk { root, files }),
        nic,
    };
    Ok(Assembly { fs, parts })
}

/// Puts together a mount of a source that a block service has: names and bytes come from there.
///
/// # Errors
/// If the service was opened for a source on a disk.
pub fn of_service(
    nic: Nic,
    boot: Option<Arc<Boot>>,
    options: &AssemblyOptions<'_>,
) -> anyhow::Result<Assembly> {
    let below = nic.source().context("the service has no source")?;
    let below = Arc::clone(below) as Arc<dyn BlockSource>;
    let waiter = nic
        .waiter()
        .context("there is no thread that waits for the service")?;
    let tree = Arc::clone(nic.index().tree());
    let mode = match options.mode {
        Some(ServeMode::Disk) => Mode::Disk,
        Some(ServeMode::Lower) | None => Mode::Lower,
    };
    let (boot, source) = behind(boot, below);
    let config = Config {
        mode,
        ..Config::default()
    };
    let fs = FileSystem::new(Arc::clone(&tree) as _, Arc::clone(&source) as _, config)
        .with_xattr_answers(options.xattrs)
        .with_waiter(waiter);
    let parts = Parts {
        mode,
        tree,
        boot,
        source,
        disk: None,
        nic: Some(Arc::new(nic)),
    };
    Ok(Assembly { fs, parts })
}

/// Puts together a mount of a block image, whose device is the only file. That can be written to if `access` says so. The
/// deadline of `options` is that of the image's reads.
///
/// # Errors
/// If the image can be written to and the file could not.
pub fn of_device(
    device: Arc<dyn BlockDevice>,
    access: DeviceAccess,
    options: &AssemblyOptions<'_>,
) -> anyhow::Result<Assembly> {
    let info = device.info();
    ensure!(
        info.access == access,
        "an image with a writable layer is mounted as a file that can be written to (`writable`), or served over NBD, \
         vhost-user or ublk"
    );
    let (file, tree) = DeviceFile::new(device)?;
    let (file, tree) = (Arc::new(file), Arc::new(tree));
    let (boot, source) = behind(None, Arc::clone(&file) as _);
    // Reads that wait for a registry take no thread of the mount: what is here is read meanwhile.
    let waiter = waiter_of(&file, options.deadline);
    // Opens cost no request, and leave nothing that the next worker would have to know.
    let mode = Mode::Lower;
    let config = Config {
        mode,
        ..Config::default()
    };
    let mut fs = FileSystem::new(Arc::clone(&tree) as _, Arc::clone(&source) as _, config)
        .with_xattr_answers(options.xattrs)
        .with_waiter(waiter);
    if access == DeviceAccess::ReadWrite {
        fs = fs
            .with_writer(file)
            .with_space(move || Ok(space_of(info.size)));
    }
    let parts = Parts {
        mode,
        tree,
        boot,
        source,
        disk: None,
        nic: None,
    };
    Ok(Assembly { fs, parts })
}

/// Reads of a block image that may wait for its registry at a time. The kernel has a dozen requests of its readahead.
const IMAGE_READS: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// How much later than a read's own deadline it is answered if it has not ended: that one says more.
const IMAGE_GRACE: Duration = Duration::from_secs(1);

/// Returns who waits for reads of a block image that take as long as its registry does.
pub fn waiter_of(file: &Arc<DeviceFile>, read_deadline: Duration) -> Arc<dyn Waiter> {
    let patience = Patience {
        deadline: read_deadline + IMAGE_GRACE,
        helpers: IMAGE_READS,
        ..Patience::default()
    };
    TimedSource::new(Arc::clone(file), patience).waiter()
}

/// Returns the space of a file system that is one device. A loop device on it discards in blocks of this size.
fn space_of(size: u64) -> Space {
    Space {
        block_size: u32::try_from(BLOCK_SIZE).unwrap_or(u32::MAX),
        blocks: size / BLOCK_SIZE as u64,
        inodes: 2,
        ..Space::default()
    }
}

/// Returns the tree of the boot image if it equals that of the source, which it mostly does. One of the two is
/// enough then: the trees are most of what a mount takes of memory.
fn one_tree(scanned: Arc<Tree>, boot: Option<&Boot>) -> Arc<Tree> {
    match boot.and_then(Boot::image).map(|image| image.image().tree()) {
        Some(recorded) if **recorded == *scanned => Arc::clone(recorded),
        _ => scanned,
    }
}

/// Puts a boot image in front of a source.
fn behind(boot: Option<Arc<Boot>>, below: Arc<dyn BlockSource>) -> (Arc<BootSlot>, Arc<Cached>) {
    let slot = Arc::new(BootSlot::new(boot));
    let cached = CachedSource::new(Arc::clone(&slot), below);
    (slot, Arc::new(cached))
}

/// Returns the files that a boot image has blocks of.
fn files_of(boot: &Boot) -> HashSet<FileId> {
    let extents = boot.recorded.plan().extents.iter();
    extents.map(|extent| extent.file).collect()
}

/// Returns the names of a source, which are asked for again if it may change, and what reads the files behind
/// them within the deadline.
fn timed_files(
    root: &Arc<SourceRoot>,
    tree: &Arc<Tree>,
    options: &AssemblyOptions<'_>,
) -> anyhow::Result<(Arc<dyn Namespace>, Arc<Timed>)> {
    let patience = Patience {
        deadline: options.deadline,
        ..Patience::default()
    };
    let reader =
        |names: &Arc<dyn Namespace>| Arc::new(DirSource::new(Arc::clone(root), Arc::clone(names)));
    let Some(ttl) = options.revalidate else {
        let names = Arc::clone(tree) as _;
        let files = TimedSource::new(reader(&names), patience);
        return Ok((names, Arc::new(files)));
    };
    let live = LiveTree::new(Arc::clone(root), Arc::clone(tree), ttl)
        .context("preparing to ask the source again and again")?;
    let live = Arc::new(TimedSource::new(Arc::new(live), patience));
    let names = Arc::clone(&live) as _;
    let files = live.beside(reader(&names));
    Ok((names, Arc::new(files)))
}

/// Returns the whole copies of the source's files, if files may be passed through to them. Where the source is
/// asked again and again, no number of a file stays with the path that it had.
fn copies(
    root: &SourceRoot,
    tree: &Arc<Tree>,
    options: &AssemblyOptions<'_>,
) -> Option<Arc<SourceCopies>> {
    let Passthrough::ToFiles(store) = options.passthrough else {
        return None;
    };
    if options.revalidate.is_some() {
        return None;
    }
    let tiers = store.tiers();
    let tiers = tiers
        .inspect_err(|error| log::warn!("copies on faster tiers are not used: {error:#}"))
        .ok()?;
    let dir = root.dir_path().to_owned();
    Some(Arc::new(SourceCopies::new(tiers, dir, Arc::clone(tree))))
}

/// Returns how to serve a source on a disk.
pub fn mode(asked: Option<ServeMode>, root: &SourceRoot) -> Mode {
    match (asked, root.kind()) {
        (Some(ServeMode::Lower), _) | (None, SourceKind::Tree) => Mode::Lower,
        (Some(ServeMode::Disk), _) | (None, SourceKind::Disk { .. }) => Mode::Disk,
    }
}
