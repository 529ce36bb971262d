//! The status of a mount: `yolofs status` and the node's API show it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::image::ImageStatus;
use crate::mount_state::{MountMode, MountState, PrewarmState};
use crate::nic_status::NicStatus;

/// One mount at one moment. Byte counts and request counts are since it was mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// Name in the run directory.
    pub id: String,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The source.
    pub source: PathBuf,
    /// The inode of the directory that is served, on its own file system; absent if its source is no directory of this
    /// machine, or nobody has told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_inode: Option<u64>,
    /// How it is served.
    pub mode: MountMode,
    /// In which state it is.
    pub state: MountState,
    /// The process id of the daemon or the worker; `None` while there is none.
    pub pid: Option<u32>,
    /// The status of the boot image, if one is in use.
    pub boot: Option<BootStatus>,
    /// Counters of requests; absent if the daemon is dead.
    pub served: Option<ServedStatus>,
    /// The status of the block service, if one is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<NicStatus>,
    /// The block image that is served, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageStatus>,
    /// Warnings: files that the boot image has nothing of, and files that are read past the
    /// mount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The boot image of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BootStatus {
    /// Its name.
    pub image: String,
    /// Its content id.
    pub content: String,
    /// The source that was recorded.
    #[serde(default)]
    pub source: String,
    /// Files that it has something of, and that are as they were recorded.
    #[serde(default)]
    pub files: u64,
    /// Blocks of 4 KiB that are still valid.
    pub blocks: u64,
    /// Blocks dropped because their file changed since the recording.
    pub stale_blocks: u64,
    /// Files dropped for that reason.
    pub stale_files: u64,
    /// Some of them, each with what changed.
    #[serde(default)]
    pub changed: Vec<String>,
    /// Names in the source that are not in the recording.
    #[serde(default)]
    pub names_added: u64,
    /// Names in the recording that the source no longer has.
    #[serde(default)]
    pub names_removed: u64,
    /// Reads that met damaged data and went to the source instead.
    pub damaged: u64,
    /// The tier that it is read from; absent if that is the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Reads that the copy on that tier failed, and that went to the store instead.
    #[serde(default)]
    pub copy_failures: u64,
    /// Pages brought into the page cache.
    pub injected_pages: u64,
    /// Of these, pages that were requested again because the kernel had dropped them.
    pub evicted_pages: u64,
    /// Blocks that were held back from the page cache, as a sample of what boots need (`--auto`).
    #[serde(default)]
    pub sampled_blocks: u64,
    /// Of these, blocks that were requested.
    #[serde(default)]
    pub sampled_asked: u64,
    /// Bytes that were pushed and not needed, estimated from the sample; absent without one.
    #[serde(default)]
    pub wasted_bytes: Option<u64>,
    /// The state of the prewarm.
    pub prewarm: PrewarmState,
}

/// Counters of the process that serves a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServedStatus {
    /// Runs of blocks answered from the boot image.
    pub hits: u64,
    /// Runs of blocks that were not in it.
    pub misses: u64,
    /// Bytes answered from the boot image.
    pub hit_bytes: u64,
    /// Bytes read from the source.
    pub fallthrough_bytes: u64,
    /// How far this boot went beyond the recording: fallthrough bytes in thousandths of the boot
    /// image's bytes. 0 is a boot like the recorded one; above 200 it is worth recording anew.
    pub divergence_permille: u64,
    /// The first read that the boot image could not serve.
    #[serde(default)]
    pub first_miss: Option<FirstMiss>,
    /// Files that changed while they were mounted.
    pub diverted_files: u64,
    /// Times that a file was opened on its whole copy on a tier: reads of it are not seen here.
    #[serde(default)]
    pub copy_opens: u64,
    /// How often such a copy could not be used, and the file was served without it.
    #[serde(default)]
    pub copies_failed: u64,
    /// Requests that the source did not answer within the deadline.
    #[serde(default)]
    pub late_answers: u64,
    /// Threads that still wait for such a request.
    #[serde(default)]
    pub hung_threads: u64,
    /// Requests that wait for the source now.
    #[serde(default)]
    pub in_hand: u64,
    /// Requests of the kernel, by kind.
    pub requests: BTreeMap<String, u64>,
}

/// The first read that was not in the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstMiss {
    /// The file, relative to the source's root.
    pub path: String,
    /// Byte offset in the file.
    pub offset: u64,
}
