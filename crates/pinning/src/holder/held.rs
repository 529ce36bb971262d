//! The pages of one file that are held.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use blocks::Version;
use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use rawio::lock::LockedPages;
use rawio::resident::is_only_copy;

use crate::pages::{PAGE, Pages};
use crate::profile::version_of;

/// So many pages are requested with one call: of more, the kernel may read the first ones only.
const REQUEST: u64 = 32;

/// The process that is charged with pages that are in memory already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// The process that read them.
    AsItIs,
    /// The cgroup of this process: they are read again, unless another process has them mapped.
    Anew,
}

/// A file that a path led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    version: Version,
}

impl Identity {
    /// Returns the one that `path` leads to now, if it is a regular file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        path.metadata().ok().as_ref().and_then(Self::of_file)
    }

    fn of_file(file: &Metadata) -> Option<Self> {
        file.is_file().then(|| Self {
            device: file.dev(),
            version: version_of(file),
        })
    }

    /// Returns whether it is another file, whatever is in it.
    pub(super) fn is_other_file(&self, other: &Self) -> bool {
        (self.device, self.version.inode) != (other.device, other.version.inode)
    }

    /// Returns whether it has the same content as another version, judged by size and time: a package that is
    /// installed again makes new inodes with the same times.
    pub(super) fn has_content_of(&self, other: &Version) -> bool {
        (self.version.size, self.version.mtime) == (other.size, other.mtime)
    }
}

/// A file with pages that are held. They are given back when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    /// The file that the path led to; `None` if not a regular file.
    identity: Option<Identity>,
    /// The pages that are wanted, whether the file has them or not.
    wanted: Pages,
    /// Bytes that the budget has no room for.
    pub(super) left_out: u64,
    /// Whether an error occurred.
    has_failed: bool,
    locked: Pages,
    locks: Vec<LockedPages>,
}

impl Held {
    /// Locks pages of the file that `path` leads to, of `room` bytes at most, and returns the errors.
    pub(super) fn lock(
        path: &Path,
        wanted: &Pages,
        room: u64,
        charge: Charge,
    ) -> (Self, Option<String>) {
        let mut held = Self {
            identity: None,
            wanted: wanted.clone(),
            left_out: 0,
            has_failed: false,
            locked: Pages::default(),
            locks: Vec::new(),
        };
        match held.try_lock(path, room, charge) {
            Ok(()) => (held, None),
            // It is the user's choice which packages there are.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (held, None),
            Err(error) => {
                held.has_failed = true;
                let file = path.display();
                (
                    held,
                    Some(format!("holding pages of {file}: {error}{}", hint(&error))),
                )
            }
        }
    }

    fn try_lock(&mut self, path: &Path, room: u64, charge: Charge) -> io::Result<()> {
        // A path that leads to a pipe or a terminal now must not hold us up.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits())
            .open(path)?;
        let about = file.metadata()?;
        self.identity = Identity::of_file(&about);
        if self.identity.is_none() || is_only_copy(&file)? {
            return Ok(()); // there is nothing to hold
        }
        let pages = self.wanted.within(about.len());
        let (fitting, rest) = split(&pages, room / PAGE);
        self.left_out = rest * PAGE;
        if charge == Charge::Anew {
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
        for range in &fitting {
            request(&file, range)?;
        }
        for range in fitting {
            let len =
                usize::try_from((range.end - range.start) * PAGE).map_err(io::Error::other)?;
            self.locks
                .push(LockedPages::lock(&file, range.start * PAGE, len)?);
            self.locked.insert(range);
        }
        Ok(())
    }

    /// Returns whether these pages are those that were wanted, of the file that the path leads to now.
    pub(super) fn is_of(&self, path: &Path, wanted: &Pages) -> bool {
        !self.has_failed && self.identity == Identity::of(path) && self.wanted == *wanted
    }

    /// Returns how many bytes of the file that `path` leads to now are wanted; 0 if not a regular file.
    pub(super) fn needed_bytes(path: &Path, wanted: &Pages) -> u64 {
        let size = Identity::of(path).map_or(0, |file| file.version.size);
        wanted.within(size).count() * PAGE
    }

    /// Returns how many bytes are held.
    pub(super) fn bytes(&self) -> u64 {
        self.locked.count() * PAGE
    }

    /// Returns how many bytes of these pages are held.
    pub(super) fn common_bytes(&self, pages: &Pages) -> u64 {
        let common = pages.ranges().flat_map(|range| self.locked.common(&range));
        common.map(|range| (range.end - range.start) * PAGE).sum()
    }
}

/// Returns what to try.
fn hint(error: &io::Error) -> &'static str {
    let is_full = [Errno::ENOMEM, Errno::EAGAIN].map(|errno| Some(errno as i32));
    match is_full.contains(&error.raw_os_error()) {
        true => ": raise RLIMIT_MEMLOCK, vm.max_map_count or the limit of the cgroup",
        false => "",
    }
}

/// Returns the first `room` pages, and how many there are beyond.
fn split(pages: &Pages, mut room: u64) -> (Vec<Range<u64>>, u64) {
    let (mut fitting, mut rest) = (Vec::new(), 0);
    for range in pages.ranges() {
        let taken = (range.end - range.start).min(room);
        room -= taken;
        rest += range.end - range.start - taken;
        if taken > 0 {
            fitting.push(range.start..range.start + taken);
        }
    }
    (fitting, rest)
}

/// Has the kernel read just these pages. A fault on them would read what is around them, too.
fn request(file: &File, pages: &Range<u64>) -> io::Result<()> {
    let mut at = pages.start;
    while at < pages.end {
        let count = REQUEST.min(pages.end - at);
        let offset = i64::try_from(at * PAGE).map_err(io::Error::other)?;
        let len = i64::try_from(count * PAGE).map_err(io::Error::other)?;
        posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
        at += count;
    }
    Ok(())
}
