//! What a mount tells of itself: `yolofs status` and the node's API show it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::nic_status::NicStatus;

/// One mount at one moment. Byte counts and request counts are since it was mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountStatus {
    /// Name in the run directory.
    pub(crate) id: String,
    /// Where it is mounted.
    pub(crate) mountpoint: PathBuf,
    /// What is mounted.
    pub(crate) source: PathBuf,
    /// `lower` or `disk`.
    pub(crate) mode: String,
    /// `serving`, or `dead` if its daemon is gone.
    pub(crate) state: String,
    /// The daemon, or the worker; `None` while there is none.
    pub(crate) pid: Option<u32>,
    /// What there is to say of the boot image, if one is in use.
    pub(crate) boot: Option<BootStatus>,
    /// What the daemon was asked and what it answered; absent if it is dead.
    pub(crate) served: Option<ServedStatus>,
    /// What there is to say of the block service, if one is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nic: Option<NicStatus>,
    /// What its owner should know: what the boot image has nothing of, and what is read past the
    /// mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// The boot image of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BootStatus {
    /// Its name.
    pub(crate) image: String,
    /// Its content id.
    pub(crate) content: String,
    /// What it was recorded from.
    #[serde(default)]
    pub(crate) source: String,
    /// Files that it has something of, and that are as they were recorded.
    #[serde(default)]
    pub(crate) files: u64,
    /// Blocks of 4 KiB that are still valid.
    pub(crate) blocks: u64,
    /// Blocks dropped because their file changed since the recording.
    pub(crate) stale_blocks: u64,
    /// Files dropped for that reason.
    pub(crate) stale_files: u64,
    /// Some of them, each with what changed.
    #[serde(default)]
    pub(crate) changed: Vec<String>,
    /// Names in the source that the recording does not know.
    #[serde(default)]
    pub(crate) names_added: u64,
    /// Names that the recording knows and the source no longer has.
    #[serde(default)]
    pub(crate) names_removed: u64,
    /// Reads that met damaged data and went to the source instead.
    pub(crate) damaged: u64,
    /// The tier that it is read from; absent if that is the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tier: Option<String>,
    /// Reads that the copy on that tier failed, and that went to the store instead.
    #[serde(default)]
    pub(crate) copy_failures: u64,
    /// Pages brought into the page cache.
    pub(crate) injected_pages: u64,
    /// Of these, pages that were asked for again because the kernel had dropped them.
    pub(crate) evicted_pages: u64,
    /// Blocks that were held back from the page cache, as a sample of what boots need (`--auto`).
    #[serde(default)]
    pub(crate) sampled_blocks: u64,
    /// Of these, blocks that were asked for.
    #[serde(default)]
    pub(crate) sampled_asked: u64,
    /// Bytes that were pushed and not needed, estimated from the sample; absent without one.
    #[serde(default)]
    pub(crate) wasted_bytes: Option<u64>,
    /// Where the prewarm stands: `off`, `running`, `done`, `cancelled` or `failed`.
    pub(crate) prewarm: String,
}

/// What a daemon did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ServedStatus {
    /// Runs of blocks answered from the boot image.
    pub(crate) hits: u64,
    /// Runs of blocks that were not in it.
    pub(crate) misses: u64,
    /// Bytes answered from the boot image.
    pub(crate) hit_bytes: u64,
    /// Bytes read from the source.
    pub(crate) fallthrough_bytes: u64,
    /// How far this boot went beyond the recording: fallthrough bytes in thousandths of the boot
    /// image's bytes. 0 is a boot like the recorded one; above 200 it is worth recording anew.
    pub(crate) divergence_permille: u64,
    /// The first read that the boot image had no answer for.
    #[serde(default)]
    pub(crate) first_miss: Option<FirstMiss>,
    /// Files that changed while they were mounted.
    pub(crate) diverted_files: u64,
    /// Times that a file was opened on its whole copy on a tier: reads of it are not seen here.
    #[serde(default)]
    pub(crate) copy_opens: u64,
    /// Times that such a copy could not be used, and the file was served as if there were none.
    #[serde(default)]
    pub(crate) copies_failed: u64,
    /// Questions that the source did not answer within the deadline.
    #[serde(default)]
    pub(crate) late_answers: u64,
    /// Threads that wait for such an answer still.
    #[serde(default)]
    pub(crate) hung_threads: u64,
    /// Requests of the kernel, by kind.
    pub(crate) requests: BTreeMap<String, u64>,
}

/// Where a boot left its recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstMiss {
    /// The file, relative to the source's root.
    pub(crate) path: String,
    /// From which byte on.
    pub(crate) offset: u64,
}
