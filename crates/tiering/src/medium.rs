//! The seam to what tiers and journals lie on: a flat directory of files.
//!
//! Each method is one step that a crash may come before or after; so tests can stop at any of
//! them. [`DirMedium`] is the real one; `testing` has one in memory that loses what was not made
//! durable.

mod dir;

use std::fmt;
use std::io;

pub use dir::DirMedium;

/// A flat directory of files, as durable as it is told to be.
///
/// What is written is durable after [`sync`](Self::sync), and names are after
/// [`sync_names`](Self::sync_names). A crash loses any part of the rest.
pub trait Medium: fmt::Debug + Send + Sync {
    /// Writes all of `bytes` at `offset` of a file, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot, or not all: a part may then be written.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads from `offset` of a file into `buf` and returns how many bytes: all of `buf`, or up
    /// to the end of the file.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be read.
    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Gives back the room that a part of a file takes, as far as the medium can: it reads as zeros
    /// then. The file keeps its length.
    ///
    /// # Errors
    /// If it cannot; if the medium never can, that is `Unsupported`.
    fn give_back(&self, name: &str, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the content of a file durable.
    ///
    /// # Errors
    /// If it cannot; then nothing is known about the content.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, which takes the place of a file that has it.
    ///
    /// # Errors
    /// If it cannot.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// If it cannot; if there is none, that is `NotFound`.
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
