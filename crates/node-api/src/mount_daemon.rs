//! Requests to the daemon of one mount, and its responses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mount_state::{MountMode, MountState};
use crate::status::MountStatus;
use host::control::{Reply, call};
use host::run_dir::{MountRecord, RunDir};

/// A daemon answers from counters; one that takes longer is stuck, and is shown as such.
const DEADLINE: Duration = Duration::from_secs(2);

/// A request of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum Request {
    /// Returns the status.
    Status,
    /// Loads the boot image into the mount's page cache, and responds when that is done.
    Prewarm {
        /// The greatest number of bytes.
        budget: Option<u64>,
    },
    /// Unmounts, and ends the daemon.
    Unmount {
        /// Whether to detach a mount that is in use; it ends with its last user.
        lazy: bool,
    },
}

/// A response of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Response {
    /// To [`Request::Status`].
    Status(Box<MountStatus>),
    /// To [`Request::Prewarm`].
    Prewarmed(PrewarmSummary),
    /// To [`Request::Unmount`]: it is unmounted; the daemon ends with the last user.
    Unmounted {
        /// Whether the mount still has users that the kernel does not count as such.
        #[serde(default)]
        in_use: bool,
    },
    /// The request failed.
    Failed {
        /// The reason, for people.
        why: String,
    },
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed { why }
    }
}

/// What a prewarm of a mount did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmSummary {
    /// Look-ups, listings and links repeated.
    pub touches: u64,
    /// Bytes pushed into the page cache.
    pub injected_bytes: u64,
    /// Bytes of the boot image that could not be pushed: stale, damaged, or of a file that is
    /// missing.
    pub skipped_bytes: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
}

/// Requests the status of a mount from its daemon. One that does not respond is shown as such.
#[must_use]
pub fn ask_status(run_dir: &RunDir, record: &MountRecord) -> MountStatus {
    let state = if record.is_alive() {
        match call(&run_dir.socket(&record.id), &Request::Status, DEADLINE) {
            Ok(Response::Status(status)) => return *status,
            Ok(Response::Failed { why }) => not_answering(record, &why),
            Ok(other) => not_answering(record, &format!("it answered {other:?}")),
            Err(error) => not_answering(record, &format!("{error:#}")),
        }
    } else {
        MountState::Dead
    };
    MountStatus {
        id: record.id.clone(),
        mountpoint: record.mountpoint.clone(),
        source: record.source.clone(),
        source_inode: None,
        mode: MountMode::Unknown,
        state,
        pid: Some(record.pid),
        boot: None,
        served: None,
        nic: None,
        image: None,
        warnings: Vec::new(),
    }
}

fn not_answering(record: &MountRecord, why: &str) -> MountState {
    let mountpoint = record.mountpoint.display();
    log::warn!("asking the daemon of {mountpoint} for its status: {why}");
    MountState::NotAnswering
}
