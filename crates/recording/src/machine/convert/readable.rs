//! What `qemu-img` may read of an image whose author may be anybody, and who chose the files that it names.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_PATH};

/// Files of one directory that are looked at. An image of 2 TB in extents of 2 GB has a thousand.
const FILES_MAX: usize = 4096;

/// An image, and the files beside it that hold nothing which those who may read it may not: extents of a vmdk, parents.
#[derive(Debug)]
pub(super) struct Readable {
    image: Metadata,
    files: Vec<File>,
}

impl Readable {
    /// Finds them. No link is followed but one at the image's own name.
    pub(super) fn of(image: &Path) -> io::Result<Self> {
        let own = File::options()
            .read(true)
            .custom_flags(O_PATH)
            .open(image)?;
        let image_is = own.metadata()?;
        let mut files = vec![own];
        for entry in fs::read_dir(dir_of(image))?.take(FILES_MAX) {
            let opened = File::options()
                .read(true)
                .custom_flags(O_PATH | O_NOFOLLOW)
                .open(entry?.path());
            // One that is gone by now is no part of it.
            let Ok(file) = opened else { continue };
            if is_no_secret(&file.metadata()?, &image_is) {
                files.push(file);
            }
        }
        Ok(Self {
            image: image_is,
            files,
        })
    }

    /// Returns paths of these very files, whatever has their names by now, for this process.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(path_of).collect()
    }

    /// Returns what the image is.
    pub(super) const fn image(&self) -> &Metadata {
        &self.image
    }
}

/// Returns the path of an open file, for this process.
pub(super) fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the directory that a file is in.
pub(super) fn dir_of(file: &Path) -> &Path {
    match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Returns whether everybody may read a file who may read the image.
fn is_no_secret(file: &Metadata, image: &Metadata) -> bool {
    const READ: u32 = 0o444;
    file.is_file()
        && (file.uid(), file.gid()) == (image.uid(), image.gid())
        && image.mode() & READ & !file.mode() == 0
}
