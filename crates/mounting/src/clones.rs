//! Boot images for disk images that are clones of a recorded one.
//!
//! A recording of a disk image also applies to its copies, under any name, as far as they have equal
//! content. So a disk image without a boot image of its own is compared with those in the store: a few extents of each
//! that was made of a file of the same length. If most are equal, the ranges that boots read are adopted, and the
//! boot image of the clone is written from the clone itself. No byte of the other image is served for it, so blocks
//! that differ in the clone are correct; and the store deduplicates equal blocks, so that a clone needs little space.
//!
//! This reads the blocks of a boot from the clone once, best while it is still in memory after it was copied. A file
//! that changes later has another version, and is read from the disk until this is done again.

use std::sync::Arc;

use anyhow::Context as _;
use blocks::{
    BLOCK_SIZE, BlockSource as _, CachedSource, Extent, FileId, NodeKind, ReplayPlan, Tree,
};
use bootimg::{Attached, Image, Store, StoredImage, Variant, WriteRequest, unite};
use localfs::{DirSource, SourceRoot};
use node_api::boot_choice::BootChoice;
use node_api::nic::NicName;
use yolofs::Mode;

use crate::assembly;
use crate::request::MountRequest;
use crate::source::Source;
use bootstore::store::{StoreSettings, add_written, watch};
use host::interrupt::Interrupt;
use host::progress;

/// Extents of a recorded disk that are compared with a clone.
const SAMPLE: usize = 8;

/// How many of them have to be alike: a clone in use changes a little of what boots read.
const ALIKE: usize = 4;

/// Boot images that a disk is compared with, the most valuable first.
const CANDIDATES_MAX: usize = 64;

/// The boot image that was adopted for a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Disk images that have a recording now, each with the name of the boot image it was taken from.
    pub disks: Vec<(String, String)>,
    /// Blocks of the boot image that was written.
    pub blocks: u64,
}

/// Makes sure that a disk image, or each in a directory of them, has a boot image for this place, from its own
/// recordings or those of the image it was cloned from; `None` if nothing changed.
///
/// # Errors
/// If the source or the store cannot be read, or the boot image cannot be written.
pub fn adopt(
    root: &Arc<SourceRoot>,
    settings: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<Adopted>> {
    let Some(store) = settings.open_existing()? else {
        return Ok(None);
    };
    let source = Source::scan(Arc::clone(root))?;
    let own = own_image(&store, &source)?;
    let lacks = |file: FileId| own.as_ref().is_none_or(|own| !has(own.plan(), file));
    let mut disks = disks(&source.tree);
    disks.retain(|(_, file)| lacks(*file));
    if disks.is_empty() {
        return Ok(None);
    }
    let listed = store.list().context("listing the boot images")?;
    let recorded = Recorded::of(&store, listed, own.as_ref());
    let mut plans: Vec<ReplayPlan> = own.iter().map(|own| own.plan().clone()).collect();
    let mut adopted = Adopted::default();
    let reader = source.reader();
    for (name, file) in disks {
        let Some((plan, of)) = recorded.plan_for(&source.tree, file, &reader) else {
            continue;
        };
        log::info!("{name} is a clone of what boot image {of} was recorded from");
        adopted.disks.push((name, of));
        plans.push(plan);
    }
    if adopted.disks.is_empty() {
        return Ok(None);
    }
    adopted.blocks = write(settings, &source, &unite(&plans), own, &reader, interrupt)?;
    Ok(Some(adopted))
}

/// Does what [`adopt`] does before a source is mounted, if that is a disk image or a directory of them, and the mount
/// chooses its boot image itself. A failure costs speed only: it is logged.
pub fn adopt_for(request: &MountRequest, store: &StoreSettings, interrupt: &Interrupt) {
    let chooses = request.boot == BootChoice::Auto && request.record.is_none() && !request.trust;
    let is_service = NicName::of_source(&request.source).is_ok_and(|name| name.is_some());
    if !chooses || is_service || !has_images(store) {
        return;
    }
    let root = match SourceRoot::open_within(&request.source, request.source_deadline) {
        Ok(root) => root,
        // Nor can it be mounted then, which says why.
        Err(error) => return log::debug!("clones are not recognized: {error}"),
    };
    let found = match assembly::mode(request.mode, &root) {
        Mode::Disk => adopt(&Arc::new(root), store, interrupt),
        Mode::Lower => Ok(None),
    };
    if let Err(error) = found {
        log::warn!("clones are not recognized: {error:#}");
    }
}

/// Returns whether a store has boot images: the source is not looked at for nothing, for it may not answer.
fn has_images(store: &StoreSettings) -> bool {
    let images = std::fs::read_dir(store.dir.join("images"));
    images.is_ok_and(|mut images| images.next().is_some())
}

/// Returns the boot image of this very place, as far as its files did not change.
fn own_image(store: &Store, source: &Source) -> anyhow::Result<Option<Attached>> {
    let id = store.find_source(source.root.id());
    let Some(id) = id.context("looking for the boot image")? else {
        return Ok(None);
    };
    match store.open_fastest(&id) {
        Ok(image) => Ok(Some(Arc::new(image).attach(&source.tree))),
        Err(error) => {
            log::warn!("boot image {} is not used: {error}", id.short());
            Ok(None)
        }
    }
}

/// Returns the regular files in the root of a source, which are its disk images.
fn disks(tree: &Tree) -> Vec<(String, FileId)> {
    let entries = tree.entries(FileId::ROOT);
    let files = entries.filter(|(_, file)| {
        let inode = tree.inode(*file);
        inode.is_some_and(|inode| inode.attr.kind == NodeKind::File && inode.attr.size > 0)
    });
    files
        .map(|(name, file)| (String::from_utf8_lossy(name).into_owned(), file))
        .collect()
}

fn has(plan: &ReplayPlan, file: FileId) -> bool {
    plan.extents.iter().any(|extent| extent.file == file)
}

/// What was recorded of disks, on this machine or another.
struct Recorded {
    images: Vec<(String, Image)>,
}

impl Recorded {
    /// Opens boot images of disks, and of directories of disks. One that cannot be opened is reported by the store.
    fn of(store: &Store, listed: Vec<StoredImage>, own: Option<&Attached>) -> Self {
        let own = own.map(|own| own.image().info().id);
        let listed = listed
            .into_iter()
            .filter(|stored| Some(stored.info.id) != own);
        let images = listed.filter_map(|stored| {
            let name = stored.names.first().cloned();
            let name = name.unwrap_or_else(|| stored.info.id.short());
            let image = store.peek_image(&stored.info.id).ok()?;
            let of_disks = image.info().source.label.starts_with("disk:") || is_flat(image.tree());
            of_disks.then_some((name, image))
        });
        Self {
            images: images.take(CANDIDATES_MAX).collect(),
        }
    }

    /// Returns what boots read of a disk, if it is a clone of one that was recorded, and which boot image says so.
    fn plan_for(
        &self,
        tree: &Tree,
        file: FileId,
        reader: &DirSource,
    ) -> Option<(ReplayPlan, String)> {
        let size = tree.inode(file)?.attr.size;
        let mut best: Option<(usize, &Image, FileId, &str)> = None;
        for (name, image) in &self.images {
            let recorded = image.tree();
            for (_, was) in disks(recorded) {
                let same = recorded
                    .inode(was)
                    .is_some_and(|inode| inode.attr.size == size);
                if !same || !has(image.plan(), was) {
                    continue;
                }
                let alike = alike(image, was, tree, file, reader);
                let needed = ALIKE.min(sample(image, was).len());
                if alike >= needed && alike > best.map_or(0, |(alike, ..)| alike) {
                    best = Some((alike, image, was, name));
                }
            }
        }
        let (_, image, was, name) = best?;
        let extents = image.plan().extents.iter();
        let extents = extents.filter(|extent| extent.file == was);
        let plan = ReplayPlan {
            extents: extents.map(|extent| Extent { file, ..*extent }).collect(),
            touches: Vec::new(),
            ..*image.plan()
        };
        Some((plan, name.to_owned()))
    }
}

/// Returns whether a tree has no directory but its root.
fn is_flat(tree: &Tree) -> bool {
    let mut entries = tree.entries(FileId::ROOT);
    entries.all(|(_, file)| {
        tree.inode(file)
            .is_some_and(|inode| inode.attr.kind != NodeKind::Dir)
    })
}

/// Returns the numbers of a few extents with data, from all of the boot.
fn sample(image: &Image, file: FileId) -> Vec<usize> {
    let extents = image.plan().extents.iter().enumerate();
    let of_file = extents.filter(|(number, extent)| extent.file == file && image.has_data(*number));
    let numbers: Vec<usize> = of_file.map(|(number, _)| number).collect();
    let step = numbers.len().div_ceil(SAMPLE).max(1);
    numbers.into_iter().step_by(step).collect()
}

/// Returns how many sampled extents a disk has as they were recorded of another.
fn alike(image: &Image, was: FileId, tree: &Tree, file: FileId, reader: &DirSource) -> usize {
    let Some(key) = tree.key(file) else {
        return 0;
    };
    let same = |number: &usize| {
        let Some(extent) = image.plan().extents.get(*number) else {
            return false;
        };
        let len = usize::try_from(extent.range.byte_len()).unwrap_or(0);
        let mut bytes = vec![0; len];
        let at = extent.range.start().0 * BLOCK_SIZE as u64;
        reader.read_at(&key, at, &mut bytes).is_ok() && image.holds(*number, &bytes)
    };
    sample(image, was)
        .iter()
        .filter(|number| same(number))
        .count()
}

/// Writes the boot image of this place: what it has already is taken from there, the rest from the disks.
fn write(
    settings: &StoreSettings,
    source: &Source,
    plan: &ReplayPlan,
    own: Option<Attached>,
    reader: &Arc<DirSource>,
    interrupt: &Interrupt,
) -> anyhow::Result<u64> {
    let info = source.info();
    let cached = own.map(|own| CachedSource::new(own, Arc::clone(reader)));
    let request = WriteRequest {
        tree: &source.tree,
        info: &info,
        plan,
        blocks: match &cached {
            Some(cached) => cached,
            None => &**reader,
        },
        variant: Variant::Mapped,
    };
    let bar = progress::bytes(
        "writing the boot image of clones",
        plan.block_count().saturating_mul(BLOCK_SIZE as u64),
    );
    let store = settings.open()?;
    let added = add_written(&store, None, &request, &mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    let (_, report) = added.context("writing the boot image of clones")?;
    Ok(report.blocks)
}
