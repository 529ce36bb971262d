//! Copies of images on faster memory than the store has, and the store's own files behind them.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::reader::CopyOf;
use crate::store::catalog;
pub use crate::store::copy_parts::CopyParts;
use crate::store::places::Places;
use crate::{Image, ImageId, StoreError};

/// Finds copies of images that are read faster than the store.
///
/// Copies are images in one file each, mapped or packed; or in parts, thin, with the segments that
/// they share. An open copy stays readable, even when its name is removed.
pub trait FasterCopies: fmt::Debug + Send + Sync {
    /// Opens the copies of an image, the fastest first. Those that cannot be opened are left out.
    fn open(&self, id: &ImageId) -> Vec<FasterCopy>;

    /// Records that an image is used for a start.
    fn note_use(&self, id: &ImageId);
}

/// An open copy of an image.
#[derive(Debug)]
pub struct FasterCopy {
    /// The copy; or what keeps it there, if it is in parts. It stays open as long as it is used.
    pub file: File,
    /// Its parts, if it is in parts.
    pub parts: Option<CopyParts>,
    /// Its path.
    pub path: PathBuf,
    /// What the memory is called.
    pub tier: String,
}

/// Where the data of an image comes from that is read from a copy.
#[derive(Debug)]
struct OfStore {
    /// What the memory is called that the copy is on.
    tier: String,
    places: Places,
    id: ImageId,
    own: OnceLock<Option<Box<Image>>>,
    _kept: Option<File>,
}

impl CopyOf for OfStore {
    fn tier(&self) -> &str {
        &self.tier
    }

    fn own(&self) -> Option<&Image> {
        let open = || match catalog::open_image(&self.places, &self.id) {
            Ok(image) => Some(Box::new(image)),
            Err(error) => {
                let id = self.id.short();
                log::warn!("boot image {id}: the store's own file cannot be opened: {error}");
                None
            }
        };
        self.own.get_or_init(open).as_deref()
    }
}

/// Opens the fastest copy of an image that is whole where it is looked at; the data is verified
/// when it is read.
pub(super) fn open_fastest(
    places: &Places,
    faster: &dyn FasterCopies,
    id: &ImageId,
) -> Result<Option<Image>, StoreError> {
    // Of what the store no longer has, no copy is an image of the store.
    places.must_have(id)?;
    for copy in faster.open(id) {
        let FasterCopy {
            file,
            parts,
            path,
            tier,
        } = copy;
        let (opened, kept) = match parts {
            None => (Image::of_file(file, &path), None),
            Some(parts) => (catalog::open_copy(parts, &path, id), Some(file)),
        };
        let why = match opened {
            Ok(image) if image.info().id == *id => {
                return Ok(Some(image.with_store_behind(OfStore {
                    tier,
                    places: places.clone(),
                    id: *id,
                    own: OnceLock::new(),
                    _kept: kept,
                })));
            }
            Ok(_) => "it is another image".to_owned(),
            Err(error) => error.to_string(),
        };
        let (id, path) = (id.short(), path.display());
        log::warn!("boot image {id}: the copy on {tier} ({path}) cannot be used: {why}");
    }
    Ok(None)
}
