//! The writable layer of an image, and its lock.
//!
//! It is overlaybd's pair of files, with a journal of ours next to the data, or the directory of a
//! [`LiveImage`]. A lock on the data, or on the directory, is held as long as the layer is open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsmt::{
    Collector, CollectorOptions, DirFolder, FileStorage, Image, Layer, LiveImage, Stack, Upper,
    UpperFiles, UpperUsage,
};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::disk_file;
use crate::error::file;
use crate::{ImageError, UpperConfig};

/// A device with a writable layer, whose files no other process has open.
#[derive(Debug)]
pub(crate) struct OwnedUpper {
    /// Stops before the files are closed.
    collector: Option<Collector>,
    kept: Kept,
    /// Given back when the files are closed.
    lock: Flock<File>,
}

#[derive(Debug)]
enum Kept {
    Pair(Image),
    Folder(Arc<LiveImage>),
}

impl OwnedUpper {
    /// Opens the writable layer over sealed ones; relative names are within `base`.
    pub(crate) fn open(
        config: &UpperConfig,
        base: &Path,
        lowers: Vec<Arc<Layer>>,
    ) -> Result<Self, ImageError> {
        if config.dir.is_empty() {
            let (upper, lock) = open_pair(config, base)?;
            if config.limit > 0 {
                upper.set_limit(config.limit);
            }
            let image = Stack::of_shared(lowers).and_then(|stack| Image::open(stack, Some(upper)));
            let kept = Kept::Pair(image.map_err(ImageError::Stack)?);
            return Ok(Self {
                collector: None,
                kept,
                lock,
            });
        }
        let path = base.join(&config.dir);
        let lock = own(&path)?;
        let live = LiveImage::open(Arc::new(DirFolder::new(&path)), lowers);
        let live = live.map_err(upper_error("opening", &path))?;
        Ok(Self {
            collector: None,
            kept: Kept::Folder(Arc::new(live)),
            lock,
        })
    }

    /// Starts a thread that frees the space of overwritten data, if the layer supports it.
    pub(crate) fn collect_in_background(&mut self) -> Result<(), ImageError> {
        let Kept::Folder(live) = &self.kept else {
            return Ok(());
        };
        let report = |done: lsmt::Result<lsmt::Collected>| match done {
            Ok(collected) => log::debug!("garbage was collected: {collected:?}"),
            Err(error) => log::warn!("garbage cannot be collected: {error}"),
        };
        let started = Collector::start(Arc::clone(live), CollectorOptions::default(), report);
        self.collector = Some(started.map_err(upper_error("collecting garbage of", "."))?);
        Ok(())
    }

    /// Returns the live image with its lock, if it is one.
    pub(crate) fn into_live(self) -> Option<(Arc<LiveImage>, Flock<File>)> {
        match self.kept {
            Kept::Folder(live) => Some((live, self.lock)),
            Kept::Pair(_) => None,
        }
    }

    /// Returns how many sealed layers of its own it has, and its disk usage.
    pub(crate) fn usage(&self) -> (usize, UpperUsage) {
        let own = match &self.kept {
            Kept::Folder(live) => live.own_layers().unwrap_or(0),
            Kept::Pair(_) => 0,
        };
        let usage = self.image().upper().map(|upper| upper.usage());
        (own, usage.unwrap_or_default())
    }

    /// Makes the device larger, unless garbage is being collected.
    pub(crate) fn grow(&self, size: u64) -> lsmt::Result<()> {
        match &self.kept {
            Kept::Pair(image) => image.upper()?.grow(size),
            Kept::Folder(live) => live.grow(size),
        }
    }

    pub(crate) fn image(&self) -> &Image {
        match &self.kept {
            Kept::Pair(image) => image,
            Kept::Folder(live) => live.image(),
        }
    }
}

/// Opens a pair of files without the layers below.
pub(crate) fn open_pair(
    config: &UpperConfig,
    base: &Path,
) -> Result<(Upper, Flock<File>), ImageError> {
    let data = base.join(&config.data);
    let lock = own(&data)?;
    let upper = Upper::open(pair_files(&data, &base.join(&config.index))?);
    Ok((upper.map_err(upper_error("opening", &data))?, lock))
}

/// Opens the files of a pair; its journal, and nothing else, is made if it is not there.
fn pair_files(data: &Path, index: &Path) -> Result<UpperFiles, ImageError> {
    let open = |path: &Path, create: bool| -> Result<Arc<FileStorage>, ImageError> {
        let mut options = File::options();
        let opened = disk_file::open_with(path, options.read(true).write(true).create(create));
        let opened = opened.map_err(file("opening the writable layer", path))?;
        Ok(Arc::new(FileStorage::new(opened)))
    };
    Ok(UpperFiles {
        data: open(data, false)?,
        index: open(index, false)?,
        journal: Some(open(&journal_of(data), true)?),
    })
}

pub(crate) fn journal_of(data: &Path) -> PathBuf {
    let mut name = data.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

/// Locks the file or directory that represents a writable layer.
fn own(path: &Path) -> Result<Flock<File>, ImageError> {
    let opened = disk_file::open(path).map_err(file("opening the writable layer", path))?;
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EWOULDBLOCK)) => Err(ImageError::UpperInUse(path.to_owned())),
        Err((_, error)) => Err(file("locking", path)(error.into())),
    }
}

/// Adds the operation and the writable layer to an error.
pub(crate) fn upper_error(
    doing: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(lsmt::LsmtError) -> ImageError {
    let path = path.into();
    move |source| ImageError::Upper {
        doing,
        path,
        source,
    }
}
