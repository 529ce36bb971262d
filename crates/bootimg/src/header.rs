//! Header, section table and footer: docs/bootimg-format.md, sections 2 and 3.

use crate::FormatError;
use crate::layout::{HASH, Input, PAGE, PAGE_BYTES, hash, len64};

const MAGIC: [u8; 8] = *b"\x89YOLOBI\n";
const FORMAT_VERSION: u32 = 1;
/// Bit 0 of a section's flags.
const FLAG_ZSTD: u32 = 1;
const SECTIONS_MAX: usize = 32;
/// Where the hash of a page lies: at its end.
const PAGE_HASH_AT: usize = PAGE - HASH;
/// A data space that is larger cannot be: offsets in it would come near to overflow.
const DATA_BLOCKS_MAX: u64 = 1 << 36;

/// How an image keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// As it is, aligned to blocks: to serve from.
    Mapped,
    /// Compressed with zstd in frames of 128 KiB: what travels and rests.
    Packed,
    /// In segments that images of a store share.
    Thin,
}

impl Variant {
    const fn number(self) -> u32 {
        match self {
            Self::Mapped => 1,
            Self::Packed => 2,
            Self::Thin => 3,
        }
    }

    /// Returns the sections, besides the four that all variants have, that the variant must have.
    const fn needs(self) -> &'static [SectionKind] {
        match self {
            Self::Mapped => &[],
            Self::Packed => &[SectionKind::Frames],
            Self::Thin => &[SectionKind::Segments, SectionKind::Runs],
        }
    }
}

/// The content of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionKind {
    Tree,
    Meta,
    Extents,
    Touches,
    Data,
    Frames,
    Segments,
    Runs,
    /// Of a later release; it may be ignored, since otherwise an incompatible bit would be set.
    Other(u32),
}

impl SectionKind {
    /// The sections that every image has, in the order in which the id covers them.
    pub(crate) const LOGICAL: [Self; 4] = [Self::Tree, Self::Meta, Self::Extents, Self::Touches];

    const fn number(self) -> u32 {
        match self {
            Self::Tree => 1,
            Self::Meta => 2,
            Self::Extents => 3,
            Self::Touches => 4,
            Self::Data => 5,
            Self::Frames => 6,
            Self::Segments => 7,
            Self::Runs => 8,
            Self::Other(number) => number,
        }
    }

    const fn of_number(number: u32) -> Self {
        match number {
            1 => Self::Tree,
            2 => Self::Meta,
            3 => Self::Extents,
            4 => Self::Touches,
            5 => Self::Data,
            6 => Self::Frames,
            7 => Self::Segments,
            8 => Self::Runs,
            other => Self::Other(other),
        }
    }

    /// Returns what messages call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree section",
            Self::Meta => "description",
            Self::Extents => "table of extents",
            Self::Touches => "list of metadata uses",
            Self::Data => "data section",
            Self::Frames => "table of frames",
            Self::Segments => "table of segments",
            Self::Runs => "table of runs",
            Self::Other(_) => "section of another release",
        }
    }

    /// Returns how many bytes it may have when it is decoded.
    pub(crate) const fn limit(self) -> u64 {
        match self {
            Self::Tree => 1 << 30,
            Self::Meta => 64 << 10,
            Self::Extents | Self::Frames | Self::Runs => 256 << 20,
            Self::Touches => 64 << 20,
            Self::Segments => 64 * HASH as u64,
            Self::Data | Self::Other(_) => DATA_BLOCKS_MAX * PAGE_BYTES,
        }
    }
}

/// How a section is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Plain,
    Zstd,
}

/// The maximum ratio of the decoded to the stored length of a section: a small file must not
/// require much memory. Real trees reach 8.
pub(crate) const RATIO_MAX: u64 = 256;

/// An entry of the section table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) kind: SectionKind,
    pub(crate) coding: Coding,
    pub(crate) offset: u64,
    pub(crate) stored_len: u64,
    pub(crate) decoded_len: u64,
}

impl Section {
    const BYTES: usize = 32;

    fn encode(&self, out: &mut Vec<u8>) {
        let flags = match self.coding {
            Coding::Plain => 0,
            Coding::Zstd => FLAG_ZSTD,
        };
        out.extend_from_slice(&self.kind.number().to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.stored_len.to_le_bytes());
        out.extend_from_slice(&self.decoded_len.to_le_bytes());
    }

    fn parse(input: &mut Input<'_>) -> Result<Self, FormatError> {
        let kind = SectionKind::of_number(input.u32()?);
        let flags = input.u32()?;
        let coding = match (flags, kind) {
            (0, _) | (_, SectionKind::Other(_)) => Coding::Plain,
            (FLAG_ZSTD, SectionKind::Tree | SectionKind::Touches) => Coding::Zstd,
            _ => {
                return Err(input
                    .broken("a section has flags that it cannot have")
                    .into());
            }
        };
        let section = Self {
            kind,
            coding,
            offset: input.u64()?,
            stored_len: input.u64()?,
            decoded_len: input.u64()?,
        };
        section.check()?;
        Ok(section)
    }

    /// Checks the lengths, before anything is allocated for them.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let broken = |rule| FormatError::Rule {
            what: self.kind.name(),
            rule,
        };
        match self.coding {
            Coding::Plain
                if self.decoded_len != self.stored_len
                    && !matches!(self.kind, SectionKind::Other(_)) =>
            {
                return Err(broken("it is not compressed but has two lengths"));
            }
            Coding::Zstd if self.decoded_len / RATIO_MAX > self.stored_len => {
                return Err(broken("it claims to be compressed beyond reason"));
            }
            _ => {}
        }
        let bytes = self.stored_len.max(self.decoded_len);
        let limit = self.kind.limit();
        if bytes > limit {
            return Err(FormatError::TooLarge {
                what: self.kind.name(),
                bytes,
                limit,
            });
        }
        Ok(())
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.stored_len)
    }
}

/// The first page of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) variant: Variant,
    /// Feature bits that may be ignored; kept for display.
    pub(crate) compat: u64,
    pub(crate) file_len: u64,
    pub(crate) data_blocks: u64,
    pub(crate) sections: Vec<Section>,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; PAGE] {
        let mut out = Vec::with_capacity(PAGE);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.variant.number().to_le_bytes());
        out.extend_from_slice(&self.compat.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        out.extend_from_slice(&self.file_len.to_le_bytes());
        out.extend_from_slice(&self.data_blocks.to_le_bytes());
        out.extend_from_slice(&count32(self.sections.len()).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        for section in &self.sections {
            section.encode(&mut out);
        }
        sealed_page(&out)
    }

    /// Reads the first page of a file of `file_len` bytes.
    pub(crate) fn parse(page: &[u8; PAGE], file_len: u64) -> Result<Self, FormatError> {
        let mut input = Input::new("header", page);
        if input.array()? != MAGIC {
            return Err(FormatError::Magic);
        }
        let found = input.u32()?;
        if found != FORMAT_VERSION {
            return Err(FormatError::Version { found });
        }
        let body = unsealed(page, "header")?;
        let mut input = Input::new("header", &body[12..]);
        let variant = match input.u32()? {
            1 => Variant::Mapped,
            2 => Variant::Packed,
            3 => Variant::Thin,
            _ => return Err(input.broken("there is no such variant").into()),
        };
        let compat = input.u64()?;
        let bits = input.u64()?;
        if bits != 0 {
            return Err(FormatError::Incompatible { bits });
        }
        let header = input.u64()?;
        if header != file_len {
            return Err(FormatError::Length {
                header,
                file: file_len,
            });
        }
        let data_blocks = input.u64()?;
        let count = input.count()?;
        if count > SECTIONS_MAX || input.u32()? != 0 || data_blocks > DATA_BLOCKS_MAX {
            return Err(input.broken("a number is out of its range").into());
        }
        let sections = (0..count)
            .map(|_| Section::parse(&mut input))
            .collect::<Result<_, _>>()?;
        input.zeros()?;
        let header = Self {
            variant,
            compat,
            file_len,
            data_blocks,
            sections,
        };
        header.check_sections()?;
        Ok(header)
    }

    /// Returns the section of a kind.
    pub(crate) fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind)
    }

    fn check_sections(&self) -> Result<(), FormatError> {
        let broken = |rule| FormatError::Rule {
            what: "section table",
            rule,
        };
        let mut by_place: Vec<&Section> = self.sections.iter().collect();
        by_place.sort_by_key(|section| (section.offset, section.stored_len));
        let mut end = PAGE_BYTES;
        for section in by_place {
            if section.offset < end || section.end() > self.file_len - PAGE_BYTES {
                return Err(broken("sections overlap or leave the file"));
            }
            end = section.end();
        }
        let known = |kind| !matches!(kind, SectionKind::Other(_));
        for (index, section) in self.sections.iter().enumerate() {
            let again = self.sections[..index]
                .iter()
                .any(|s| s.kind == section.kind);
            if again && known(section.kind) {
                return Err(broken("a section is there twice"));
            }
        }
        let needed = SectionKind::LOGICAL.iter().chain(self.variant.needs());
        for kind in needed {
            self.section(*kind).ok_or(broken("a section is missing"))?;
        }
        self.check_data(broken)
    }

    fn check_data(&self, broken: impl Fn(&'static str) -> FormatError) -> Result<(), FormatError> {
        let data = self.section(SectionKind::Data);
        let here = data.map_or(0, |data| data.stored_len);
        let right = match self.variant {
            Variant::Mapped => here == self.data_blocks * PAGE_BYTES,
            Variant::Packed => (here == 0) == (self.data_blocks == 0),
            Variant::Thin => data.is_none(),
        };
        let placed = data.is_none_or(|data| data.offset == PAGE_BYTES);
        if right && placed {
            return Ok(());
        }
        Err(broken("the data section has the wrong length or place"))
    }
}

/// The last page of an image: the hashes of its sections, in the order of the section table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) hashes: Vec<[u8; HASH]>,
}

impl Footer {
    const HASHES_BYTES: usize = SECTIONS_MAX * HASH;

    /// Returns the page that goes with this `header` page.
    pub(crate) fn encode(&self, header: &[u8; PAGE]) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        for (place, hash) in page.chunks_exact_mut(HASH).zip(&self.hashes) {
            place.copy_from_slice(hash);
        }
        let root = Self::root(header, &page);
        page[PAGE_HASH_AT..].copy_from_slice(&root);
        page
    }

    /// Reads the page and checks the root over it and the `header` page, which has `count`
    /// sections.
    pub(crate) fn parse(
        page: &[u8; PAGE],
        header: &[u8; PAGE],
        count: usize,
    ) -> Result<Self, FormatError> {
        if Self::root(header, page) != page[PAGE_HASH_AT..] {
            return Err(FormatError::Hash { what: "footer" });
        }
        let mut input = Input::new("footer", &page[..PAGE_HASH_AT]);
        let hashes = input.records::<HASH>(count.min(SECTIONS_MAX))?.to_vec();
        input.zeros()?;
        Ok(Self { hashes })
    }

    fn root(header: &[u8; PAGE], page: &[u8; PAGE]) -> [u8; HASH] {
        let mut root = blake3::Hasher::new();
        root.update(header);
        root.update(&page[..Self::HASHES_BYTES]);
        *root.finalize().as_bytes()
    }
}

/// Returns a page that starts with `body` and ends with its hash.
pub(crate) fn sealed_page(body: &[u8]) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let len = body.len().min(PAGE_HASH_AT); // bodies are bounded by SECTIONS_MAX
    page[..len].copy_from_slice(&body[..len]);
    let seal = hash(&page[..PAGE_HASH_AT]);
    page[PAGE_HASH_AT..].copy_from_slice(&seal);
    page
}

/// Returns what a sealed page holds.
pub(crate) fn unsealed<'a>(
    page: &'a [u8; PAGE],
    what: &'static str,
) -> Result<&'a [u8], FormatError> {
    let (body, seal) = page.split_at(PAGE_HASH_AT);
    if hash(body) == seal {
        Ok(body)
    } else {
        Err(FormatError::Hash { what })
    }
}

/// Returns a number of elements as it is stored; tables are bounded far below.
pub(crate) fn count32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const _: () = assert!(56 + SECTIONS_MAX * Section::BYTES <= PAGE_HASH_AT);
const _: () = assert!(len64(Footer::HASHES_BYTES) < PAGE_BYTES);
