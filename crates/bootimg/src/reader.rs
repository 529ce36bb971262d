//! Opening a boot image: docs/bootimg-format.md, section 11, in its order.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use blocks::{Broken, ContentId, ReplayPlan, Tree};
use parking_lot::Mutex;
use rawio::regular::{self, Links};

use crate::backing::Backing;
use crate::data::{self, DataSpace};
use crate::extents::{self, Content, Row};
use crate::header::{Footer, Header, SectionKind, Variant};
use crate::layout::{PAGE, PAGE_BYTES, hash, len64};
use crate::meta::{self, Meta};
use crate::{FormatError, ImageId, ImageInfo, OpenError, squeeze, touches};

/// What an image is a copy of, on faster memory.
pub(crate) trait CopyOf: std::fmt::Debug + Send + Sync {
    /// Returns what the memory is called that the copy is on.
    fn tier(&self) -> &str;

    /// Returns the image in the store, opened at the first call: `None` if the
    /// store has lost it.
    fn own(&self) -> Option<&Image>;
}

/// Opens a regular file. Others are refused: opening a pipe would wait for somebody who writes to it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    regular::open(path, Links::Followed)
}

/// An open boot image. Its file may be renamed or removed meanwhile.
#[derive(Debug)]
pub struct Image {
    info: ImageInfo,
    tree: Arc<Tree>,
    plan: ReplayPlan,
    /// What the extents of the plan hold, in the same order.
    pub(crate) rows: Vec<Row>,
    pub(crate) data: DataSpace,
    pub(crate) sealed: Sealed,
    /// What this is a copy of, if it is one on faster memory.
    pub(crate) copy_of: Option<Box<dyn CopyOf>>,
}

impl Image {
    /// Opens a mapped or packed image.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, is no boot image, or is part of a store.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_within(path, u64::MAX)
    }

    /// The same, unless its metadata needs more than `most` bytes of memory: for untrusted
    /// images. The limits of the format are for trusted ones.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if it is larger.
    pub fn open_within(path: impl AsRef<Path>, most: u64) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let file = open_regular(path).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::of_file_within(file, path, most)
    }

    /// Opens a mapped or packed image that is in a file; `path` is for messages.
    pub(crate) fn of_file(file: File, path: &Path) -> Result<Self, OpenError> {
        Self::of_file_within(file, path, u64::MAX)
    }

    fn of_file_within(file: File, path: &Path, most: u64) -> Result<Self, OpenError> {
        let located = |error| match error {
            ReadError::Io(source) => OpenError::Io {
                path: path.to_owned(),
                source,
            },
            ReadError::Format(source) => OpenError::Format {
                path: path.to_owned(),
                source,
            },
        };
        let sealed = Sealed::read(Backing::file(file)).map_err(located)?;
        let bytes = sealed.description_len();
        if bytes > most {
            let what = "description of what boots read";
            let limit = most;
            return Err(located(FormatError::TooLarge { what, bytes, limit }.into()));
        }
        if sealed.header.variant == Variant::Thin {
            return Err(OpenError::Thin {
                path: path.to_owned(),
            });
        }
        Self::decode(sealed, Vec::new()).map_err(located)
    }

    /// Opens a mapped or packed image that is in memory.
    ///
    /// # Errors
    /// If it is damaged, is no boot image, or is part of a store.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, FormatError> {
        let format = |error| match error {
            ReadError::Format(error) => error,
            // Memory has all of what its length says.
            ReadError::Io(_) => FormatError::TooShort { len: 0 },
        };
        let sealed = Sealed::read(Backing::Memory(bytes.into())).map_err(format)?;
        if sealed.header.variant == Variant::Thin {
            return Err(FormatError::Rule {
                what: "header",
                rule: "it is part of a store",
            });
        }
        Self::decode(sealed, Vec::new()).map_err(format)
    }

    /// Sets the image in the store that this is a copy of.
    pub(crate) fn with_store_behind(self, of: impl CopyOf + 'static) -> Self {
        Self {
            copy_of: Some(Box::new(of)),
            ..self
        }
    }

    /// Returns what the memory is called that this is a copy on, if it is not the store's own file.
    #[must_use]
    pub fn tier(&self) -> Option<&str> {
        self.copy_of.as_ref().map(|copy| copy.tier())
    }

    /// Returns its description.
    #[must_use]
    pub const fn info(&self) -> &ImageInfo {
        &self.info
    }

    /// Returns the metadata of the source as it was recorded.
    #[must_use]
    pub const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns what boots touched; its files are those of [`tree`](Self::tree).
    #[must_use]
    pub const fn plan(&self) -> &ReplayPlan {
        &self.plan
    }

    /// Returns the same without the blocks that are all zero, which take no space in an image.
    #[must_use]
    pub fn data_plan(&self) -> ReplayPlan {
        let data = self.rows.iter().filter(|row| row.content != Content::Zero);
        ReplayPlan {
            runs: self.plan.runs,
            bin_ms: self.plan.bin_ms,
            extents: data.map(|row| row.extent).collect(),
            touches: Vec::new(),
        }
    }

    /// Decodes an image. A thin one brings the blocks of its segments, in their order.
    pub(crate) fn decode(sealed: Sealed, segments: Vec<Backing>) -> Result<Self, ReadError> {
        let header = &sealed.header;
        let tree = Tree::decode(&sealed.section(SectionKind::Tree)?).map_err(FormatError::from)?;
        let Meta {
            source,
            runs,
            bin_ms,
        } = sealed.meta()?;
        let bounds = extents::Bounds {
            tree: &tree,
            runs,
            data_blocks: header.data_blocks,
        };
        let rows = extents::parse(&sealed.section(SectionKind::Extents)?, &bounds)?;
        let touches = touches::parse(&sealed.section(SectionKind::Touches)?, &tree)?;
        let data = sealed.data_space(segments)?;
        let plan = ReplayPlan {
            runs,
            bin_ms,
            extents: rows.iter().map(|row| row.extent).collect(),
            touches,
        };
        let zero = rows.iter().filter(|row| row.content == Content::Zero);
        let info = ImageInfo {
            id: sealed.id(),
            variant: header.variant,
            source,
            runs,
            bin_ms,
            inodes: len64(tree.len()),
            files: count_files(&rows),
            extents: len64(rows.len()),
            touches: len64(plan.touches.len()),
            blocks: plan.block_count(),
            zero_blocks: zero.map(|row| row.extent.range.len()).sum(),
            data_blocks: header.data_blocks,
            file_bytes: header.file_len,
        };
        Ok(Self {
            info,
            tree: Arc::new(tree),
            plan,
            rows,
            data,
            sealed,
            copy_of: None,
        })
    }
}

fn count_files(rows: &[Row]) -> u64 {
    let mut files: Vec<_> = rows.iter().map(|row| row.extent.file).collect();
    files.sort_unstable();
    files.dedup();
    len64(files.len())
}

/// Why an image could not be read, without its path.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    Format(FormatError),
}

impl From<FormatError> for ReadError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<Broken> for ReadError {
    fn from(broken: Broken) -> Self {
        Self::Format(broken.into())
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// An image with a valid header and footer; its sections are verified as they are read.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) file: Backing,
    pub(crate) header: Header,
    pub(crate) footer: Footer,
}

impl Sealed {
    pub(crate) fn read(file: Backing) -> Result<Self, ReadError> {
        let len = file.len()?;
        if len < 2 * PAGE_BYTES {
            return Err(FormatError::TooShort { len }.into());
        }
        let mut page = [0; PAGE];
        file.read(0, &mut page)?;
        let header = Header::parse(&page, len)?;
        let mut last = [0; PAGE];
        file.read(len - PAGE_BYTES, &mut last)?;
        let footer = Footer::parse(&last, &page, header.sections.len())?;
        Ok(Self {
            file,
            header,
            footer,
        })
    }

    /// Returns how many bytes all sections but the content have when they are decoded.
    fn description_len(&self) -> u64 {
        let sections = self.header.sections.iter();
        let sections = sections.filter(|section| section.kind != SectionKind::Data);
        sections
            .map(|section| section.decoded_len)
            .fold(0, u64::saturating_add)
    }

    /// Returns the description of the recording.
    pub(crate) fn meta(&self) -> Result<Meta, ReadError> {
        Ok(meta::parse(&self.section(SectionKind::Meta)?)?)
    }

    /// Returns a section as it is stored, verified. Not for DATA, which may be large.
    pub(crate) fn stored(&self, kind: SectionKind) -> Result<Vec<u8>, ReadError> {
        let found = self.header.sections.iter().zip(&self.footer.hashes);
        let Some((section, want)) = found.into_iter().find(|(s, _)| s.kind == kind) else {
            return Ok(Vec::new());
        };
        let stored = self.file.read_vec(section.offset, section.stored_len)?;
        if hash(&stored) != *want {
            return Err(FormatError::Hash { what: kind.name() }.into());
        }
        Ok(stored)
    }

    /// Returns a section, verified and decompressed.
    pub(crate) fn section(&self, kind: SectionKind) -> Result<Vec<u8>, ReadError> {
        let stored = self.stored(kind)?;
        match self.header.section(kind) {
            Some(section) => Ok(squeeze::unpack_section(section, stored)?),
            None => Ok(stored),
        }
    }

    /// Returns the ids of the segments of a thin image.
    pub(crate) fn segments(&self) -> Result<Vec<ContentId>, ReadError> {
        let ids = data::parse_segments(&self.section(SectionKind::Segments)?)?;
        Ok(ids.into_iter().map(ContentId).collect())
    }

    /// Returns the runs of a thin image.
    pub(crate) fn runs(&self) -> Result<Vec<data::Run>, ReadError> {
        let segments = self.segments()?.len();
        let runs = self.section(SectionKind::Runs)?;
        Ok(data::parse_runs(&runs, segments, self.header.data_blocks)?)
    }

    /// Returns the id, which does not depend on the variant.
    pub(crate) fn id(&self) -> ImageId {
        ImageId::of(&self.header, &self.footer)
    }

    fn data_space(&self, segments: Vec<Backing>) -> Result<DataSpace, ReadError> {
        let file = self.file.clone();
        Ok(match self.header.variant {
            Variant::Mapped => DataSpace::Mapped { file },
            Variant::Packed => DataSpace::Packed {
                file,
                frames: data::parse_frames(&self.section(SectionKind::Frames)?, &self.header)?,
                blocks: self.header.data_blocks,
                last: Mutex::default(),
            },
            Variant::Thin => DataSpace::Thin {
                segments,
                runs: self.runs()?,
            },
        })
    }
}
