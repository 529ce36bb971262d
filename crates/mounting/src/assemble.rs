//! Putting together what a mount serves: a source, its names, and a boot image if there is one.

use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use blocks::{BlockSource, CachedSource, Namespace, Tree};
use bootimg::{Attached, Image, ImageId, Store};
use localfs::{DirSource, LiveTree, Patience, SourceKind, SourceRoot, TimedSource};
use tracer::Recorder;
use yolofs::{Config, FileSystem, Mode, Readahead};

use super::from::From;
use crate::mount_status::stale;
use crate::nic::{BootBlocks, Nic, NicBoot};
use crate::request::MountRequest;
use crate::source::{Source, space_within};
use bootstore::store::StoreSettings;
use bootstore::tiers::unpassed::CopiedSource;
use bootstore::tiers::whole::SourceCopies;
use node_api::boot_choice::BootChoice;
use node_api::mount_state::MountMode;
use node_api::nic::NicName;
use node_api::serve_mode::ServeMode;

/// The source of a mount with a boot image: what the image has not, the disk or the service has.
pub type Cached = CachedSource<Arc<BootBlocks>, Arc<dyn BlockSource>>;
/// The files of a source, within a deadline.
pub type Timed = TimedSource<DirSource>;

/// What is served, before it is mounted.
pub struct Assembly {
    /// The file system.
    pub fs: FileSystem,
    /// All names and attributes of the source.
    pub tree: Arc<Tree>,
    /// The boot image in use.
    pub boot: Option<Boot>,
    /// The local disk, if the source is there.
    pub disk: Option<Arc<Timed>>,
    /// The block service that is asked.
    pub nic: Option<Arc<Nic>>,
    /// What notes what is read.
    pub recorder: Option<Arc<Recorder>>,
    /// How it is served.
    pub mode: Mode,
}

impl std::fmt::Debug for Assembly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembly")
            .field("mode", &self.mode)
            .field("nic", &self.nic)
            .finish_non_exhaustive()
    }
}

/// Puts together what a request asks for.
///
/// # Errors
/// If the source, the boot image that was asked for, or the service cannot be used.
pub fn assemble(
    request: &MountRequest,
    store: &StoreSettings,
    from: &From,
) -> anyhow::Result<Assembly> {
    match from {
        From::Disk(root) => assemble_disk(request, store, root),
        From::Nic(name) => assemble_nic(request, name),
    }
}

fn assemble_disk(
    request: &MountRequest,
    store: &StoreSettings,
    root: &Arc<SourceRoot>,
) -> anyhow::Result<Assembly> {
    for warning in root.warnings() {
        log::warn!("{warning}");
    }
    if request.nic_share {
        bail!("--nic-share is for sources of the service (nic:NAME)");
    }
    let unusable = if request.trust {
        Unusable::Fails
    } else {
        Unusable::LeftOut
    };
    let image = choose_image(&request.boot, unusable, store, root)?;
    let tree = match request.trust {
        true => trusted_tree(image.as_ref(), root)?,
        false => Source::scan_within(Arc::clone(root), request.source_deadline)?.tree,
    };
    let (names, timed) = timed_reader(request, root, &tree)?;
    let timed = Arc::new(timed);
    let nic = match request.nic.clone() {
        Some(spec) => Nic::beside(&spec, &tree)?.map(Arc::new),
        None => None,
    };
    let below: Arc<dyn BlockSource> = match nic.as_ref().and_then(|nic| nic.cache()) {
        Some(cache) => Arc::new(CachedSource::new(Arc::clone(cache), Arc::clone(&timed))),
        None => Arc::clone(&timed) as _,
    };
    let mode = mode(request.mode, root);
    let copies = copies(request, store, root, &tree);
    let below = match &copies {
        Some(copies) if mode == Mode::Disk => {
            Arc::new(CopiedSource::new(Arc::clone(copies), below)) as _
        }
        _ => below,
    };
    let boot = image.map(|(name, image)| -> anyhow::Result<Boot> {
        let image = Arc::new(image.attach(&tree));
        refuse_foreign(&request.boot, &name, &image, root)?;
        let blocks = BootBlocks::Own(Arc::clone(&image));
        let boot = NicBoot {
            name,
            image,
            blocks,
        };
        Ok(attach(boot, &below))
    });
    let boot = boot.transpose()?;
    let mut fs = file_system(request, names, below, mode, boot.as_ref())
        .with_sparse(Arc::clone(&timed) as _)
        .with_attrs(Arc::clone(&timed) as _)
        .with_backing(Arc::clone(&timed) as _)
        .with_space(space_within(&timed, root))
        .with_waiter(timed.waiter());
    if let Some(copies) = copies {
        fs = fs.with_copies(copies);
    }
    let recorder = request
        .record
        .as_ref()
        .map(|_| Arc::new(Recorder::new(tracer::Limits::default())));
    if let Some(recorder) = &recorder {
        fs = fs
            .with_observer(Arc::clone(recorder) as _)
            .with_residency(Arc::clone(timed.source()) as _);
    }
    Ok(Assembly {
        fs,
        tree,
        boot,
        disk: Some(timed),
        nic,
        recorder,
        mode,
    })
}

/// Returns the names and attributes that a boot image has of its source, for a mount that trusts them.
fn trusted_tree(
    image: Option<&(String, Arc<Image>)>,
    root: &SourceRoot,
) -> anyhow::Result<Arc<Tree>> {
    let Some((name, image)) = image else {
        bail!(
            "--trust takes names and attributes from a boot image, and there is none of {}: \
             record one, or mount without --trust",
            root.path().display()
        );
    };
    let source = &image.info().source;
    if source.id != root.id() {
        // Names and attributes would be those of the other.
        bail!(
            "--trust takes names and attributes from the boot image, and {name} was recorded from \
             {}, not from {}",
            source.label,
            root.path().display()
        );
    }
    Ok(Arc::clone(image.tree()))
}

/// Returns the names of a source, as they were read or as they are asked for again and again, and what
/// reads the files behind them within the deadline.
fn timed_reader(
    request: &MountRequest,
    root: &Arc<SourceRoot>,
    tree: &Arc<Tree>,
) -> anyhow::Result<(Arc<dyn Namespace>, Timed)> {
    let patience = Patience {
        deadline: request.source_deadline,
        ..Patience::default()
    };
    let reader =
        |names: &Arc<dyn Namespace>| Arc::new(DirSource::new(Arc::clone(root), Arc::clone(names)));
    let Some(ttl) = request.revalidate else {
        let names = Arc::clone(tree) as _;
        let timed = TimedSource::new(reader(&names), patience);
        return Ok((names, timed));
    };
    let live = LiveTree::new(Arc::clone(root), Arc::clone(tree), ttl)
        .context("preparing to ask the source again and again")?;
    let live = Arc::new(TimedSource::new(Arc::new(live), patience));
    let names = Arc::clone(&live) as _;
    let timed = live.beside(reader(&names));
    Ok((names, timed))
}

/// Returns who has whole copies of the source's files. Where the source is asked again and again, no
/// number of a file says for ever which path it has.
fn copies(
    request: &MountRequest,
    store: &StoreSettings,
    root: &SourceRoot,
    tree: &Arc<Tree>,
) -> Option<Arc<SourceCopies>> {
    if request.revalidate.is_some() {
        return None;
    }
    let tiers = store.tiers();
    let tiers = tiers
        .inspect_err(|error| log::warn!("copies on faster tiers are not used: {error:#}"))
        .ok()?;
    let dir = root.dir_path().to_owned();
    Some(Arc::new(SourceCopies::new(tiers, dir, Arc::clone(tree))))
}

/// A source that is not on the disk: names and bytes come from the service.
fn assemble_nic(request: &MountRequest, name: &NicName) -> anyhow::Result<Assembly> {
    if request.trust || request.revalidate.is_some() {
        bail!("--trust and --revalidate are for local sources: an index does not change");
    }
    let spec = request.nic.clone();
    let spec = spec.with_context(|| format!("{} needs nic.address", name.label()))?;
    let nic = Arc::new(Nic::alone(&spec, name, None, request.source_deadline)?);
    let source = nic.source().context("the service has no source")?;
    let below = Arc::clone(source) as Arc<dyn BlockSource>;
    let tree = Arc::clone(nic.index().tree());
    let boot = nic.choose_boot(&request.boot)?;
    let boot = boot.map(|boot| attach(boot, &below));
    let mode = match request.mode {
        Some(ServeMode::Disk) => Mode::Disk,
        Some(ServeMode::Lower) | None => Mode::Lower,
    };
    let names = Arc::clone(&tree) as Arc<dyn Namespace>;
    let waiter = nic.waiter().context("nobody waits for the service")?;
    let mut fs = file_system(request, names, below, mode, boot.as_ref()).with_waiter(waiter);
    // Beside a boot image, what is recorded to be shared is what that one lacks.
    let recorder = (request.record.is_some() || request.nic_share)
        .then(|| Arc::new(Recorder::new(tracer::Limits::default())));
    if let Some(recorder) = &recorder {
        fs = fs.with_observer(Arc::clone(recorder) as _);
    }
    Ok(Assembly {
        fs,
        tree,
        boot,
        disk: None,
        nic: Some(nic),
        recorder,
        mode,
    })
}

/// A boot image in use: what it is called, what it has, and the source with it.
type Boot = (String, Arc<Attached>, Arc<Cached>);

fn attach(boot: NicBoot, below: &Arc<dyn BlockSource>) -> Boot {
    let NicBoot {
        name,
        image,
        blocks,
    } = boot;
    warn_stale(&name, &image);
    let cached = Arc::new(CachedSource::new(Arc::new(blocks), Arc::clone(below)));
    (name, image, cached)
}

fn file_system(
    request: &MountRequest,
    names: Arc<dyn Namespace>,
    below: Arc<dyn BlockSource>,
    mode: Mode,
    boot: Option<&Boot>,
) -> FileSystem {
    let source = match boot {
        Some((_, _, cached)) => Arc::clone(cached) as _,
        None => below,
    };
    let boot_files = boot.iter().flat_map(|(_, image, _)| &image.plan().extents);
    let boot_files = boot_files.map(|extent| extent.file).collect();
    FileSystem::new(names, source, Config { mode, boot_files }).with_xattr_answers(request.xattrs)
}

/// Returns how to serve a source.
pub fn mode(asked: Option<ServeMode>, root: &SourceRoot) -> Mode {
    match (asked, root.kind()) {
        (Some(ServeMode::Lower), _) | (None, SourceKind::Tree) => Mode::Lower,
        (Some(ServeMode::Disk), _) | (None, SourceKind::Disk { .. }) => Mode::Disk,
    }
}

/// Returns whether a mount of a source has its files passed through to their copies.
pub fn passes_files(request: &MountRequest, root: &SourceRoot) -> bool {
    let asks = request.revalidate.is_none() && request.record.is_none();
    asks && mode(request.mode, root) == Mode::Disk
}

/// Returns what a mode is called.
pub const fn mount_mode(mode: Mode) -> MountMode {
    match mode {
        Mode::Lower => MountMode::Lower,
        Mode::Disk => MountMode::Disk,
    }
}

/// Returns how far the kernel is to read ahead.
pub fn readahead(request: &MountRequest, has_boot_image: bool) -> Readahead {
    match request.readahead_kib {
        Some(kib) => Readahead::Kib(kib),
        // The first recording is of what was wanted, and not of what lies beside it. What later ones
        // add is little, and reading on must not be slow for it.
        None if request.nic_share && !has_boot_image => Readahead::Kib(0),
        None if has_boot_image && request.no_inject => Readahead::Kib(0),
        None => Readahead::Kernel,
    }
}

/// What is to become of a boot image that was found, and not asked for by name, when it cannot be
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It was only an offer: it is logged, and none is used.
    LeftOut,
    /// Nothing is to be served without it.
    Fails,
}

/// Finds the boot image of the store that is chosen for a source, if one is.
fn find_image(
    boot: &BootChoice,
    store: &StoreSettings,
    root: &SourceRoot,
) -> anyhow::Result<Option<(Store, ImageId)>> {
    match boot {
        BootChoice::None | BootChoice::File(_) => Ok(None),
        BootChoice::Auto => {
            let Some(store) = store.open_existing()? else {
                return Ok(None);
            };
            let found = store.find_source(root.id())?;
            Ok(found.map(|id| (store, id)))
        }
        BootChoice::Image(wanted) => {
            let store = store.open()?;
            let id = store.resolve(wanted)?;
            Ok(Some((store, id)))
        }
    }
}

/// Notes that the boot image of a source is used now, so that the store keeps it: who serves from it
/// may not write. What cannot be found is not noted, and told when it is opened. Returns which it is.
pub fn note_use(boot: &BootChoice, store: &StoreSettings, root: &SourceRoot) -> Option<ImageId> {
    let noted = || -> anyhow::Result<Option<ImageId>> {
        let Some((store, id)) = find_image(boot, store, root)? else {
            return Ok(None);
        };
        store.note_use(&id);
        Ok(Some(id))
    };
    noted().unwrap_or_else(|error| {
        log::debug!("the use of the boot image is not noted: {error:#}");
        None
    })
}

/// Opens the boot image of a source, with what it is called.
///
/// # Errors
/// If one that was asked for is not there or cannot be used, or the store cannot.
pub fn choose_image(
    boot: &BootChoice,
    unusable: Unusable,
    store: &StoreSettings,
    root: &SourceRoot,
) -> anyhow::Result<Option<(String, Arc<Image>)>> {
    if let BootChoice::File(path) = boot {
        let image = Image::open(path).context("opening the boot image")?;
        return Ok(Some((path.display().to_string(), Arc::new(image))));
    }
    let Some((store, id)) = find_image(boot, store, root)? else {
        return Ok(None);
    };
    let name = store
        .names_of(&id)?
        .into_iter()
        .next()
        .unwrap_or_else(|| id.short());
    match store.open_fastest(&id) {
        Ok(image) => Ok(Some((name, Arc::new(image)))),
        // An image that somebody asked for by name must be there; one that we found ourselves
        // is only an offer.
        Err(error) if *boot == BootChoice::Auto && unusable == Unusable::LeftOut => {
            log::warn!("boot image {name} cannot be used: {:#}", anyhow!(error));
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("opening the boot image {name}")),
    }
}

/// Refuses a boot image of another source that has nothing of this one: whoever named it meant
/// another. One that has something is worth it, and one of the same source may be out of date.
///
/// # Errors
/// If it has nothing.
pub fn refuse_foreign(
    choice: &BootChoice,
    name: &str,
    image: &Attached,
    root: &SourceRoot,
) -> anyhow::Result<()> {
    let named = matches!(choice, BootChoice::Image(_) | BootChoice::File(_));
    let (report, recorded) = (image.report(), &image.image().info().source);
    let has_nothing = report.files_kept == 0 && !report.dropped.is_empty();
    if named && has_nothing && recorded.id != root.id() {
        bail!(
            "boot image {name} was recorded from {}, and has nothing of {}: none of its {} files is \
             there as it was recorded (use --boot auto, or record this source)",
            recorded.label,
            root.path().display(),
            report.dropped.len()
        );
    }
    Ok(())
}

/// Says once that a boot image is partly stale; `status` says it again whenever asked.
pub fn warn_stale(name: &str, image: &Attached) {
    if let Some(warning) = stale(name, image) {
        log::warn!("{warning}");
    }
}
