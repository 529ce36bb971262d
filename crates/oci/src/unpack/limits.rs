//! The limits of a layer's resources, and their use.
//!
//! A tar of some KiB can require very much: a name of 4 KiB implies two thousand directories, and
//! compression shrinks a thousand such names to a few bytes. So all use of memory and
//! inodes is counted where it occurs, and not by the size of the input.

use super::TarError;

/// The limits of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Files, directories and links. Directories that no entry is about count, too.
    pub entries: u64,
    /// Directories that no entry is about.
    pub implied: u64,
    /// Bytes of its tar, uncompressed.
    pub bytes: u64,
    /// Bytes of names, of targets of links and of extended attributes.
    pub names: u64,
    /// Bytes of memory for what has to be remembered while it is read.
    pub memory: u64,
    /// Whether it may have device nodes; whiteouts do not count.
    pub devices: Devices,
}

/// Whether a layer may have device nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// They are made. Needs root.
    Made,
    /// A layer that has one is refused.
    Refused,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 2_000_000, // the largest images on the Hub have some hundred thousand
            implied: 65_536,    // builders that leave directories out do so for some hundred
            bytes: 64 << 30,
            names: 256 << 20,  // large images have 20 MiB
            memory: 512 << 20, // the trees of a million files
            devices: Devices::Made,
        }
    }
}

impl Limits {
    /// Returns the rest for the other layers of an image after one with these entries and bytes of
    /// files, and for which this much memory is still in use.
    #[must_use]
    pub const fn without(self, entries: u64, bytes: u64, memory: u64) -> Self {
        Self {
            entries: self.entries.saturating_sub(entries),
            bytes: self.bytes.saturating_sub(bytes),
            memory: self.memory.saturating_sub(memory),
            ..self
        }
    }
}

/// What a layer has taken so far.
#[derive(Debug)]
pub(super) struct Spent {
    limits: Limits,
    entries: u64,
    implied: u64,
    names: u64,
    memory: u64,
}

impl Spent {
    pub(super) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: 0,
            implied: 0,
            names: 0,
            memory: 0,
        }
    }

    /// Counts an entry of the tar.
    pub(super) fn entry(&mut self) -> Result<(), TarError> {
        let most = self.limits.entries;
        add(&mut self.entries, 1, most, "entries")
    }

    /// Counts a directory that no entry is about.
    pub(super) fn implied(&mut self) -> Result<(), TarError> {
        let most = self.limits.implied;
        add(&mut self.implied, 1, most, "directories without entries")?;
        self.entry()
    }

    /// Counts bytes of names, targets or attributes.
    pub(super) fn names(&mut self, bytes: usize) -> Result<(), TarError> {
        let most = self.limits.names;
        add(
            &mut self.names,
            bytes,
            most,
            "bytes of names and attributes",
        )
    }

    /// Counts bytes that stay in memory until the layer is done.
    pub(super) fn memory(&mut self, bytes: usize) -> Result<(), TarError> {
        let most = self.limits.memory;
        add(&mut self.memory, bytes, most, "to remember")
    }
}

fn add(spent: &mut u64, more: usize, most: u64, what: &'static str) -> Result<(), TarError> {
    *spent = spent.saturating_add(more as u64);
    match *spent > most {
        true => Err(TarError::Limit(what)),
        false => Ok(()),
    }
}
