//! The interface to the storage of tiers and journals: a flat directory of files.
//!
//! Each method is one step that a crash may come before or after; so tests can stop at any of
//! them. [`DirMedium`] is the real one; `testing` has one in memory that loses what was not
//! synced.

mod dir;
mod open;

use std::fmt;
use std::io;

pub use dir::DirMedium;
pub use open::open_regular;

/// A flat directory of files with explicit durability.
///
/// Data is durable after [`sync`](Self::sync), and names are after
/// [`sync_names`](Self::sync_names). A crash loses any part of the rest.
pub trait Medium: fmt::Debug + Send + Sync {
    /// Writes all of `bytes` at `offset` of a file, which is created if missing.
    ///
    /// # Errors
    /// If writing fails, or is partial: a part may then be written.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads from `offset` of a file into `buf` and returns how many bytes: all of `buf`, or up
    /// to the end of the file.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be read.
    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Deallocates a range of a file, as far as the medium can: it reads as zeros
    /// then. The length of the file stays.
    ///
    /// # Errors
    /// If that fails; `Unsupported` if the medium never can.
    fn give_back(&self, name: &str, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the content of a file durable.
    ///
    /// # Errors
    /// If it cannot; then nothing is known about the content.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file, and replaces one that has the new name.
    ///
    /// # Errors
    /// If it fails.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// If it fails; `NotFound` if there is none.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable, as they are now.
    ///
    /// # Errors
    /// If it cannot; then nothing is known about the names that changed.
    fn sync_names(&self) -> io::Result<()>;

    /// Returns names and lengths of all files.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
}
