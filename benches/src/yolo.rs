//! The evaluation of the YOLO paper, with light guests: many machines at once, and one machine beside noisy neighbours,
//! natively, from yolofs, and from yolofs with pinned pages, from a disk like a hard disk and one like an SSD.

pub mod figures;
mod guest;
mod neighbours;
mod pins;
mod site;
pub mod snapshot;

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use site::Site;

/// How the disk is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Disk {
    /// As many read requests a second as a hard disk with some luck: 150.
    Hdd,
    /// As many as a small SSD or a volume in a cloud: 2000.
    Ssd,
}

impl Disk {
    /// Read requests a second.
    #[must_use]
    pub const fn iops(self) -> u32 {
        match self {
            Self::Hdd => 150,
            Self::Ssd => 2000,
        }
    }
}

/// How QEMU uses the host's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// It reads and writes through the page cache.
    Writeback,
    /// It reads through the page cache, and a write is over when it is on the disk.
    Writethrough,
    /// It goes around the page cache (O_DIRECT).
    None,
}

/// What a machine's disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Images {
    /// All machines have overlays over one image.
    Shared,
    /// Each has a full clone.
    Clones,
}

/// From where the machines boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The disk, with empty caches.
    Native,
    /// A mount that was prewarmed; the host's own files are cold.
    Yolofs,
    /// A mount whose pages are locked in memory, and what QEMU touches of the host's files pinned.
    Pinned,
    /// The disk, with everything in the page cache.
    Warm,
}

/// Machines that boot at once, and what happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// How slow the disk is.
    pub disk: Disk,
    /// How QEMU reads.
    pub cache: Cache,
    /// What the machines have for disks.
    pub images: Images,
    /// How many machines.
    pub machines: usize,
    /// How many neighbours keep the disk busy, with one request in flight each.
    pub neighbours: u32,
    /// From where they boot.
    pub mode: Mode,
}

/// What was measured of a cell.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which.
    pub cell: Cell,
    /// Milliseconds until all machines were ready.
    pub ready_ms: f64,
    /// Milliseconds that a machine waited for reads of its disk, on average over the machines.
    pub read_ms: f64,
    /// Read requests of the guests.
    pub guest_reads: u64,
    /// Read requests that reached the disk, without those of the neighbours.
    pub disk_reads: u64,
    /// Bytes they asked for.
    pub disk_bytes: u64,
    /// Milliseconds of mounting and prewarming before.
    pub prepare_ms: f64,
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hdd => "HDD-like",
            Self::Ssd => "SSD-like",
        })
    }
}

impl Cache {
    /// Returns the name that QEMU has for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::Writethrough => "writethrough",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "one base",
            Self::Clones => "clones",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Yolofs => "yolofs",
            Self::Pinned => "yolofs + pinning",
            Self::Warm => "native, warm",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            disk,
            images,
            machines,
            neighbours,
            mode,
            ..
        } = self;
        let cache = self.cache.as_str();
        write!(
            f,
            "{disk}, {cache}, {machines} of {images}, {neighbours} neighbours, {mode}"
        )
    }
}
