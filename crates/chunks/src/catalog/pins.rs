//! Which sources are pinned: a file on the disk for each name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use blocks::ContentId;
use rawio::regular::{self, Links};

use super::{Catalog, CatalogError, RECORD_MAX, failed};

/// The directory of the pins.
pub(super) const DIR: &str = "pins";

impl Catalog {
    /// Returns the names of pinned sources.
    #[must_use]
    pub fn pins(&self) -> Vec<Vec<u8>> {
        self.state.lock().pins.iter().cloned().collect()
    }

    /// Returns whether the source `name` is pinned.
    #[must_use]
    pub fn is_pinned(&self, name: &[u8]) -> bool {
        self.state.lock().pins.contains(name)
    }

    /// Pins the source `name`, whatever its index is.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note_pin(&self, name: &[u8]) -> Result<(), CatalogError> {
        let _turn = self.write_lock.lock();
        if !self.is_pinned(name) {
            self.write(&self.pin_path(name), name)?;
            self.state.lock().pins.insert(name.to_vec());
        }
        Ok(())
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// If its file cannot be removed.
    pub fn forget_pin(&self, name: &[u8]) -> Result<(), CatalogError> {
        let _turn = self.write_lock.lock();
        if self.is_pinned(name) {
            let path = self.pin_path(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&path)(error));
                }
                _ => {}
            }
            self.state.lock().pins.remove(name);
        }
        Ok(())
    }

    fn pin_path(&self, name: &[u8]) -> PathBuf {
        self.dir.join(DIR).join(ContentId::of(name).to_string())
    }
}

/// Reads the pins. One whose content is damaged pins what its file is called after, if that is the name of a source.
pub(super) fn read(
    dir: &Path,
    names: &BTreeMap<Vec<u8>, ContentId>,
) -> Result<BTreeSet<Vec<u8>>, CatalogError> {
    let mut pins = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(failed(dir))? {
        let path = entry.map_err(failed(dir))?.path();
        let is_of = |name: &[u8]| path.ends_with(ContentId::of(name).to_string());
        let read = regular::read(&path, Links::Followed, RECORD_MAX).ok();
        match read.filter(|name| is_of(name)) {
            Some(name) => {
                pins.insert(name);
            }
            None => {
                log::warn!("{} is damaged: it should have a name", path.display());
                pins.extend(names.keys().find(|name| is_of(name)).cloned());
            }
        }
    }
    Ok(pins)
}
