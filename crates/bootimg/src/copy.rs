//! Writing an image again, in another variant.

use std::path::Path;

use rawio::destination::destination;

use crate::durable::Steps;
use crate::extents::Content;
use crate::header::{Section, SectionKind, Variant};
use crate::layout::PAGE_BYTES;
use crate::reader::ReadError;
use crate::scan::Scan;
use crate::writer::assemble::Assembler;
use crate::{FormatError, Image, ImageId, Progress, Watch, WriteError};

/// Receives blocks of the data space, with the place of the first.
pub(crate) type Take<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), WriteError>;

impl Image {
    /// Writes the image to `path` as a separate file, mapped or packed, verified on the way.
    /// The id stays the same.
    ///
    /// # Errors
    /// If the image is damaged or the file cannot be written. No file is left then.
    pub fn write_to(
        &self,
        path: impl AsRef<Path>,
        variant: Variant,
        watch: Watch<'_>,
    ) -> Result<ImageId, WriteError> {
        let path = destination(path.as_ref())
            .map_err(|error| WriteError::io(path.as_ref(), "finding its place", error))?;
        self.write_to_in(&path, variant, &Steps::default(), watch)
    }

    pub(crate) fn write_to_in(
        &self,
        path: &Path,
        variant: Variant,
        steps: &Steps,
        watch: Watch<'_>,
    ) -> Result<ImageId, WriteError> {
        if variant == Variant::Thin {
            return Err(WriteError::Format(FormatError::Rule {
                what: "header",
                rule: "only a store writes thin images",
            }));
        }
        let mut out = Assembler::create(path, None, variant, steps)?;
        self.each_window(watch, &mut |_, blocks| out.data(blocks))?;
        out.end_data()?;
        self.copy_sections(&mut out)?;
        out.finish(path)
    }

    /// Passes all data to `take`, in order, each with its first place. The data is
    /// verified only if this succeeds.
    pub(crate) fn each_window(&self, watch: Watch<'_>, take: Take<'_>) -> Result<(), WriteError> {
        let total = self.info().data_blocks * PAGE_BYTES;
        let mut scan = Scan::new(self);
        while let Some(window) = scan.next() {
            if let Some(index) = window.damaged.first() {
                return Err(WriteError::Damaged {
                    place: match self.rows[*index].content {
                        Content::Data { place, .. } => place,
                        Content::Zero => window.first,
                    },
                });
            }
            take(window.first, window.blocks)?;
            let done = scan.done();
            if watch(Progress { done, total }).is_break() {
                return Err(WriteError::Cancelled);
            }
        }
        Ok(())
    }

    /// Copies the sections that the id covers, as they are stored.
    pub(crate) fn copy_sections(&self, out: &mut Assembler<'_>) -> Result<(), WriteError> {
        for kind in SectionKind::LOGICAL {
            let stored = self.sealed.stored(kind).map_err(|error| match error {
                ReadError::Format(error) => WriteError::Format(error),
                ReadError::Io(error) => WriteError::io("the image", "reading a section", error),
            })?;
            if let Some(Section {
                coding,
                decoded_len,
                ..
            }) = self.sealed.header.section(kind)
            {
                out.stored(kind, *coding, &stored, *decoded_len)?;
            }
        }
        Ok(())
    }
}
