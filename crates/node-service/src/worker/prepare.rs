//! From what the node hands over to a file system that can be served.

use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use blockimages::Ending;
use blocks::{DeviceAccess, Tree};
use devices::{Images, OpenedImage, Opening};
use localfs::{Patience, SourceRoot};

use super::access_log::AccessLog;
use super::changes::Changes;
use super::names::{self, Init};
use crate::descriptors::MountDescriptors;
use crate::wire::Fault;
use bootstore::store::StoreSettings;
use mounting::assembly::{self, Assembly, AssemblyOptions};
use mounting::boot::{Boot, BootRequest, Foreign, Unusable};
use mounting::nic::{Connector, Nic, NicAccess};
use mounting::source::Source;
use mounting::xattrs::answers;
use node_api::boot_choice::BootChoice;
use node_api::nic::NicName;
use node_api::spec::{MountSpec, SourceLocation};

/// Why a request failed, and the kind of fault.
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

/// A mount that is ready to be served.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) assembly: Assembly,
    /// Records requests, if boot images are made of them.
    pub(super) access_log: Option<Arc<AccessLog>>,
    /// The block image that is served, if it is one.
    pub(super) image: Option<OpenedImage>,
}

/// How sources are reached that are not on a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    /// Who connects to a block service; this process if absent.
    pub(super) connector: Option<&'a Arc<dyn Connector>>,
    /// The caches of block images.
    pub(super) images: &'a Images,
    /// Ends what waits for registries, while a block image is opened and for as long as it is.
    pub(super) ending: &'a Arc<Ending>,
}

/// Prepares a mount. If an earlier worker answered FUSE_INIT, the names are those that the kernel knows, and a missing boot
/// image costs speed only.
pub(super) fn prepare(
    spec: &MountSpec,
    handed: &MountDescriptors,
    init: Init,
    way: Way<'_>,
) -> Result<Prepared, Refusal> {
    let access = |spec| NicAccess {
        spec,
        connector: way.connector,
    };
    let place = spec.place();
    match place.map_err(|error| Refusal::new(Fault::Invalid, error))? {
        SourceLocation::Disk(nic) => prepare_disk(spec, nic.as_ref().map(access), handed, init),
        SourceLocation::Nic(nic, name) => prepare_nic(spec, access(&nic), &name, handed, init),
        SourceLocation::Image(image, path) => {
            let opening = match init {
                Init::Answered => Opening::Again,
                Init::Unanswered => Opening::First,
            };
            let how = (access_of(spec), opening);
            let ending = Arc::clone(way.ending);
            let opened = way
                .images
                .open_until(&path, &image, &spec.store, how, ending);
            let opened = opened.map_err(|error| Refusal::new(Fault::Invalid, error))?;
            prepare_image(spec, (opened, image.read_deadline()), handed, init)
        }
    }
}

/// Returns how the file of a block image is opened.
const fn access_of(spec: &MountSpec) -> DeviceAccess {
    match spec.writable {
        true => DeviceAccess::ReadWrite,
        false => DeviceAccess::ReadOnly,
    }
}

/// Prepares a mount of a block image: its device is the only file.
fn prepare_image(
    spec: &MountSpec,
    (image, read_deadline): (OpenedImage, Duration),
    handed: &MountDescriptors,
    init: Init,
) -> Result<Prepared, Refusal> {
    let device = Arc::clone(&image.device);
    let options = AssemblyOptions {
        deadline: read_deadline,
        ..options(spec)
    };
    let assembly = assembly::of_device(device, access_of(spec), &options);
    let assembly = assembly.map_err(|error| Refusal::new(Fault::Invalid, error))?;
    let tree = &assembly.parts.tree;
    match names::read(&handed.names, init)? {
        None => names::write(&handed.names, tree, &[])?,
        Some(known) if known.tree == **tree => {}
        Some(_) => {
            let why = "the image has another size than when it was mounted";
            return Err(Refusal::new(Fault::Conflict, anyhow!(why)));
        }
    }
    Ok(Prepared {
        assembly,
        access_log: None,
        image: Some(image),
    })
}

/// Prepares a mount whose source is at a block service only.
fn prepare_nic(
    spec: &MountSpec,
    asked: NicAccess<'_>,
    name: &NicName,
    handed: &MountDescriptors,
    init: Init,
) -> Result<Prepared, Refusal> {
    let served = names::read_index(&handed.names, init)?.map(Arc::new);
    let is_first = served.is_none();
    let nic = Nic::alone(
        asked,
        name,
        served,
        &spec.boot,
        Patience::default().deadline,
    )
    .map_err(|error| Refusal::new(Fault::Invalid, error))?;
    if is_first {
        names::write_index(&handed.names, nic.index())?;
    }
    // Who waits for the next worker waits for no boot image: that one is fetched later.
    let boot = match (is_first, &spec.boot) {
        (false, BootChoice::Auto) => None,
        _ => nic_boot(&nic, &spec.boot).or_else(|refusal| left_out(spec, refusal, init))?,
    };
    let assembly = assembly::of_service(nic, boot, &options(spec))?;
    Ok(Prepared {
        assembly,
        access_log: None,
        image: None,
    })
}

/// Returns how a mount of the node is served.
fn options(spec: &MountSpec) -> AssemblyOptions<'_> {
    AssemblyOptions {
        mode: spec.mode,
        xattrs: answers(spec.all_xattrs),
        ..AssemblyOptions::default()
    }
}

/// Opens a boot image for a source of a block service.
///
/// # Errors
/// If it was requested and cannot be used.
pub(super) fn nic_boot(nic: &Nic, choice: &BootChoice) -> Result<Option<Arc<Boot>>, Refusal> {
    let boot = nic.choose_boot(choice);
    let boot = boot.map_err(|error| Refusal::new(Fault::Invalid, error))?;
    Ok(boot.map(Boot::of_service))
}

/// Does without a boot image, if the kernel goes by what an earlier worker said already.
fn left_out(spec: &MountSpec, refusal: Refusal, init: Init) -> Result<Option<Arc<Boot>>, Refusal> {
    if init == Init::Unanswered {
        return Err(refusal);
    }
    let place = spec.mountpoint.display();
    log::warn!("{place}: served without a boot image: {:#}", refusal.error);
    Ok(None)
}

/// Prepares a mount whose source is on a disk.
fn prepare_disk(
    spec: &MountSpec,
    asked: Option<NicAccess<'_>>,
    handed: &MountDescriptors,
    init: Init,
) -> Result<Prepared, Refusal> {
    let (root, scanned) = names_of(spec, handed, init)?;
    let (changes, earlier) = Changes::open(&handed.names)?;
    if !earlier.is_empty() {
        let place = spec.mountpoint.display();
        log::info!("{place}: {} files had changed before", earlier.len());
    }
    let boot = open_boot(spec, &spec.boot, &root, &scanned);
    let boot = boot.or_else(|refusal| left_out(spec, refusal, init))?;
    let options = AssemblyOptions {
        nic: asked,
        ..options(spec)
    };
    let mut assembly = assembly::of_disk(&root, scanned, boot, &options)?;
    assembly.fs = assembly.fs.with_ledger(Arc::new(changes), &earlier);
    let access_log = spec.auto.then(|| Arc::new(AccessLog::new()));
    if let Some(access_log) = &access_log {
        assembly.fs = assembly.fs.with_listener(Arc::clone(access_log) as _);
    }
    Ok(Prepared {
        assembly,
        access_log,
        image: None,
    })
}

/// Returns the source and the names that it is served with. The first worker of a mount scans the
/// source, and writes down what it found.
fn names_of(
    spec: &MountSpec,
    handed: &MountDescriptors,
    init: Init,
) -> Result<(Arc<SourceRoot>, Arc<Tree>), Refusal> {
    let source = handed.source.as_ref();
    let source = source.ok_or_else(|| {
        Refusal::new(
            Fault::Invalid,
            anyhow!("the descriptor of its source is missing"),
        )
    })?;
    let known = names::read(&handed.names, init)?;
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
/// If it was requested and cannot be used.
pub(super) fn open_boot(
    spec: &MountSpec,
    choice: &BootChoice,
    root: &SourceRoot,
    tree: &Tree,
) -> Result<Option<Arc<Boot>>, Refusal> {
    let store = StoreSettings::to_read(spec.store.clone());
    let request = BootRequest {
        choice,
        store: &store,
        unusable: Unusable::LeftOut,
        // A mount that does not last is of an engine's layer, which may have been moved since.
        foreign: match spec.lasting {
            true => Foreign::Refused,
            false => Foreign::Used,
        },
    };
    let boot = request.resolve(root, tree);
    boot.map_err(|error| Refusal::new(Fault::Invalid, error))
}
