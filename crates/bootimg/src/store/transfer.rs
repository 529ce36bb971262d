//! Exporting and importing images, and verifying a store.

use std::path::{Path, PathBuf};

use crate::reader::ReadError;
use crate::store::segment::Segment;
use crate::store::{catalog, names};
use crate::{
    AddReport, Image, ImageId, OpenError, Store, StoreError, Variant, VerifyReport, Watch,
};

/// An image of the store, verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredVerifyReport {
    /// The image.
    pub id: ImageId,
    /// The result.
    pub report: VerifyReport,
}

/// Damage in a store.
#[derive(Debug, Default)]
pub struct StoreVerifyReport {
    /// Every image that could be opened.
    pub images: Vec<StoredVerifyReport>,
    /// Images that could not be opened, and why.
    pub unusable: Vec<(ImageId, StoreError)>,
    /// Images of another release, which may be whole: this one cannot tell.
    pub foreign: Vec<ImageId>,
    /// Segments whose own table or header is damaged: nothing new is shared with them.
    pub segments: Vec<PathBuf>,
}

impl StoreVerifyReport {
    /// Returns whether all is right.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.unusable.is_empty()
            && self.segments.is_empty()
            && self.images.iter().all(|image| image.report.is_sound())
    }
}

impl Store {
    /// Writes an image to a file of its own, verified on the way.
    ///
    /// # Errors
    /// If it is missing or damaged, or the file cannot be written.
    pub fn export(
        &self,
        id: &ImageId,
        path: impl AsRef<Path>,
        variant: Variant,
        watch: Watch<'_>,
    ) -> Result<(), StoreError> {
        let image = catalog::open_image(&self.places, id)?;
        image.write_to(path, variant, watch)?;
        Ok(())
    }

    /// Takes an image in from a file, after verifying all of it.
    ///
    /// # Errors
    /// If it is damaged, or cannot be [added](Self::add).
    pub fn import(
        &self,
        path: impl AsRef<Path>,
        name: Option<&str>,
        watch: Watch<'_>,
    ) -> Result<AddReport, StoreError> {
        let path = path.as_ref();
        if let Some(name) = name {
            names::check(name)?; // before minutes of reading
        }
        let image = Image::open(path)?;
        let report = image.verify(&mut *watch)?;
        if let Some(part) = report.parts.first() {
            return Err(StoreError::Open(OpenError::Format {
                path: path.to_owned(),
                source: *part,
            }));
        }
        if !report.is_sound() {
            return Err(StoreError::Damaged {
                path: path.to_owned(),
                damaged: report.damaged.len(),
            });
        }
        self.add(&image, name, watch)
    }

    /// Verifies every image, every block they use, and every segment's table.
    ///
    /// # Errors
    /// If the store cannot be read, or the watch cancels; damage is reported.
    pub fn verify(&self, watch: Watch<'_>) -> Result<StoreVerifyReport, StoreError> {
        let mut report = StoreVerifyReport::default();
        for id in self.places.images()? {
            match catalog::open_image(&self.places, &id) {
                Ok(image) => report.images.push(StoredVerifyReport {
                    id,
                    report: image.verify(&mut *watch)?,
                }),
                Err(StoreError::NotFound { .. }) => {} // removed meanwhile
                Err(StoreError::Open(error)) if error.is_of_another_release() => {
                    report.foreign.push(id);
                }
                Err(error) => report.unusable.push((id, error)),
            }
        }
        for id in self.places.segments()? {
            let path = self.places.segment(&id);
            let table = Segment::open(&path).and_then(|segment| segment.table());
            let is_damaged = match table {
                Ok(_) => false,
                Err(ReadError::Format(error)) => !error.is_of_another_release(),
                Err(ReadError::Io(_)) => path.exists(),
            };
            if is_damaged {
                report.segments.push(path);
            }
        }
        Ok(report)
    }
}
