//! What the daemon of one mount is asked, and what it answers.

use serde::{Deserialize, Serialize};

use crate::status::MountStatus;
use host::control::Reply;

/// What a command may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub(crate) enum Request {
    /// How are things?
    Status,
    /// Bring the boot image into the mount's page cache, and answer when that is done.
    Prewarm {
        /// At most so many bytes.
        budget: Option<u64>,
    },
    /// Unmount and end.
    Unmount {
        /// Detach even if someone uses the mount; it is gone when the last user is.
        lazy: bool,
    },
}

/// What a daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(crate) enum Answer {
    /// To [`Request::Status`].
    Status(Box<MountStatus>),
    /// To [`Request::Prewarm`].
    Prewarmed(PrewarmSummary),
    /// To [`Request::Unmount`]: it is unmounted, and the daemon ends when nobody uses it.
    Unmounted {
        /// Whether somebody does, whom the kernel does not take for a user of the mount.
        #[serde(default)]
        in_use: bool,
    },
    /// It could not be done.
    Failed {
        /// Why, for people.
        why: String,
    },
}

impl Reply for Answer {
    fn failed(why: String) -> Self {
        Self::Failed { why }
    }
}

/// What a prewarm of a mount did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrewarmSummary {
    /// Look-ups, listings and links repeated.
    pub(crate) touches: u64,
    /// Bytes pushed into the page cache.
    pub(crate) injected_bytes: u64,
    /// Bytes of the boot image that could not be pushed: no longer valid, damaged, or the file
    /// was not there.
    pub(crate) skipped_bytes: u64,
    /// Milliseconds it took.
    pub(crate) took_ms: u64,
}
