//! What is known of one image, from the store and from its mounts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::Context as _;
use blocks::{Digest, FileId};
use bootimg::{Image, ImageId, ImageInfo, Stack, Store, StoredImage};
use report::{
    Content, Execute, FileKind, FileShare, ImageReport, LayerReport, NamedDigest, Need,
    RecordingReport, StabilityReport, Timeline,
};

use super::super::inspect::PATHS_BUDGET;
use super::mounts::Mounted;
use super::subject::Subject;
use crate::output::count;
use bootstore::store::name_of;

/// Permission to execute, for anybody.
const EXECUTE: u16 = 0o111;

/// All that pages are made of.
#[derive(Debug)]
pub(super) struct Collector<'a> {
    store: Option<&'a Store>,
    /// Every boot image of the store.
    pub(super) stored: HashMap<ImageId, StoredImage>,
    pub(super) mounts: Vec<Mounted>,
}

/// A layer of what a page is about: what it is called, and its boot image if it has one.
struct Layer {
    name: String,
    image: Option<Image>,
}

impl<'a> Collector<'a> {
    /// Lists the store.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn new(store: Option<&'a Store>, mounts: Vec<Mounted>) -> anyhow::Result<Self> {
        let stored = match store {
            Some(store) => store.list().context("listing the store")?,
            None => Vec::new(),
        };
        let stored = stored.into_iter().map(|image| (image.info.id, image));
        Ok(Self {
            store,
            stored: stored.collect(),
            mounts,
        })
    }

    /// Returns the store, if there is one.
    pub(super) const fn store(&self) -> Option<&'a Store> {
        self.store
    }

    /// Returns all that is known of an image but its measurements.
    ///
    /// # Errors
    /// If a boot image of it cannot be read.
    pub(super) fn image(&self, subject: &Subject) -> anyhow::Result<ImageReport> {
        match subject {
            Subject::Stack(stack) => self.stack(stack),
            Subject::Stored(id) => {
                let image = self.open(id)?;
                let names = self.stored.get(id).map(|stored| stored.names.clone());
                let name = self.stored.get(id).map_or_else(|| id.short(), name_of);
                Ok(self.single(name, names.unwrap_or_default(), image))
            }
            Subject::File(name) => {
                let image = Image::open(Path::new(name))?;
                Ok(self.single(name.clone(), Vec::new(), image))
            }
        }
    }

    fn open(&self, id: &ImageId) -> anyhow::Result<Image> {
        let store = self.store.context("there is no store")?;
        let opening = || format!("opening the boot image {}", id.short());
        store.peek_image(id).with_context(opening)
    }

    /// A tree or a disk: one layer.
    fn single(&self, name: String, names: Vec<String>, image: Image) -> ImageReport {
        let info = image.info();
        let digests = vec![NamedDigest {
            of: "Boot image".to_owned(),
            digest: info.id.to_string(),
        }];
        let (id, source) = (info.id, info.source.label.clone());
        let recording = RecordingReport {
            recorded_at: info.source.recorded_at,
            tool: info.source.tool.clone(),
            command: info.source.command.clone(),
            runs: info.runs,
            ready_ms: info.source.ready_ms.clone(),
        };
        let layer = Layer {
            name: source.clone(),
            image: Some(image),
        };
        ImageReport {
            other_names: names.into_iter().filter(|other| *other != name).collect(),
            name,
            source,
            digests,
            recording,
            mounts: self.mounts_of(|mount| mount.image.as_ref() == Some(&id.to_string())),
            ..self.layered(&[layer])
        }
    }

    /// A container image: its layers, as they were recorded last.
    fn stack(&self, stack: &Stack) -> anyhow::Result<ImageReport> {
        let layers = self.layers_of(stack)?;
        let infos = || infos(&layers);
        let tool = infos().last().map(|info| info.source.tool.clone());
        let recording = RecordingReport {
            recorded_at: stack.recorded_at,
            tool: tool.unwrap_or_default(),
            command: stack.command.clone(),
            runs: infos().map(|info| info.runs).max().unwrap_or(0),
            ready_ms: stack.ready_ms.clone(),
        };
        let is_ours = |layer| stack.layers.contains(&layer);
        Ok(ImageReport {
            name: stack.reference.clone(),
            source: format!("container image of {}", count(layers.len() as u64, "layer")),
            digests: digests_of(stack),
            recording,
            mounts: self.mounts_of(|mount| mount.layer.is_some_and(is_ours)),
            ..self.layered(&layers)
        })
    }

    fn layers_of(&self, stack: &Stack) -> anyhow::Result<Vec<Layer>> {
        let store = self.store.context("there is no store")?;
        let layers = stack.layers.iter().map(|digest| {
            let id = store.layer(digest)?;
            Ok(Layer {
                name: digest.to_string(),
                image: id.map(|id| self.open(&id)).transpose()?,
            })
        });
        layers.collect()
    }

    fn mounts_of(&self, is_ours: impl Fn(&Mounted) -> bool) -> Vec<report::MountReport> {
        let mounts = self.mounts.iter().filter(|mount| is_ours(mount));
        mounts.map(|mount| mount.report.clone()).collect()
    }

    /// Returns what there is to say of some layers together.
    fn layered(&self, layers: &[Layer]) -> ImageReport {
        let mut needs = Vec::new();
        let mut files = Vec::new();
        let mut stability = StabilityReport::default();
        let images = layers.iter().map(|layer| layer.image.as_ref()).enumerate();
        let mut bin_ms = u64::MAX;
        for (index, image) in images.filter_map(|(index, image)| Some((index, image?))) {
            bin_ms = bin_ms.min(image.plan().bin_ms.into());
            needs.extend(needs_of(image, index));
            files.extend(files_of(image, index));
            for extent in &image.plan().extents {
                stability.count(extent.seen, image.plan().runs, extent.range.byte_len());
            }
        }
        stability.similarity_ppm = similarity(layers);
        ImageReport {
            timeline: Timeline::of(&needs, bin_ms),
            content: Content::of(files),
            stability,
            layers: layers.iter().map(|layer| self.cost(layer)).collect(),
            ..ImageReport::default()
        }
    }

    fn cost(&self, layer: &Layer) -> LayerReport {
        let name = layer.name.clone();
        let Some(info) = layer.image.as_ref().map(Image::info) else {
            return LayerReport {
                name,
                ..LayerReport::default()
            };
        };
        // A file beside the store shares nothing with it.
        let stored = self.stored.get(&info.id);
        LayerReport {
            name,
            boot_image: Some(info.id.to_string()),
            source_bytes: Some(info.source.source_bytes),
            touched_bytes: touched(info),
            files: info.files,
            extents: info.extents,
            touches: info.touches,
            own_bytes: stored.map_or(info.file_bytes, |stored| stored.own_bytes),
            shared_bytes: stored.map_or(0, |stored| stored.shared_bytes),
        }
    }
}

fn digests_of(stack: &Stack) -> Vec<NamedDigest> {
    let named = |of: &str, digest: &Digest| NamedDigest {
        of: of.to_owned(),
        digest: digest.to_string(),
    };
    let manifest = stack.manifest.as_ref();
    let manifest = manifest.map(|manifest| named("Manifest", manifest));
    let image = named("Image", &stack.image);
    std::iter::once(image).chain(manifest).collect()
}

/// Returns what the boot images of the layers say of themselves.
fn infos(layers: &[Layer]) -> impl Iterator<Item = &ImageInfo> {
    let images = layers.iter().filter_map(|layer| layer.image.as_ref());
    images.map(Image::info)
}

fn touched(info: &ImageInfo) -> u64 {
    info.blocks.saturating_mul(blocks::BLOCK_SIZE as u64)
}

/// Returns how alike the runs were: the mean over the layers, each by what is read of it; nothing
/// unless every recorded layer knows.
fn similarity(layers: &[Layer]) -> Option<u32> {
    let (mut sum, mut all) = (0_u128, 0_u128);
    for info in infos(layers) {
        let blocks = u128::from(info.blocks);
        sum += u128::from(info.source.similarity_ppm?) * blocks;
        all += blocks;
    }
    u32::try_from(sum.checked_div(all)?).ok()
}

fn needs_of(image: &Image, layer: usize) -> impl Iterator<Item = Need> {
    let bin_ms = u64::from(image.plan().bin_ms);
    image.plan().extents.iter().map(move |extent| Need {
        at_ms: u64::from(extent.bin) * bin_ms,
        layer,
        bytes: extent.range.byte_len(),
    })
}

fn files_of(image: &Image, layer: usize) -> Vec<FileShare> {
    let mut read: BTreeMap<FileId, (u64, u64)> = BTreeMap::new();
    for need in image.plan().extents.iter().zip(needs_of(image, layer)) {
        let (extent, Need { at_ms, bytes, .. }) = need;
        let (sum, first_ms) = read.entry(extent.file).or_insert((0, at_ms));
        *sum = sum.saturating_add(bytes);
        *first_ms = at_ms.min(*first_ms);
    }
    let mut paths = image.tree().paths_within(PATHS_BUDGET);
    let share = |(file, (bytes, first_ms))| {
        let path = paths.next(file);
        let path = String::from_utf8_lossy(&path).into_owned();
        let attr = image.tree().inode(file).map(|inode| inode.attr);
        let execute = match attr.is_some_and(|attr| attr.perm & EXECUTE != 0) {
            true => Execute::Allowed,
            false => Execute::Denied,
        };
        FileShare {
            kind: FileKind::of(&path, execute),
            path,
            layer,
            bytes,
            size: attr.map_or(0, |attr| attr.size),
            first_ms,
        }
    };
    read.into_iter().map(share).collect()
}
