//! The status of the node and of its mounts: the bodies of the API's responses.
//! docs/api.md describes each field.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::MountStatus;

/// The node service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// The program's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Seconds since this process started.
    pub uptime_seconds: u64,
    /// Whether it refuses new mounts.
    pub draining: bool,
    /// Mounts that it owns.
    pub mounts: u64,
    /// Devices that it owns.
    #[serde(default)]
    pub devices: u64,
    /// Workers that died and were replaced since this process started, upgrades not counted.
    pub worker_restarts: u64,
    /// The processes that serve them.
    pub workers: Vec<WorkerView>,
    /// What holds its descriptors while it is restarted: `systemd` or `keeper`.
    pub keeper: String,
    /// Records that could not be read when it started, and were skipped.
    #[serde(default)]
    pub damaged: Vec<PathBuf>,
    /// The tiers that it moves boot images between, the fastest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierView>,
}

/// One worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerView {
    /// Its process id.
    pub pid: u32,
    /// Mounts that it serves.
    pub mounts: u64,
    /// Devices that it serves.
    #[serde(default)]
    pub devices: u64,
    /// The program it runs is the node's own, not one from before an upgrade.
    pub current: bool,
}

/// One mount of the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountView {
    /// What `yolofs status` shows of any mount; `state` is `starting`, `serving`, `leaving` (it
    /// is unmounted and still has users), `restarting` (its worker died) or `failed`.
    #[serde(flatten)]
    pub status: MountStatus,
    /// How often its worker was replaced, upgrades not counted.
    pub restarts: u64,
    /// Milliseconds from the death of the last worker until its successor served.
    pub last_gap_ms: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// Whether boots that drift are learned from.
    pub auto: bool,
    /// What the mount table shows as its source, if not the source's path.
    #[serde(default)]
    pub label: Option<String>,
}

/// The result of a drain.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Drained {
    /// Mounts that were unmounted.
    pub unmounted: u64,
    /// Mounts that are unmounted and are still served to their users.
    pub in_use: u64,
    /// Devices that were detached.
    #[serde(default)]
    pub detached: u64,
}

/// The result of an upgrade.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upgraded {
    /// The program that serves from now on.
    pub program: PathBuf,
    /// Workers that were replaced.
    pub workers: u64,
    /// The longest time, in milliseconds, for which a mount had no worker.
    pub longest_gap_ms: u64,
}

/// A tier of the node at one moment, and what was moved since the node started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierView {
    /// Its name.
    pub name: String,
    /// Why it cannot be used, if it cannot.
    pub away: Option<String>,
    /// Capacity for objects, in bytes.
    pub room_bytes: u64,
    /// Bytes that objects use.
    pub used_bytes: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes that the node has brought there.
    pub moved_bytes: u64,
    /// Moves to it or from it that failed.
    pub failed_moves: u64,
}
