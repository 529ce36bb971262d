//! Whether the kernel reads ahead of what is read of an open file.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

/// What the kernel brings into the page cache besides the bytes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readahead {
    /// What it expects to be read next.
    Usual,
    /// Nothing.
    Off,
}

/// The readahead of one open file. It advises the kernel when the readahead changes, and not before each read.
#[derive(Debug, Default)]
pub struct FileReadahead {
    is_off: AtomicBool,
}

impl FileReadahead {
    /// Sets the readahead of `file`, for which no other `FileReadahead` may be used. If the kernel refuses the advice,
    /// it reads ahead as before.
    pub fn set(&self, file: impl AsFd, readahead: Readahead) {
        let is_off = readahead == Readahead::Off;
        if self.is_off.swap(is_off, Relaxed) == is_off {
            return;
        }
        let advice = match readahead {
            Readahead::Usual => PosixFadviseAdvice::POSIX_FADV_NORMAL,
            Readahead::Off => PosixFadviseAdvice::POSIX_FADV_RANDOM,
        };
        posix_fadvise(file, 0, 0, advice).unwrap_or_default();
    }
}
