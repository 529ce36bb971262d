//! From the specification of a mount to what it serves.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use blocks::{DeviceAccess, Tree};
use localfs::SourceRoot;
use tracer::{Limits, Recorder};
use yolofs::{Mode, MountOptions, Privileges, Readahead};

use crate::assembly::{self, Assembly, AssemblyOptions, Passthrough};
use crate::boot::{Boot, BootRequest, Foreign, OpenedBoot, Unusable, note_use};
use crate::from::From;
use crate::nic::Nic;
use crate::request::MountRequest;
use crate::source::Source;
use bootstore::store::StoreSettings;
use bootstore::tiers;
use node_api::nic::NicName;

/// What a mount consists of, and what records it.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) assembly: Assembly,
    pub(super) recorder: Option<Arc<Recorder>>,
}

/// Prepares a requested mount.
///
/// # Errors
/// If the source, the requested boot image, or the service cannot be used.
pub(super) fn prepare(
    request: &MountRequest,
    store: &StoreSettings,
    from: &From,
) -> anyhow::Result<Prepared> {
    match from {
        From::Disk(root) => prepare_disk(request, store, root),
        From::Nic(name) => prepare_service(request, name),
        From::Image(_) => prepare_image(request),
    }
}

fn prepare_disk(
    request: &MountRequest,
    store: &StoreSettings,
    root: &Arc<SourceRoot>,
) -> anyhow::Result<Prepared> {
    for warning in root.warnings() {
        log::warn!("{warning}");
    }
    if request.nic_share {
        bail!("only a boot image of a source of the service (nic:NAME) can be shared");
    }
    let wanted = BootRequest {
        choice: &request.boot,
        store,
        unusable: match request.trust {
            true => Unusable::Fails,
            false => Unusable::LeftOut,
        },
        foreign: Foreign::Refused,
    };
    let opened = wanted.open(root)?;
    let tree = match request.trust {
        true => trusted_tree(opened.as_ref(), root)?,
        false => Source::scan_within(Arc::clone(root), request.source_deadline)?.tree,
    };
    let boot = opened.map(|opened| wanted.attach(opened, root, &tree));
    let options = AssemblyOptions {
        passthrough: Passthrough::ToFiles(store),
        ..options(request)
    };
    let mut assembly = assembly::of_disk(root, tree, boot.transpose()?, &options)?;
    let recorder = request.record.as_ref().map(|_| recorder());
    if let (Some(recorder), Some(disk)) = (&recorder, &assembly.parts.disk) {
        assembly.fs = assembly
            .fs
            .with_observer(Arc::clone(recorder) as _)
            .with_residency(Arc::clone(disk.files.source()) as _);
    }
    Ok(Prepared { assembly, recorder })
}

/// Prepares a source that is not on the disk: names and bytes come from the service.
fn prepare_service(request: &MountRequest, name: &NicName) -> anyhow::Result<Prepared> {
    if request.trust || request.revalidate.is_some() {
        bail!(
            "only local sources can be trusted or revalidated: the index of a service does not change"
        );
    }
    let spec = request.nic.as_ref();
    let spec = spec.with_context(|| format!("{} needs nic.address", name.label()))?;
    let nic = Nic::alone(
        spec.into(),
        name,
        None,
        &request.boot,
        request.source_deadline,
    )?;
    let boot = nic.choose_boot(&request.boot)?.map(Boot::of_service);
    let mut assembly = assembly::of_service(nic, boot, &options(request))?;
    // Beside a boot image, what is recorded to be shared is what that one lacks.
    let recorder = (request.record.is_some() || request.nic_share).then(recorder);
    if let Some(recorder) = &recorder {
        assembly.fs = assembly.fs.with_observer(Arc::clone(recorder) as _);
    }
    Ok(Prepared { assembly, recorder })
}

/// Prepares a block image: its device is the only file.
fn prepare_image(request: &MountRequest) -> anyhow::Result<Prepared> {
    if request.trust || request.revalidate.is_some() || request.record.is_some() {
        bail!(
            "a block image is recorded by `yolofs block export --record`, and neither trusted nor revalidated"
        );
    }
    if request.boot.is_named() || request.nic.is_some() {
        bail!("a boot image and nic are not for block images");
    }
    let open = request.image.as_ref();
    let open = open.context("nothing is said of how the block image is opened")?;
    // Nobody takes over from a daemon of its own: what is written to needs the node.
    let access = DeviceAccess::ReadOnly;
    let options = AssemblyOptions {
        deadline: open.read_deadline,
        ..options(request)
    };
    let assembly = assembly::of_device((open.open)()?, access, &options)?;
    Ok(Prepared {
        assembly,
        recorder: None,
    })
}

fn options(request: &MountRequest) -> AssemblyOptions<'_> {
    AssemblyOptions {
        mode: request.mode,
        xattrs: request.xattrs,
        deadline: request.source_deadline,
        revalidate: request.revalidate,
        nic: request.nic.as_ref().map(Into::into),
        passthrough: Passthrough::Never,
    }
}

fn recorder() -> Arc<Recorder> {
    Arc::new(Recorder::new(Limits::default()))
}

/// Returns the names and attributes that a boot image has of its source, for a mount that trusts them.
fn trusted_tree(opened: Option<&OpenedBoot>, root: &SourceRoot) -> anyhow::Result<Arc<Tree>> {
    let Some(OpenedBoot { name, image }) = opened else {
        bail!(
            "a trusted source takes names and attributes from a boot image, and there is none of {}: \
             record one, or do not trust the source",
            root.path().display()
        );
    };
    let source = &image.info().source;
    if source.id != root.id() {
        // Names and attributes would be those of the other.
        bail!(
            "a trusted source takes names and attributes from the boot image, and {name} was recorded from \
             {}, not from {}",
            source.label,
            root.path().display()
        );
    }
    Ok(Arc::clone(image.tree()))
}

/// Marks the boot image and the files of a source as used, so that they stay on their tiers.
pub(super) fn note_uses(request: &MountRequest, store: &StoreSettings, root: &Arc<SourceRoot>) {
    let image = note_use(&request.boot, store, root);
    let Ok(tiers) = store.tiers() else {
        return;
    };
    tiers::whole::note_use(&tiers, root.path());
    if let Some(id) = image {
        let passed = passes_files(request, root).then(|| root.dir_path());
        tiers::ways::note_passing(&tiers, &id, passed);
    }
}

/// Returns whether a mount of a source has its files passed through to their copies.
fn passes_files(request: &MountRequest, root: &SourceRoot) -> bool {
    let asks = request.revalidate.is_none() && request.record.is_none();
    asks && assembly::mode(request.mode, root) == Mode::Disk
}

/// How far the kernel reads ahead while a plan of the service says what is read: not beyond the page that a
/// program touches. Without a limit of at least a page, calls that read more would be split into pages.
const BESIDE_A_PLAN_KIB: u32 = 4;

/// Returns how a request has a source mounted that the mount table shows as `shown`.
pub(super) fn mount_options(
    request: &MountRequest,
    boot: Option<&Boot>,
    mountpoint: &Path,
    shown: &Path,
) -> anyhow::Result<MountOptions> {
    let mut options = MountOptions::new(mountpoint, shown.to_string_lossy());
    options.threads =
        NonZeroUsize::new(usize::from(request.threads)).context("a mount needs a thread")?;
    if request.suid_dev {
        options.privileges = Privileges::Honoured;
    }
    options.readahead = match request.readahead_kib {
        Some(kib) => Readahead::Kib(kib),
        // The first recording is of what was wanted, and not of what lies beside it. What later ones
        // add is little, and reading on must not be slow for it.
        None if request.nic_share && boot.is_none() => Readahead::Kib(0),
        None if boot.is_some() && request.no_inject => Readahead::Kib(0),
        // What the kernel reads around a page may be in the next chunk, which no plan names: a program
        // would wait a round trip for what nobody reads. 16 KiB did so in half of the starts.
        None if boot.is_some_and(|boot| boot.recorded.is_plan()) => {
            Readahead::Kib(BESIDE_A_PLAN_KIB)
        }
        None => Readahead::Kernel,
    };
    Ok(options)
}
