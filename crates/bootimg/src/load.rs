//! Bringing an image into memory, and verifying all of it.

use std::ops::ControlFlow;

use blocks::BlockRange;

use crate::backing::Backing;
use crate::first_of::PATHS_BUDGET;
use crate::header::{Footer, Header, SectionKind};
use crate::layout::{PAGE, PAGE_BYTES, len_usize};
use crate::reader::ReadError;
use crate::scan::Scan;
use crate::{FirstOf, FormatError, Image, Progress, Watch};

/// The watch cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// An extent whose bytes differ from the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedExtent {
    /// One path of the file, without a leading `/`.
    pub path: Vec<u8>,
    /// The blocks.
    pub range: BlockRange,
}

/// What a pass over all data found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Bytes of content that were read.
    pub bytes: u64,
    /// Extents that cannot be served, or are not right.
    pub damaged: FirstOf<DamagedExtent>,
}

/// Damage in an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Bytes of content that were read.
    pub bytes: u64,
    /// Extents that are not right.
    pub damaged: FirstOf<DamagedExtent>,
    /// Parts of the file that are not right, apart from extents.
    pub parts: Vec<FormatError>,
    /// Parts of the file that could not be read.
    pub unreadable: Vec<&'static str>,
}

impl VerifyReport {
    /// Returns whether all is right.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.parts.is_empty() && self.unreadable.is_empty()
    }
}

impl Image {
    /// Reads all data in one sequential pass, so that the page cache holds it, and verifies it.
    ///
    /// # Errors
    /// Only if the watch cancels: damage is reported.
    pub fn load(&self, watch: Watch<'_>) -> Result<LoadReport, Cancelled> {
        let mut report = LoadReport::default();
        let total = self.info().data_blocks * PAGE_BYTES;
        let mut paths = self.tree().paths_within(PATHS_BUDGET);
        let mut scan = Scan::new(self);
        while let Some(window) = scan.next() {
            for index in window.damaged {
                let extent = self.rows[index].extent;
                report.damaged.add(|| DamagedExtent {
                    path: paths.next(extent.file),
                    range: extent.range,
                });
            }
            report.bytes = scan.done();
            let done = report.bytes;
            if watch(Progress { done, total }).is_break() {
                return Err(Cancelled);
            }
        }
        Ok(report)
    }

    /// Verifies everything: the header and the footer, every section, and every extent. The file
    /// is read again for it.
    ///
    /// # Errors
    /// Only if the watch cancels: damage is reported.
    pub fn verify(&self, watch: Watch<'_>) -> Result<VerifyReport, Cancelled> {
        let mut report = VerifyReport::default();
        let mut note = |what, result: Result<(), ReadError>| match result {
            Ok(()) => {}
            Err(ReadError::Format(error)) => report.parts.push(error),
            Err(ReadError::Io(_)) => report.unreadable.push(what),
        };
        note("header", self.verify_pages());
        for section in &self.sealed.header.sections {
            let kind = section.kind;
            if kind != SectionKind::Data {
                note(kind.name(), self.sealed.stored(kind).map(|_| ()));
            }
        }
        note("data section", self.verify_data(&mut *watch));
        let LoadReport { bytes, damaged } = self.load(watch)?;
        report.bytes = bytes;
        report.damaged = damaged;
        Ok(report)
    }

    fn verify_pages(&self) -> Result<(), ReadError> {
        let file = &self.sealed.file;
        let len = file.len()?;
        let mut header = [0; PAGE];
        file.read(0, &mut header)?;
        let parsed = Header::parse(&header, len)?;
        let mut footer = [0; PAGE];
        file.read(len.saturating_sub(PAGE_BYTES), &mut footer)?;
        Footer::parse(&footer, &header, parsed.sections.len())?;
        Ok(())
    }

    /// Hashes DATA as it is stored: that covers frames, which no extent does.
    fn verify_data(&self, watch: Watch<'_>) -> Result<(), ReadError> {
        let header = &self.sealed.header;
        let with_hash = header.sections.iter().zip(&self.sealed.footer.hashes);
        let Some((data, want)) = with_hash
            .into_iter()
            .find(|(section, _)| section.kind == SectionKind::Data)
        else {
            return Ok(());
        };
        let progress = Progress {
            done: 0,
            total: data.stored_len,
        };
        match hash_range(&self.sealed.file, data.offset, data.stored_len, &mut |_| {
            watch(progress)
        })? {
            // Cancelled: the pass over the extents, which comes next, says so.
            None => Ok(()),
            Some(hash) if hash == *want => Ok(()),
            Some(_) => Err(FormatError::Hash {
                what: SectionKind::Data.name(),
            }
            .into()),
        }
    }
}

fn hash_range(
    file: &Backing,
    offset: u64,
    len: u64,
    go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<[u8; 32]>, ReadError> {
    const STEP: u64 = 1 << 20;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; len_usize(STEP.min(len))];
    let mut done = 0;
    while done < len {
        let part = &mut buffer[..len_usize(STEP.min(len - done))];
        file.read(offset + done, part)?;
        hasher.update(part);
        done += part.len() as u64;
        if go_on(done).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}
