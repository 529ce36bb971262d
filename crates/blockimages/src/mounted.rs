//! The EROFS in an exported file, mounted without a loop device.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::ImageError;
use crate::error::file;

/// A mounted EROFS, unmounted when this is dropped.
#[derive(Debug)]
pub struct MountedErofs {
    dir: PathBuf,
}

impl MountedErofs {
    /// Mounts the EROFS in a file, to read only.
    ///
    /// # Errors
    /// If the kernel refuses: without root, before Linux 6.12, or if there is no EROFS in the file.
    pub fn mount(image: &Path, dir: &Path) -> Result<Self, ImageError> {
        let flags = MsFlags::MS_RDONLY;
        mount(Some(image), dir, Some("erofs"), flags, None::<&str>)
            .map_err(|error| file("mounting the EROFS of the image on", dir)(error.into()))?;
        Ok(Self { dir: dir.into() })
    }

    /// Leaves it mounted.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for MountedErofs {
    fn drop(&mut self) {
        // Who has files open there keeps them until the export is gone.
        if let Err(error) = umount2(&self.dir, MntFlags::MNT_DETACH) {
            log::warn!("cannot unmount {}: {error}", self.dir.display());
        }
    }
}
