//! Where an image lies when it is started, and what is said of starts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::image::Category;
use crate::rounds::median;

/// Where an image lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// All of it on the disk.
    Disk,
    /// All of it on NVM.
    Nvm,
    /// Each file that a start reads on NVM, whole, as a mount of ours passes it through; names and
    /// attributes come from a boot image.
    HotFiles,
    /// The same files on NVM, in a layer above the disk's: the paper's HIF as a union mount has it,
    /// which looks at both layers for each name.
    HotFilesOverlay,
    /// What `yolofs tier apply` puts on NVM for mounts that pass files through: the files that a start
    /// reads most of, whole, and the blocks of all others.
    Mixed,
    /// The blocks that a start reads on NVM, as a boot image: what it puts there for containers.
    HotBlocks,
}

impl Place {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 6] = [
        Self::Disk,
        Self::Nvm,
        Self::HotFiles,
        Self::HotFilesOverlay,
        Self::Mixed,
        Self::HotBlocks,
    ];
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Disk => "disk",
            Self::Nvm => "all on NVM",
            Self::HotFiles => "hot files",
            Self::HotFilesOverlay => "hot files, overlay",
            Self::Mixed => "mixed",
            Self::HotBlocks => "hot blocks",
        })
    }
}

/// One timed start.
#[derive(Clone, Debug, Serialize)]
pub struct Start {
    /// Which image.
    pub image: String,
    /// What it is for.
    pub category: Category,
    /// Where it lay.
    pub place: Place,
    /// Which round it was part of, from 1.
    pub round: u32,
    /// Milliseconds until it was ready.
    pub ready_ms: f64,
    /// Milliseconds of mounting and prewarming before.
    pub prepare_ms: f64,
    /// Read requests that reached the disk during the start.
    pub disk_reads: u64,
    /// Bytes they asked for.
    pub disk_bytes: u64,
    /// What a mount of ours was asked by the kernel during the start, by kind.
    pub requests: BTreeMap<String, u64>,
}

/// What an image takes on NVM, by the ways to place it there.
#[derive(Clone, Debug, Serialize)]
pub struct Footprint {
    /// Which image.
    pub image: String,
    /// What it is for.
    pub category: Category,
    /// Bytes of all its files.
    pub all: u64,
    /// Bytes of the files that a start reads, names and attributes of all files included.
    pub hot_files: u64,
    /// Bytes of the files that a start reads, without.
    pub hot_files_overlay: u64,
    /// Bytes that `yolofs tier apply` brought for a mount that passes files through.
    pub mixed: u64,
    /// Files of these that are whole.
    pub mixed_whole_files: u64,
    /// Bytes of the boot image, names and attributes of all files included.
    pub hot_blocks: u64,
}

/// Returns the middle time to ready of an image at a place.
pub(super) fn ready(starts: &[Start], image: &str, place: Place) -> Option<f64> {
    let of = |start: &&Start| start.image == image && start.place == place;
    let times: Vec<f64> = starts.iter().filter(of).map(|s| s.ready_ms).collect();
    median(&times)
}
