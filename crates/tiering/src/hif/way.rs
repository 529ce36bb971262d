//! Which way a hot file goes to fast memory: whole, or by the blocks that starts read.
//!
//! A whole copy is read by the kernel itself, without a page of ordinary memory; a copy of blocks is
//! smaller, and pushed into the page cache before anybody opens the file. The limits were measured
//! with the starts of 23 images of Debian packages (`docs/tiering.md`).

use std::fmt;

use super::RecordedFile;

/// Hundredths of a file that starts must read for it to go whole. From three quarters on, all whole files
/// together are 0.01 % of the images' bytes more than their blocks; from half on, 0.9 %.
const LEAST_SHARE: u64 = 75;
/// Bytes that a file must have. Of 3063 files that are read that much, eight are longer; an open of
/// a shorter one is a question to us for what is pushed into the page cache in microseconds.
const LEAST_BYTES: u64 = 256 << 10;

/// Whether the kernel can read the copy of a file in place of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// Yes: opens are requests.
    Asked,
    /// No: the source is served as a container's tree, without requests for opens.
    Unasked,
    /// It would not run the file from its copy.
    Program,
}

/// Which way a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeptAs {
    /// Whole, as a separate copy.
    Whole,
    /// What starts read of it, in the copy of its boot image.
    Blocks(Because),
}

/// Why a file is kept by blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    /// Opens are no requests.
    Unasked,
    /// It is a program.
    Program,
    /// Less than half of the starts read it.
    Seldom,
    /// It is short.
    Short,
    /// Starts read too little of it, or it is mostly zeros, which are not stored as blocks.
    Partly,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unasked => "opens unasked",
            Self::Program => "program",
            Self::Seldom => "seldom read",
            Self::Short => "short",
            Self::Partly => "read in part",
        })
    }
}

/// Decides how a hot file is stored, for a recording of `runs` starts in whose blocks zeros are left
/// out.
#[must_use]
pub const fn way_of(file: &RecordedFile, runs: u16, passing: Passing) -> KeptAs {
    let read = file.block_bytes.saturating_mul(100);
    if matches!(passing, Passing::Unasked) {
        KeptAs::Blocks(Because::Unasked)
    } else if file.file_bytes < LEAST_BYTES {
        KeptAs::Blocks(Because::Short)
    } else if read < file.file_bytes.saturating_mul(LEAST_SHARE) {
        KeptAs::Blocks(Because::Partly)
    } else if file.seen < runs.div_ceil(2) {
        KeptAs::Blocks(Because::Seldom)
    } else if matches!(passing, Passing::Program) {
        KeptAs::Blocks(Because::Program)
    } else {
        KeptAs::Whole
    }
}

#[cfg(test)]
mod tests {
    use blocks::FileId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(block_bytes: u64, file_bytes: u64, seen: u16) -> RecordedFile {
        RecordedFile {
            file: FileId(1),
            block_bytes,
            file_bytes,
            seen,
            bin: 0,
        }
    }

    #[test]
    fn what_is_long_and_mostly_read_goes_whole_and_all_else_by_blocks() {
        let way = |file| way_of(&file, 3, Passing::Asked);
        assert_eq!(way(file(MIB, MIB, 2)), KeptAs::Whole);
        assert_eq!(way(file(3 * MIB, 4 * MIB, 3)), KeptAs::Whole);
        let blocks = [
            (file(3 * MIB - 1, 4 * MIB, 3), Because::Partly),
            (file(MIB, MIB, 1), Because::Seldom),
            (file(LEAST_BYTES - 1, LEAST_BYTES - 1, 3), Because::Short),
            (file(0, 0, 3), Because::Short),
            (file(0, u64::MAX, 3), Because::Partly),
        ];
        for (file, because) in blocks {
            assert_eq!(way(file), KeptAs::Blocks(because), "{file:?}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_pass_through_goes_by_blocks() {
        let all = file(MIB, MIB, 1);
        for (passing, because) in [
            (Passing::Unasked, Because::Unasked),
            (Passing::Program, Because::Program),
        ] {
            assert_eq!(way_of(&all, 1, passing), KeptAs::Blocks(because));
        }
    }
}
