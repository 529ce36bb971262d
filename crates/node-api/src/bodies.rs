//! The bodies of requests and responses of the node's API, and how long each request may take.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::boot_choice::BootChoice;
use host::run_dir::RunDir;

/// Returns where the node listens.
#[must_use]
pub fn socket(run_dir: &RunDir) -> PathBuf {
    run_dir.path().join("node.sock")
}

/// The body of a prewarm.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrewarmBody {
    /// The greatest number of bytes that is pushed.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
}

/// The body of a swap.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootBody {
    /// Which boot image to serve from.
    pub boot: BootChoice,
}

/// The body of a resize.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    /// The new size of a device in bytes.
    pub size: u64,
}

/// The body of an upgrade.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeBody {
    /// The program that serves from now on; an absolute path.
    pub program: PathBuf,
}

/// The body of every error response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorText,
}

/// An error, for programs and for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorText {
    /// One of the codes in docs/api.md.
    pub code: String,
    /// A sentence; its wording may change.
    pub message: String,
}

/// How long a request may take, and how many of its kind run at a time. Each kind has its own
/// threads, so that queries are answered while changes wait for a slow disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Returns what is known: status, metrics.
    Look,
    /// Mounts, unmounts, starts processes.
    Change,
    /// Reads a whole boot image from a disk that may be busy.
    Load,
}

impl Pace {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Look, Self::Change, Self::Load];

    /// Returns the deadline of a response. After it the client gets a timeout error; the operation
    /// continues.
    #[must_use]
    pub const fn deadline(self) -> Duration {
        match self {
            Self::Look => Duration::from_secs(10),
            Self::Change => Duration::from_secs(120),
            Self::Load => Duration::from_secs(600),
        }
    }

    /// Returns how many requests of this kind run at a time; more wait.
    pub const fn callers(self) -> usize {
        match self {
            Self::Look => 4,
            Self::Change => 8,
            Self::Load => 4,
        }
    }

    /// Returns how many requests of all kinds run at a time.
    pub fn all_callers() -> usize {
        Self::ALL.into_iter().map(Self::callers).sum()
    }
}
