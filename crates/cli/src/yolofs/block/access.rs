//! What each command may touch once it reads an image, whose author may be anybody: the files that the command line, or
//! the configuration of the image, names, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use blockimages::convert::is_qcow2;
use bootstore::store::{StoreSettings, block_plans};
use engine::ImageName;
use mounting::confinement::{Asks, BlockAccess};
use oci::Reference;

use super::{Prepared, is_image};

/// The program that reads qcow2.
const QEMU_IMG: &str = "qemu-img";

/// `yolofs block verify`: the image, and its cache.
pub(super) fn verify(image: &Prepared<'_>) -> BlockAccess {
    image.access(false)
}

/// `yolofs block prewarm`: the same, and the plans of the store.
pub(super) fn prewarm(image: &Prepared<'_>, store: &StoreSettings) -> BlockAccess {
    let mut access = image.access(false);
    access.reads.push(block_plans(&store.dir));
    access
}

/// `yolofs block plan push`: the image, its cache, and the plans of the store.
pub(super) fn push_plan(image: &Prepared<'_>, store: &StoreSettings) -> BlockAccess {
    let mut access = prewarm(image, store);
    access.asks = Asks::Registry;
    access
}

/// `yolofs block commit`, `restack`, `gc`: the image, its cache, and new layers beside it.
pub(super) fn change(image: &Prepared<'_>) -> BlockAccess {
    let mut access = image.access(false);
    let path = image.image.path();
    access.writes.push(match path.is_dir() {
        true => path.to_owned(),
        false => dir_of(path),
    });
    access
}

/// `yolofs block resize`: the same, or the raw disk alone.
pub(super) fn resize(image: &Prepared<'_>) -> BlockAccess {
    match is_image(image.image.path()) {
        true => change(image),
        false => image.access(true),
    }
}

/// `yolofs block create`: the layers below, the directory of the new image, and the plan of an image from a registry.
pub(super) fn create(
    below: BlockAccess,
    new: Option<PathBuf>,
    store: &StoreSettings,
) -> BlockAccess {
    let mut access = below;
    if access.asks == Asks::Registry && new.is_some() {
        if let Err(error) = store.make_block_plans() {
            log::debug!("a plan of its start cannot be kept: {error:#}");
        }
        access.writes.push(block_plans(&store.dir));
    }
    access.writes.extend(new);
    access
}

/// `yolofs block convert`: the source, and the directory of converted images. `qemu-img`, which reads qcow2, has the same
/// access.
pub(super) fn convert(
    source: &str,
    push: Option<&Reference>,
    new: Option<PathBuf>,
) -> anyhow::Result<BlockAccess> {
    let mut access = BlockAccess::default();
    match ImageName::parse(source)? {
        Some(ImageName::OciLayout { dir, .. }) => access.reads.push(dir),
        Some(ImageName::DockerArchive { file, .. }) => access.reads.push(file),
        Some(ImageName::Docker { .. }) => access.asks = Asks::Registry,
        Some(ImageName::Containerd { .. }) => {}
        None => {
            let disk = PathBuf::from(source);
            if is_qcow2(&disk) {
                access.program = Some(program(QEMU_IMG));
            }
            access.reads.push(disk);
        }
    }
    if push.is_some() {
        access.asks = Asks::Registry;
    }
    access.writes.extend(new);
    Ok(access)
}

/// What an export does besides reading its image.
#[derive(Clone, Copy)]
pub(super) struct Exporting<'a> {
    pub(super) writable: bool,
    /// Where it listens.
    pub(super) socket: Option<&'a Path>,
    pub(super) mounts: bool,
    /// Whether it answers a block device, by rings that it has made.
    pub(super) rings: bool,
    pub(super) plan: Option<&'a Path>,
    pub(super) keeps_plan: bool,
    pub(super) trace: Option<&'a Path>,
}

/// `yolofs block export`: the image, its cache, the plans of the store, and where a recording is written to.
pub(super) fn export(
    image: &Prepared<'_>,
    export: Exporting<'_>,
    store: &StoreSettings,
) -> anyhow::Result<BlockAccess> {
    let mut access = image.access(export.writable);
    let plans = block_plans(&store.dir);
    access.reads.extend(export.plan.map(Path::to_owned));
    if export.keeps_plan {
        store.make_block_plans()?;
        access.writes.push(plans.clone());
    }
    access.reads.push(plans);
    access.writes.extend(export.trace.map(dir_of));
    access.removes.extend(export.socket.map(dir_of));
    access.mounts = export.mounts;
    access.rings = export.rings;
    Ok(access)
}

/// Returns the directory that a file is in.
fn dir_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns where a program is. One that is missing is missed by who starts it.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).map(|dir| dir.join(name));
    found
        .find(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// Makes the directory that a command writes to, and returns it; nothing in a dry run.
///
/// # Errors
/// If it cannot be made.
pub(super) fn make_dir(dir: &Path, dry_run: bool) -> anyhow::Result<Option<PathBuf>> {
    if dry_run {
        return Ok(None);
    }
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    Ok(Some(dir.to_owned()))
}
