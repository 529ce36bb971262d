//! What the node tells of itself and of its mounts. These are the bodies of the API's answers:
//! docs/api.md describes each field.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::MountStatus;

/// The node service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeView {
    /// The program's version.
    pub(crate) version: String,
    /// Its process.
    pub(crate) pid: u32,
    /// Seconds since this process started.
    pub(crate) uptime_seconds: u64,
    /// Whether it takes new mounts.
    pub(crate) draining: bool,
    /// Mounts that it owns.
    pub(crate) mounts: u64,
    /// Workers that died and were replaced since this process started, upgrades not counted.
    pub(crate) worker_restarts: u64,
    /// The processes that serve them.
    pub(crate) workers: Vec<WorkerView>,
    /// What holds its descriptors while it is restarted: `systemd` or `keeper`.
    pub(crate) keeper: String,
    /// Records that could not be read when it started, and were left out.
    #[serde(default)]
    pub(crate) damaged: Vec<PathBuf>,
    /// The tiers that it moves boot images between, the fastest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tiers: Vec<TierView>,
}

/// One worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerView {
    /// Its process.
    pub(crate) pid: u32,
    /// Mounts that it serves.
    pub(crate) mounts: u64,
    /// The program it runs is the node's own, not one from before an upgrade.
    pub(crate) current: bool,
}

/// One mount of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountView {
    /// What `yolofs status` shows of any mount; `state` is `starting`, `serving`, `leaving` (it
    /// is unmounted and still has users), `restarting` (its worker died) or `failed`.
    #[serde(flatten)]
    pub(crate) status: MountStatus,
    /// How often its worker was replaced, upgrades not counted.
    pub(crate) restarts: u64,
    /// Milliseconds from the death of the last worker until its successor served.
    pub(crate) last_gap_ms: Option<u64>,
    /// Why it failed, if it did.
    pub(crate) error: Option<String>,
    /// Whether boots that drift are learned from.
    pub(crate) auto: bool,
    /// What the mount table shows as its source, if not the source's path.
    #[serde(default)]
    pub(crate) label: Option<String>,
}

/// What a drain did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Drained {
    /// Mounts that were unmounted.
    pub(crate) unmounted: u64,
    /// Mounts that are unmounted and still have users, who are served until they let go.
    pub(crate) in_use: u64,
}

/// What an upgrade did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Upgraded {
    /// The program that serves from now on.
    pub(crate) program: PathBuf,
    /// Workers that were replaced.
    pub(crate) workers: u64,
    /// The longest time, in milliseconds, for which a mount had no worker.
    pub(crate) longest_gap_ms: u64,
}

/// A tier of the node at one moment, and what was moved since the node started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TierView {
    /// What it is called.
    pub(crate) name: String,
    /// Why it cannot be used, if it cannot.
    pub(crate) away: Option<String>,
    /// Bytes that objects may take.
    pub(crate) room_bytes: u64,
    /// Bytes that they do.
    pub(crate) used_bytes: u64,
    /// How many there are.
    pub(crate) objects: u64,
    /// Bytes that the node has brought there.
    pub(crate) moved_bytes: u64,
    /// Moves to it or from it that failed.
    pub(crate) failed_moves: u64,
}
