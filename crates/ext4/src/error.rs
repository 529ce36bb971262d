//! What the format cannot have, and its block.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// A tree that cannot be written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ext4Error {
    /// The device is too small for a file system, or for what is in it.
    #[error("the device of {bytes} bytes is too small for the file system")]
    TooSmall {
        /// Its size.
        bytes: u64,
    },
    /// The device has more blocks than block numbers go.
    #[error("the device has more than 2^32 blocks of 4 KiB")]
    TooLarge,
    /// There are more files than inodes: there is one for each 16 KiB of the device.
    #[error(
        "there are {files} files, and a device of this size has room for {limit}: make it larger"
    )]
    TooManyFiles {
        /// How many there are.
        files: u64,
        /// How many there can be.
        limit: u64,
    },
    /// A file is longer than the extents of one inode go.
    #[error("a file of {bytes} bytes is too long")]
    FileTooLong {
        /// Its size.
        bytes: u64,
    },
    /// A file has too many names.
    #[error("a file has {links} names, and ext4 has room for 65000")]
    TooManyLinks {
        /// How many.
        links: u32,
    },
    /// Extended attributes do not fit, or are not what their name says.
    #[error("the extended attribute {name} cannot be stored: {why}")]
    Xattr {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
}
