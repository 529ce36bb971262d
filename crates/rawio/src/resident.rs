//! Which pages of a file the page cache has, page by page, so that what came later can be dropped.

#![expect(
    unsafe_code,
    reason = "mincore(2) is in no safe wrapper, and mapping a file is unsafe"
)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use memmap2::MmapOptions;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::dax::is_dax;

/// Bytes that are looked at with one call: what is noted of them is 64 KiB at most.
const STEP: u64 = 256 << 20;

/// So far behind its end, no page of a file is in memory, however large the pieces are that the kernel has it in.
const BEHIND: u64 = 1 << 30;

/// The pages of a part of a file that were in the page cache at some moment.
#[derive(Debug)]
pub struct Resident {
    page: u64,
    /// The number of the first page that was looked at.
    first: u64,
    /// A bit for each page.
    bits: Vec<u64>,
    pages: u64,
}

/// Returns whether the pages of a file are its only copy: in memory (tmpfs), or on a medium that is
/// mapped directly (DAX). There is nothing to drop then.
///
/// # Errors
/// If the file system does not respond.
pub fn is_only_copy(file: impl AsFd) -> io::Result<bool> {
    const RAMFS: nix::sys::statfs::FsType = nix::sys::statfs::FsType(0x8584_58f6);
    let kind = fstatfs(&file)?.filesystem_type();
    Ok(kind == TMPFS_MAGIC || kind == RAMFS || is_dax(file)? == Some(true))
}

impl Resident {
    /// Examines the pages of a range of a file. Nothing is read, and no page is touched.
    ///
    /// Without write access to the file, the kernel reports all pages as present.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn look(file: impl AsFd, bytes: Range<u64>) -> io::Result<Self> {
        let page = page_size();
        let first = bytes.start / page;
        let pages = match bytes.is_empty() {
            true => 0,
            false => bytes.end.div_ceil(page) - first,
        };
        let words = usize::try_from(pages.div_ceil(64)).map_err(io::Error::other)?;
        let mut resident = Self {
            page,
            first,
            bits: vec![0; words],
            pages,
        };
        let step = STEP / page;
        let mut at = 0;
        while at < pages {
            let count = step.min(pages - at);
            for (index, there) in look_once(&file, (first + at) * page, count * page)?
                .into_iter()
                .enumerate()
            {
                if there & 1 != 0 {
                    resident.set(at + index as u64);
                }
            }
            at += count;
        }
        Ok(resident)
    }

    /// Returns whether the kernel tells which pages of a file are there. It tells the owner, whoever may write to the file, and who
    /// has `CAP_FOWNER`; to others all pages are present.
    ///
    /// # Errors
    /// If the file cannot be mapped.
    pub fn is_told(file: impl AsFd) -> io::Result<bool> {
        let page = page_size();
        let len = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let at = len.next_multiple_of(page).saturating_add(BEHIND);
        // There is none of these, in truth.
        let told = look_once(&file, at, page)?;
        Ok(told.iter().all(|there| there & 1 == 0))
    }

    /// Returns how many pages were there.
    #[must_use]
    pub fn count(&self) -> u64 {
        let ones = self.bits.iter().map(|word| u64::from(word.count_ones()));
        ones.sum()
    }

    /// Returns whether every page was present.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.count() == self.pages
    }

    /// Returns the bytes of the pages that were there, as ranges that do not touch.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for page in (0..self.pages).filter(|page| self.has(*page)) {
            let start = (self.first + page) * self.page;
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end += self.page,
                None => ranges.push(start..start + self.page),
            }
        }
        ranges
    }

    /// Makes the kernel drop the pages that overlap `bytes`, were examined and were absent
    /// then. Those that are mapped, or dirty, stay.
    ///
    /// # Errors
    /// As `posix_fadvise(2)`.
    pub fn drop_others(&self, file: impl AsFd, bytes: Range<u64>) -> io::Result<()> {
        let start = (bytes.start / self.page).max(self.first) - self.first;
        let end = bytes.end.div_ceil(self.page).saturating_sub(self.first);
        let end = end.min(self.pages);
        let mut at = start;
        while at < end {
            let from = at;
            while at < end && !self.has(at) {
                at += 1;
            }
            if at > from {
                let offset = i64::try_from((self.first + from) * self.page);
                let len = i64::try_from((at - from) * self.page);
                let (offset, len) = (
                    offset.map_err(io::Error::other)?,
                    len.map_err(io::Error::other)?,
                );
                let forget = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                posix_fadvise(&file, offset, len, forget)?;
            }
            at += 1;
        }
        Ok(())
    }

    fn set(&mut self, index: u64) {
        if let Some(word) = self.bits.get_mut(place(index)) {
            *word |= 1 << (index % 64);
        }
    }

    fn has(&self, index: u64) -> bool {
        let word = self.bits.get(place(index));
        word.is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

fn place(index: u64) -> usize {
    usize::try_from(index / 64).unwrap_or(usize::MAX)
}

fn page_size() -> u64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    let size = size
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok());
    size.filter(|size| *size > 0).unwrap_or(4096)
}

/// Returns a byte for each page, whose lowest bit says whether it is there.
fn look_once(file: &impl AsFd, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    // SAFETY: a mapping is unsafe because the bytes behind a reference to it may change. None is made
    // here: only its address is used, and it is taken away at the end.
    let map = unsafe { options.map(file.as_fd().as_raw_fd()) }?;
    let page = usize::try_from(page_size()).map_err(io::Error::other)?;
    let mut pages = vec![0_u8; len.div_ceil(page)];
    // SAFETY: the mapping is `len` bytes long, begins at a page and lives through the call, and
    // `pages` has a byte for each of its pages, which is all that is written.
    let result = unsafe {
        libc::mincore(
            map.as_ptr().cast_mut().cast(),
            map.len(),
            pages.as_mut_ptr(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;

    const PAGE: u64 = 4096;

    /// On a disk: what is in memory only is never dropped.
    fn file(pages: u64) -> std::fs::File {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let len = usize::try_from(pages * PAGE).unwrap();
        file.write_all(&vec![7; len]).unwrap();
        file.sync_all().unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
        file
    }

    fn there(file: &std::fs::File, pages: u64) -> Vec<u64> {
        let all = Resident::look(file, 0..pages * PAGE).unwrap();
        (0..pages).filter(|page| all.has(*page)).collect()
    }

    #[test]
    fn what_came_since_is_dropped_and_what_was_there_stays() {
        let file = file(200);
        let read = |page: u64| file.read_exact_at(&mut [0; 4096], page * PAGE).unwrap();
        [3, 70, 71].into_iter().for_each(read);
        let before = Resident::look(&file, PAGE..150 * PAGE).unwrap();
        assert!(!before.is_all());
        let ranges = [3 * PAGE..4 * PAGE, 70 * PAGE..72 * PAGE];
        assert_eq!(before.ranges(), ranges);
        let more = [0, 2, 4, 72, 73, 149, 150];
        more.into_iter().for_each(read);
        assert_eq!(there(&file, 200), [0, 2, 3, 4, 70, 71, 72, 73, 149, 150]);
        before.drop_others(&file, 3 * PAGE..73 * PAGE).unwrap();
        assert_eq!(there(&file, 200), [0, 2, 3, 70, 71, 73, 149, 150]);
        before.drop_others(&file, 0..u64::MAX / 2).unwrap();
        assert_eq!(there(&file, 200), [0, 3, 70, 71, 150]);
    }

    /// Of a file of root, somebody else learns nothing.
    #[test]
    fn whom_the_kernel_does_not_tell_is_told_so() {
        let own = file(3);
        assert!(Resident::is_told(&own).unwrap());
        assert_eq!(there(&own, 3), [0; 0]);
        let other = std::thread::spawn(|| {
            // If this is root: of this thread alone, and its rights over files go with it.
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
            let file = std::fs::File::open("/bin/sh").unwrap();
            let all = Resident::look(&file, 0..file.metadata().unwrap().len()).unwrap();
            assert!(all.is_all());
            Resident::is_told(&file).unwrap()
        });
        assert!(!other.join().unwrap());
    }

    #[test]
    fn of_nothing_all_is_there() {
        let file = file(1);
        assert!(Resident::look(&file, 5..5).unwrap().is_all());
    }

    #[test]
    fn memory_is_the_only_copy_and_a_disk_is_not() {
        let memory = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(is_only_copy(&memory).unwrap());
        assert!(!is_only_copy(file(1)).unwrap());
    }
}
