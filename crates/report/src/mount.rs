//! The data of a mount that uses a boot image.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A mount's hits and misses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountReport {
    /// The source.
    pub source: String,
    /// The mount point.
    pub mountpoint: String,
    /// `serving`, or another state.
    pub state: String,
    /// The name of the boot image in use.
    pub boot_image: Option<String>,
    /// The state of the prewarm: `off`, `running`, `done`, `cancelled` or `failed`.
    pub prewarm: String,
    /// Runs of blocks answered from the boot image.
    pub hits: u64,
    /// Bytes of these.
    pub hit_bytes: u64,
    /// Runs of blocks that the boot image did not have.
    pub misses: u64,
    /// Bytes read from the source instead.
    pub fallthrough_bytes: u64,
    /// Fallthrough in thousandths of the boot image's bytes.
    pub divergence_permille: u64,
    /// Files that changed since the recording: not served from the boot image.
    pub stale_files: u64,
    /// Bytes of the boot image that this costs.
    pub stale_bytes: u64,
    /// Files that changed while they were mounted.
    pub diverted_files: u64,
    /// Reads that met damaged data.
    pub damaged_reads: u64,
    /// Pages that were pushed into the page cache.
    pub injected_pages: u64,
    /// Of these, pages that were requested again because the kernel had evicted them.
    pub evicted_pages: u64,
    /// Requests of the kernel, by kind.
    pub requests: BTreeMap<String, u64>,
}
