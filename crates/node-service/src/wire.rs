//! What the node and its workers say to each other.
//!
//! A worker listens on `<run-dir>/workers/<pid>.sock`. Each connection carries one question and one
//! answer: a header (protocol, length), JSON, and beside the header of an adoption the descriptors
//! of the mount. Both sides give up when a deadline passes. A node and a worker of different
//! releases understand each other as long as the protocol's number is the same; otherwise they
//! say so in words.

#[cfg(test)]
mod tests;

use node_records::hello::HelloBytes;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use host::admission::peer_pid;
use host::framed::{receive, send};
use node_api::boot_choice::BootChoice;
use node_api::control::NodeError;
use node_api::device::{DeviceSpec, DeviceStatus};
use node_api::mount_daemon::PrewarmSummary;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;

/// What a worker writes to its standard output, once, when it listens.
pub(crate) const READY: &str = "ready";

/// What the node may ask.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(crate) enum WorkerRequest {
    /// Serve this mount from now on; its descriptors travel beside the question. Answered when it is served.
    Adopt(Box<Adoption>),
    /// How are the mounts? Answered from counters, at once.
    Status {
        /// Only this one; all if absent.
        #[serde(default)]
        id: Option<String>,
    },
    /// Bring the boot image of a mount into its page cache, and answer when that is done.
    Prewarm {
        /// The mount.
        id: String,
        /// At most so many bytes.
        budget_bytes: Option<u64>,
    },
    /// Serve a mount from another boot image from now on.
    Swap {
        /// The mount.
        id: String,
        /// From which.
        boot: BootChoice,
    },
    /// Write down what a mount was asked for since the last time this was asked, as a trace, into
    /// the file that travels beside the question.
    Heard {
        /// The mount.
        id: String,
    },
    /// The visible mount is gone: let go of the private one and of what is held in it, and serve
    /// those who remain.
    LetGo {
        /// The mount.
        id: String,
    },
    /// The session of a mount is over: answer when everything that was open for it is closed.
    Close {
        /// The mount.
        id: String,
    },
    /// Have the node connect to the block service from now on: it is asked over the socket that travels
    /// beside the question.
    Connections,
    /// Give the descriptors of a mount: the node has lost its own.
    Hand {
        /// The mount.
        id: String,
    },
    /// Serve this device from now on; the socket that clients connect to travels beside the question. Answered when
    /// it is served.
    Attach(Box<DeviceSpec>),
    /// End a device, and answer when what was in flight is done and durable.
    Detach {
        /// Its name.
        name: String,
    },
    /// Give the socket of a device: the node has lost its own.
    HandSocket {
        /// Its name.
        name: String,
    },
}

/// A mount that a worker shall serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adoption {
    /// Its name.
    pub id: String,
    /// What it is to be.
    pub spec: MountSpec,
    /// The FUSE handshake (FUSE_INIT) with the kernel.
    pub hello: HelloBytes,
}

/// What a worker answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(crate) enum WorkerResponse {
    /// To [`WorkerRequest::Adopt`]: it is served. What the kernel was told in the first talk, whether
    /// by this worker or an earlier one.
    Adopted {
        /// The whole answer.
        #[serde(with = "node_records::hex")]
        hello: Vec<u8>,
    },
    /// To [`WorkerRequest::Status`].
    Status(WorkerStatus),
    /// To [`WorkerRequest::Prewarm`].
    Prewarmed(PrewarmSummary),
    /// To [`WorkerRequest::Swap`], [`WorkerRequest::Heard`], [`WorkerRequest::LetGo`], [`WorkerRequest::Close`],
    /// [`WorkerRequest::Connections`] and [`WorkerRequest::Detach`].
    Done,
    /// To [`WorkerRequest::Hand`] and [`WorkerRequest::HandSocket`]: the descriptors travel beside the answer.
    Handed,
    /// To [`WorkerRequest::Attach`]: it is served.
    Attached(DeviceStatus),
    /// It was not done.
    Refused {
        /// Whose fault it is.
        fault: Fault,
        /// Why, for people.
        why: String,
    },
}

/// A worker, as it tells of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    /// The program's version.
    pub version: String,
    /// All mounts whose session is not over. `state` is `serving` or `leaving`.
    pub mounts: Vec<MountStatus>,
    /// All devices. A worker of an earlier release has none.
    #[serde(default)]
    pub devices: Vec<DeviceStatus>,
}

/// Why something was refused, as far as a program can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// There is no such mount here.
    Unknown,
    /// What was asked makes no sense.
    Invalid,
    /// It cannot be done as things stand.
    Conflict,
    /// Everything else.
    Failed,
}

impl Fault {
    /// Returns the node's error of this kind.
    #[must_use]
    pub(crate) fn error(self, why: String) -> NodeError {
        match self {
            Self::Unknown => NodeError::Unknown(why),
            Self::Invalid => NodeError::Invalid(why),
            Self::Conflict => NodeError::Conflict(why),
            Self::Failed => NodeError::Failed(anyhow::anyhow!(why)),
        }
    }
}

/// Asks the worker `pid`, which listens on `socket` and must answer within `patience`.
///
/// # Errors
/// If it is not there, or another process listens in its place, if it does not answer in time, or speaks another protocol. What it refuses is an
/// answer. Returns the descriptors that came beside the answer, too.
pub(crate) fn ask(
    (pid, socket): (u32, &Path),
    question: &WorkerRequest,
    beside: &[BorrowedFd<'_>],
    patience: Duration,
) -> anyhow::Result<(WorkerResponse, Vec<OwnedFd>)> {
    let deadline = Instant::now() + patience;
    let asked = || {
        let stream = UnixStream::connect(socket).context("connecting")?;
        if peer_pid(&stream) != Some(pid) {
            bail!("the process that listens there is not the worker {pid}");
        }
        send(&stream, question, beside, deadline)?;
        receive(&stream, deadline)
    };
    asked().with_context(|| format!("calling the worker at {}", socket.display()))
}
