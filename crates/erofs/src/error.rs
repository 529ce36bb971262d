//! What the format cannot have, and its block.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// A tree that cannot be written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErofsError {
    /// An extended attribute is too long for the format.
    #[error("the extended attribute {name} is too long for EROFS")]
    Xattr {
        /// The name.
        name: String,
    },
    /// The file system would be larger than block numbers go.
    #[error("the file system would have more than 2^32 blocks of 4 KiB")]
    TooLarge,
}
