//! The file system in an exported file, mounted.
//!
//! An EROFS is mounted of the file itself. An ext4, which overlaybd's convertor makes, needs a loop device, and can be
//! written to if the file can.

mod bound;
mod check;

use std::fs::File;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rawio::loop_device::LoopDevice;

use crate::ImageError;
use crate::error::file;

/// Where the superblocks of both kinds begin, and their magic numbers in the file.
const EROFS_MAGIC: (u64, [u8; 4]) = (1024, 0xe0f5_e1e2_u32.to_le_bytes());
const EXT4_MAGIC: (u64, [u8; 2]) = (1024 + 56, 0xef53_u16.to_le_bytes());

/// A file system that can be mounted of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// EROFS, without a loop device.
    Erofs,
    /// ext4 and its predecessors, with one.
    Ext4,
}

impl FileSystemKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Erofs, Self::Ext4];

    /// Returns the kernel's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Ext4 => "ext4",
        }
    }

    /// Returns the kind of the file system in a file; EROFS if there is none that is known, so that the kernel
    /// refuses it.
    fn of(image: &File) -> std::io::Result<Self> {
        let mut magic = [0; EROFS_MAGIC.1.len()];
        image.read_exact_at(&mut magic, EROFS_MAGIC.0)?;
        if magic == EROFS_MAGIC.1 {
            return Ok(Self::Erofs);
        }
        let mut magic = [0; EXT4_MAGIC.1.len()];
        image.read_exact_at(&mut magic, EXT4_MAGIC.0)?;
        Ok(match magic == EXT4_MAGIC.1 {
            true => Self::Ext4,
            false => Self::Erofs,
        })
    }
}

/// Whether files of a mounted file system can be more than files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// Set-user-id bits and device files have no effect.
    #[default]
    None,
    /// They have: for the root of a container, which no other user of the machine gets to.
    Honoured,
}

/// A mounted file system, unmounted when this is dropped.
#[derive(Debug)]
pub struct MountedImage {
    dir: PathBuf,
}

impl MountedImage {
    /// Mounts the file system in a file, to read only; device files and set-user-id bits in it have no effect.
    ///
    /// # Errors
    /// If the kernel refuses: without root, before Linux 6.12, without loop devices, or if there is no EROFS and no
    /// ext4 in the file.
    pub fn mount(image: &Path, at: &Path) -> Result<Self, ImageError> {
        // What is unmounted later is this one, wherever links in the path lead by then.
        let dir = at.canonicalize();
        let dir = dir.map_err(file("looking for the mount point", at))?;
        let opened = File::open(image).map_err(file("opening", image))?;
        let kind = FileSystemKind::of(&opened).map_err(file("reading", image))?;
        let (device, options) = match kind {
            FileSystemKind::Erofs => (None, None),
            FileSystemKind::Ext4 => {
                let device = LoopDevice::of(&opened);
                let device = device.map_err(file("making a loop device of", image))?;
                // What is shared with others is not to be repaired by the kernel.
                (Some(device), Some("noload"))
            }
        };
        let source = device.as_ref().map_or(image, LoopDevice::path);
        // Containers, which have it below an overlay, have their own flags.
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(source), &dir, Some(kind.name()), flags, options)
            .map_err(|error| file("mounting the file system of the image on", at)(error.into()))?;
        Ok(Self { dir })
    }

    /// Mounts the ext4 in a file, to be written to. One that was not unmounted, because the machine lost its power, is
    /// checked before (`e2fsck -p`). What is deleted in it is discarded.
    ///
    /// # Errors
    /// If there is no ext4 in the file, it is damaged, or the kernel refuses: without root, or without loop devices.
    pub fn mount_writable(image: &Path, at: &Path, power: Power) -> Result<Self, ImageError> {
        let dir = at.canonicalize();
        let dir = dir.map_err(file("looking for the mount point", at))?;
        let device = device_of(image, LoopDevice::writable)?;
        let flags = match power {
            Power::None => MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            Power::Honoured => MsFlags::empty(),
        };
        mount(
            Some(device.path()),
            &dir,
            Some(FileSystemKind::Ext4.name()),
            flags,
            Some("discard"),
        )
        .map_err(|error| file("mounting the file system of the image on", at)(error.into()))?;
        Ok(Self { dir })
    }

    /// Bounds an ext4 that can be written to: it gives away no more than so many bytes of the space that is free now, and what
    /// is deleted from now on. Then programs that write more hear that there is no space. It ends when it is unmounted.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn bound(&self, bytes: u64) -> Result<(), ImageError> {
        bound::bound(&self.dir, bytes).map_err(file("bounding the file system on", &self.dir))
    }

    /// Leaves it mounted.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

/// A block device of an exported file with an ext4, for somebody who mounts it later.
#[derive(Clone, Debug)]
pub struct FileDevice {
    path: PathBuf,
}

impl FileDevice {
    /// Makes it, or finds it by its name. A file system that was not unmounted is checked before, as by
    /// [`MountedImage::mount_writable`]. One of that name that is of a file which is gone is freed.
    ///
    /// # Errors
    /// As there.
    pub fn attach(image: &Path, name: &str) -> Result<Self, ImageError> {
        let opened = File::open(image).map_err(file("opening", image))?;
        for device in named(name, image)? {
            if !device.is_of(&opened) {
                free(device, image)?;
            }
        }
        let device = device_of(image, |file| LoopDevice::lasting(file, name))?;
        let path = device.path().to_owned();
        Ok(Self { path })
    }

    /// Finds the one of a file, if there is one.
    ///
    /// # Errors
    /// If it is not known which devices there are.
    pub fn found(image: &Path) -> Result<Option<Self>, ImageError> {
        let found = find(image)?.map(|device| Self {
            path: device.path().to_owned(),
        });
        Ok(found)
    }

    /// Returns whether it is mounted, in whatever mount namespace, or somebody else has it for himself.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn is_in_use(&self) -> Result<bool, ImageError> {
        let mut alone = File::options();
        let alone = alone.read(true).custom_flags(OFlag::O_EXCL.bits());
        match alone.open(&self.path) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Ok(true),
            Err(error) => Err(file("opening", &self.path)(error)),
        }
    }

    /// Frees those with a name, of a file that may be gone: as soon as nobody has them open or mounted any more.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach(image: &Path, name: &str) -> Result<(), ImageError> {
        let mut named = named(name, image)?.into_iter();
        named.try_for_each(|device| free(device, image))
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn named(name: &str, image: &Path) -> Result<Vec<LoopDevice>, ImageError> {
    LoopDevice::named(name, image).map_err(file("looking for loop devices of", image))
}

fn free(device: LoopDevice, image: &Path) -> Result<(), ImageError> {
    device
        .free()
        .map_err(file("freeing the loop device of", image))
}

fn find(image: &Path) -> Result<Option<LoopDevice>, ImageError> {
    let opened = File::open(image).map_err(file("opening", image))?;
    LoopDevice::found(&opened, image).map_err(file("looking for loop devices of", image))
}

/// Returns the block device of a file with an ext4 that can be written to.
fn device_of(
    image: &Path,
    make: impl FnOnce(&File) -> std::io::Result<LoopDevice>,
) -> Result<LoopDevice, ImageError> {
    let opened = File::options().read(true).write(true).open(image);
    let opened = opened.map_err(file("opening", image))?;
    let kind = FileSystemKind::of(&opened).map_err(file("reading", image))?;
    if kind != FileSystemKind::Ext4 {
        return Err(ImageError::NotWritable(image.to_owned()));
    }
    // One that is there may have the file system mounted elsewhere. A second one would have a cache of its own.
    let found =
        LoopDevice::found(&opened, image).map_err(file("looking for loop devices of", image))?;
    if let Some(device) = found {
        return Ok(device);
    }
    let device = make(&opened).map_err(file("making a loop device of", image))?;
    if let Err(error) = check::check_if_needed(device.device(), device.path()) {
        if let Err(error) = device.free() {
            log::warn!("a loop device of {} stays: {error}", image.display());
        }
        return Err(error);
    }
    Ok(device)
}

impl Drop for MountedImage {
    fn drop(&mut self) {
        // Who has files open there keeps them until the export is gone.
        if let Err(error) = umount2(&self.dir, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            log::warn!("cannot unmount {}: {error}", self.dir.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_by_its_magic_number() {
        let image = tempfile::tempfile().unwrap();
        image.set_len(4096).unwrap();
        assert_eq!(FileSystemKind::of(&image).unwrap(), FileSystemKind::Erofs);
        image.write_all_at(&EXT4_MAGIC.1, EXT4_MAGIC.0).unwrap();
        assert_eq!(FileSystemKind::of(&image).unwrap(), FileSystemKind::Ext4);
        image.write_all_at(&EROFS_MAGIC.1, EROFS_MAGIC.0).unwrap();
        assert_eq!(FileSystemKind::of(&image).unwrap(), FileSystemKind::Erofs);
        image.set_len(100).unwrap();
        FileSystemKind::of(&image).unwrap_err();
    }
}
