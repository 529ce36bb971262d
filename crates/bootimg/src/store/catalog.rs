//! The content of a store, read from its files.

mod groups;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{ContentId, Digest, SourceId};

use crate::backing::Backing;
use crate::data::{DataSpace, Run};
use crate::header::Variant;
use crate::layout::PAGE_BYTES;
use crate::reader::{ReadError, Sealed, open_regular};
use crate::store::copy_parts::CopyParts;
use crate::store::pass::read_soon;
use crate::store::places::Places;
use crate::store::segment::{Segment, blocks_of_file};
use crate::{FormatError, Image, ImageId, ImageInfo, OpenError, StoreError, StoredImage};
use groups::groups;

/// How often an image is opened anew when a segment of it is gone: that happens when a segment
/// is repacked between reading the image and opening its segments.
const OPEN_TRIES: u32 = 3;
/// The image of a disk that is booted has 30 KiB beside its data, one with the names of a large container image
/// some MiB, of which not all is needed at once.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// An image, without its content.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) info: ImageInfo,
    pub(super) segments: Vec<ContentId>,
    pub(super) runs: Vec<Run>,
    pub(super) last_used: SystemTime,
    /// Blocks that the next boot is expected to need: each as likely as it was before.
    expected_blocks: u64,
}

/// Everything in a store, at one moment.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) images: Vec<Held>,
    /// Images that will never open.
    pub(super) broken: Vec<(ImageId, OpenError)>,
    /// Images of another release: they may be whole, and which segments they use is unknown.
    pub(super) foreign: Vec<ImageId>,
    /// All segments with the number of their blocks; `None` if that is unknown.
    pub(super) segments: BTreeMap<ContentId, Option<u64>>,
    /// Those of them that could not be read this time, or not by this release, which says nothing about their content.
    pub(super) unread: BTreeSet<ContentId>,
    /// Those of these that another release wrote.
    pub(super) foreign_segments: BTreeSet<ContentId>,
    pub(super) names: Vec<(String, Option<ImageId>)>,
    pub(super) pins: BTreeSet<ImageId>,
}

/// How the lengths of segments become known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lengths {
    /// By the lengths of their files: nothing is read of them.
    OfFiles,
    /// From their headers, which are verified.
    Verified,
}

impl Lengths {
    /// Returns how many blocks a segment has; `None` if it is damaged or gone. An error says that this could not be
    /// found out: it cannot be read now, or another release wrote it.
    fn blocks(self, path: &Path) -> Result<Option<u64>, ReadError> {
        let found = match self {
            Self::OfFiles => path
                .metadata()
                .map(|of| blocks_of_file(of.len()))
                .map_err(ReadError::Io),
            Self::Verified => Segment::open(path).map(|segment| Some(segment.blocks())),
        };
        match found {
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(ReadError::Format(error)) if !error.is_of_another_release() => Ok(None),
            found => found,
        }
    }
}

impl Catalog {
    pub(super) fn read(places: &Places, lengths: Lengths) -> Result<Self, StoreError> {
        let mut images = Vec::new();
        let mut broken = Vec::new();
        let mut foreign = Vec::new();
        let ids = places.images()?;
        read_soon(ids.iter().map(|id| places.image(id)));
        for id in ids {
            match Held::read(places, &id) {
                Ok(held) => images.push(held),
                Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                // What cannot be read now may be readable later: that is no garbage.
                Err(OpenError::Io { path, source }) => {
                    return Err(StoreError::io(path, "reading", source));
                }
                Err(error) if error.is_of_another_release() => {
                    log::warn!("boot image {} is kept: {}", id.short(), with_reason(&error));
                    foreign.push(id);
                }
                Err(error) => {
                    log::warn!("{}", with_reason(&error));
                    broken.push((id, error));
                }
            }
        }
        let mut segments = BTreeMap::new();
        let (mut unread, mut foreign_segments) = (BTreeSet::new(), BTreeSet::new());
        for id in places.segments()? {
            let path = places.segment(&id);
            let blocks = lengths.blocks(&path).unwrap_or_else(|error| {
                unread.insert(id);
                match error {
                    ReadError::Io(error) => {
                        log::warn!("{} cannot be read now: {error}", path.display());
                    }
                    ReadError::Format(error) => {
                        log::warn!("{} is kept: {error}", path.display());
                        foreign_segments.insert(id);
                    }
                }
                None
            });
            segments.insert(id, blocks);
        }
        Ok(Self {
            images,
            broken,
            foreign,
            segments,
            unread,
            foreign_segments,
            names: places.names()?,
            pins: places.pins()?.into_iter().collect(),
        })
    }

    /// Returns the segments that are kept whatever they hold: those that were not read, and, as an image of another
    /// release may use any of them, those that are damaged.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &ContentId> {
        let all = self.segments.iter();
        all.filter(|(id, blocks)| {
            self.unread.contains(*id) || (blocks.is_none() && !self.foreign.is_empty())
        })
        .map(|(id, _)| id)
    }

    /// Returns the images, the most valuable first.
    pub(super) fn list(self) -> Vec<StoredImage> {
        let users = self.users(|_| true);
        let now = SystemTime::now();
        let groups = groups(&self.images, &self.segments);
        let mut names: BTreeMap<ImageId, Vec<String>> = BTreeMap::new();
        for (name, id) in &self.names {
            if let Some(id) = id {
                names.entry(*id).or_default().push(name.clone());
            }
        }
        let mut list: Vec<_> = self
            .images
            .iter()
            .zip(groups)
            .map(|(held, groups)| StoredImage {
                groups,
                names: names.remove(&held.info.id).unwrap_or_default(),
                ..self.stored(held, &users, now)
            })
            .collect();
        list.sort_by_key(|image| (std::cmp::Reverse(image.value), image.info.id));
        list
    }

    fn stored(&self, held: &Held, users: &Users, now: SystemTime) -> StoredImage {
        let (own, shared) = users.of(held);
        let own_bytes = held.info.file_bytes + own * PAGE_BYTES;
        StoredImage {
            names: Vec::new(),
            pinned: self.pins.contains(&held.info.id),
            own_bytes,
            shared_bytes: shared * PAGE_BYTES,
            groups: Vec::new(),
            last_used: held.last_used,
            value: held.value(own_bytes, now),
            info: held.info.clone(),
        }
    }

    /// Counts how many of the images that are `kept` use each block of each segment.
    pub(super) fn users(&self, kept: impl Fn(&ImageId) -> bool) -> Users {
        let mut users = Users::default();
        for (segment, blocks) in &self.segments {
            if let Some(len) = blocks.and_then(|blocks| usize::try_from(blocks).ok()) {
                users.counts.insert(*segment, vec![0; len]);
            }
        }
        for held in self.images.iter().filter(|held| kept(&held.info.id)) {
            for run in &held.runs {
                for count in users.run_mut(held, run) {
                    *count = count.saturating_add(1);
                }
            }
        }
        users
    }
}

impl Held {
    fn read(places: &Places, id: &ImageId) -> Result<Self, OpenError> {
        let path = places.image(id);
        let sealed = read_whole(&path, id)?;
        let in_file = |error| located(&path, error);
        let segments = sealed.segments().map_err(in_file)?;
        let mut image = Image::decode(sealed, Vec::new()).map_err(in_file)?;
        let runs = match &mut image.data {
            DataSpace::Thin { runs, .. } => std::mem::take(runs),
            DataSpace::Mapped { .. } | DataSpace::Packed { .. } => Vec::new(), // not in a store
        };
        let plan = image.plan();
        let runs_seen = u64::from(plan.runs.max(1));
        let expected = plan
            .extents
            .iter()
            .map(|extent| extent.range.len() * u64::from(extent.seen));
        Ok(Self {
            segments,
            runs,
            last_used: places.last_used(id).unwrap_or(SystemTime::UNIX_EPOCH),
            expected_blocks: expected.sum::<u64>() / runs_seen,
            info: image.info().clone(),
        })
    }

    /// Returns what the image is worth: see [`StoredImage::value`].
    pub(super) fn value(&self, own_bytes: u64, now: SystemTime) -> u64 {
        const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
        let unused = now.duration_since(self.last_used).unwrap_or_default();
        let weeks = unused.as_secs() / WEEK.as_secs();
        let saved = self.expected_blocks.saturating_mul(PAGE_BYTES);
        // Within a week the value falls from whole to half in a straight line, so that of two
        // images used this week the one used later is worth more.
        let into_week = unused.as_secs() % WEEK.as_secs();
        let fading = 2 * WEEK.as_secs() - into_week;
        let full = saved.saturating_mul(1000) / own_bytes.max(1);
        let now = u128::from(full) * u128::from(fading) / u128::from(2 * WEEK.as_secs());
        u64::try_from(now).unwrap_or(u64::MAX) >> weeks.min(63)
    }
}

/// How many images use each block of each segment.
#[derive(Debug, Default)]
pub(super) struct Users {
    pub(super) counts: BTreeMap<ContentId, Vec<u16>>,
}

impl Users {
    /// Returns how many blocks only this image uses, and how many others use too.
    pub(super) fn of(&self, held: &Held) -> (u64, u64) {
        let mut own = 0;
        let mut shared = 0;
        for run in &held.runs {
            for count in self.run(held, run) {
                if *count > 1 {
                    shared += 1;
                } else {
                    own += 1;
                }
            }
        }
        (own, shared)
    }

    fn run(&self, held: &Held, run: &Run) -> &[u16] {
        let segment = held.segments.get(run.segment);
        let counts = segment.and_then(|id| self.counts.get(id));
        // A run past the end of its segment is damage, which is not for us to find.
        counts
            .and_then(|counts| counts.get(span(run)))
            .unwrap_or_default()
    }

    fn run_mut(&mut self, held: &Held, run: &Run) -> &mut [u16] {
        let segment = held.segments.get(run.segment);
        let counts = segment.and_then(|id| self.counts.get_mut(id));
        counts
            .and_then(|counts| counts.get_mut(span(run)))
            .unwrap_or_default()
    }
}

pub(super) fn span(run: &Run) -> std::ops::Range<usize> {
    let len = crate::layout::len_usize;
    len(run.at)..len(run.at + run.blocks)
}

/// Opens an image and its segments.
pub(super) fn open_image(places: &Places, id: &ImageId) -> Result<Image, StoreError> {
    places.must_have(id)?;
    let mut tries = 1;
    loop {
        match try_open(places, id) {
            Err(OpenError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < OPEN_TRIES =>
            {
                tries += 1;
            }
            done => return Ok(done?),
        }
    }
}

/// What an image has of which segments.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) segments: Vec<ContentId>,
    pub(super) runs: Vec<Run>,
    pub(super) data_blocks: u64,
}

/// Reads only the places of the data of an image.
pub(super) fn describe(places: &Places, id: &ImageId) -> Result<Described, StoreError> {
    places.must_have(id)?;
    let path = places.image(id);
    let sealed = read_whole(&path, id)?;
    let in_file = |error| located(&path, error);
    Ok(Described {
        segments: sealed.segments().map_err(in_file)?,
        runs: sealed.runs().map_err(in_file)?,
        data_blocks: sealed.header.data_blocks,
    })
}

fn try_open(places: &Places, id: &ImageId) -> Result<Image, OpenError> {
    let path = places.image(id);
    let sealed = read_sealed(&path, id)?;
    let mut segments = Vec::new();
    for id in sealed.segments().map_err(|error| located(&path, error))? {
        let path = places.segment(&id);
        let segment = Segment::open(&path).map_err(|error| located(&path, error))?;
        let blocks = segment.blocks();
        segments.push((segment.into_backing(), blocks));
    }
    assemble(sealed, segments, &path)
}

/// Opens a copy in parts of an image; `path` is for messages.
pub(super) fn open_copy(copy: CopyParts, path: &Path, id: &ImageId) -> Result<Image, OpenError> {
    let in_file = |error| located(path, error);
    let sealed = seal(Backing::file(copy.image), path, id)?;
    let files = copy.segments.into_iter();
    let files: BTreeMap<ContentId, Backing> = files
        .map(|(name, file)| (name, Backing::file(file)))
        .collect();
    let mut segments = Vec::new();
    for id in sealed.segments().map_err(in_file)? {
        // One of which it has no block is not there.
        let file = files.get(&id).cloned();
        let file = file.unwrap_or_else(|| Backing::Memory(Arc::default()));
        let len = file.len().map_err(|error| in_file(error.into()))?;
        segments.push((file, (len / PAGE_BYTES).saturating_sub(1)));
    }
    assemble(sealed, segments, path)
}

/// Puts an image together with its segments, each with the number of its blocks.
pub(super) fn assemble(
    sealed: Sealed,
    segments: Vec<(Backing, u64)>,
    path: &Path,
) -> Result<Image, OpenError> {
    let in_file = |error| located(path, error);
    for run in sealed.runs().map_err(in_file)? {
        let segment = segments.get(run.segment);
        if segment.is_none_or(|(_, blocks)| run.at + run.blocks > *blocks) {
            let rule = "a run lies outside of its segment";
            let what = "table of runs";
            return Err(in_file(FormatError::Rule { what, rule }.into()));
        }
    }
    let segments = segments.into_iter().map(|(file, _)| file).collect();
    Image::decode(sealed, segments).map_err(in_file)
}

/// Returns the newest image of a source. Images that cannot be read are passed over, and logged.
pub(super) fn newest_of(places: &Places, source: SourceId) -> Result<Option<ImageId>, StoreError> {
    let mut newest = None;
    let hints = hints(places)?;
    for id in places
        .images()?
        .into_iter()
        .filter(|id| !hints.contains(id))
    {
        let path = places.image(&id);
        let described = read_sealed(&path, &id)
            .and_then(|sealed| sealed.meta().map_err(|error| located(&path, error)));
        match described {
            Ok(meta) if meta.source.id == source => {
                newest = newest.max(Some((meta.source.recorded_at, id)));
            }
            Ok(_) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
    Ok(newest.map(|(_, id)| id))
}

/// Returns the images that are only hints about a layer: those that have no name but a layer's. They
/// may come from anybody, and say themselves which source they are of.
fn hints(places: &Places) -> Result<BTreeSet<ImageId>, StoreError> {
    let is_layer = |name: &str| name.parse::<Digest>().is_ok();
    let names = places.names()?.into_iter();
    let (layers, others): (Vec<_>, Vec<_>) = names
        .filter_map(|(name, id)| Some((is_layer(&name), id?)))
        .partition(|(is_layer, _)| *is_layer);
    let mut hints: BTreeSet<_> = layers.into_iter().map(|(_, id)| id).collect();
    for (_, id) in others {
        hints.remove(&id);
    }
    Ok(hints)
}

pub(super) fn read_sealed(path: &Path, id: &ImageId) -> Result<Sealed, OpenError> {
    let file = open_regular(path).map_err(|error| located(path, error.into()))?;
    seal(Backing::file(file), path, id)
}

/// Reads an image of which every part is needed now, at once if it is small, as those without files are.
fn read_whole(path: &Path, id: &ImageId) -> Result<Sealed, OpenError> {
    let io = |error: io::Error| located(path, error.into());
    let file = open_regular(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    if len > WHOLE_BYTES_MAX {
        return seal(Backing::file(file), path, id);
    }
    let bytes = Backing::file(file).read_vec(0, len).map_err(io)?;
    seal(Backing::Memory(bytes.into()), path, id)
}

fn seal(file: Backing, path: &Path, id: &ImageId) -> Result<Sealed, OpenError> {
    let sealed = Sealed::read(file).map_err(|error| located(path, error))?;
    if sealed.header.variant != Variant::Thin || sealed.id() != *id {
        let source = FormatError::Rule {
            what: "header",
            rule: "it is not the image that its name says",
        };
        return Err(OpenError::Format {
            path: path.to_owned(),
            source,
        });
    }
    Ok(sealed)
}

/// Returns an error as text, with what is wrong in the file.
fn with_reason(error: &OpenError) -> String {
    let reason = std::error::Error::source(error);
    reason.map_or_else(|| error.to_string(), |reason| format!("{error}: {reason}"))
}

pub(super) fn located(path: &Path, error: ReadError) -> OpenError {
    let path = path.to_owned();
    match error {
        ReadError::Io(source) => OpenError::Io { path, source },
        ReadError::Format(source) => OpenError::Format { path, source },
    }
}
