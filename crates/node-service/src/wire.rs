//! The protocol between the node and its workers.
//!
//! A worker listens on `<run-dir>/workers/<pid>.sock`. Each connection carries one request and one
//! response: a header (protocol, length), JSON, and, with an adoption, the descriptors of the mount.
//! Both sides give up after a deadline. A node and a worker of different releases understand each
//! other as long as the number of the protocol is the same; otherwise they return an error that says
//! so.

#[cfg(test)]
mod tests;

use node_records::hello::HelloBytes;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use blocks::DeviceInfo;
use serde::{Deserialize, Serialize};

use host::admission::peer_pid;
use host::framed::{receive, send};
use node_api::boot_choice::BootChoice;
use node_api::control::NodeError;
use node_api::device::{DeviceSpec, DeviceStatus};
use node_api::image::KeptPlan;
use node_api::mount_daemon::PrewarmSummary;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use rawio::unix_socket;

/// What a worker writes to its standard output, once, when it listens.
pub(crate) const READY: &str = "ready";

/// A request of the node.
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
    /// Loads the boot image of a mount into its page cache, and responds when that is done.
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
        /// The boot image.
        boot: BootChoice,
    },
    /// Writes the requests of a mount since the last `Heard` as a trace, into the file that is sent
    /// with this request.
    Heard {
        /// The mount.
        id: String,
    },
    /// Releases the private mount and the files held in it, since the visible mount is gone; the
    /// remaining users are served.
    LetGo {
        /// The mount.
        id: String,
    },
    /// Wait for registries no more, neither to open the block image of a mount nor to read it: it is to be taken away. Those
    /// of earlier releases refuse.
    GiveUp {
        /// The mount.
        id: String,
    },
    /// The session of a mount is over: responds when everything that was open for it is closed.
    Close {
        /// The mount.
        id: String,
    },
    /// Has the node make connections to the block service from now on, on requests over the socket
    /// that is sent with this request.
    Connections,
    /// Read no more requests of the kernel, and respond when all that were read are answered: another worker is to
    /// serve. Those of earlier releases refuse.
    Retire {
        /// How long that may take.
        within_ms: u64,
    },
    /// Give the descriptors of a mount: the node has lost its own.
    Hand {
        /// The mount.
        id: String,
    },
    /// Serve this device from now on; the socket that clients connect to travels beside the question. Answered when
    /// it is served. Of a block device of the machine only the image is opened.
    Attach(Box<DeviceSpec>),
    /// Answer the requests of a block device of the machine, whose image is open; its character device travels beside
    /// the question. Answered when the device can be started.
    ServeQueues(DeviceQueues),
    /// Make a device larger.
    Grow {
        /// Its name.
        name: String,
        /// Its new size in bytes.
        size: u64,
    },
    /// End a device, and answer when what was in flight is done and durable.
    Detach {
        /// Its name.
        name: String,
    },
    /// Make a plan of what was read of the block image of a mount.
    KeepPlan {
        /// The mount.
        id: String,
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
    /// Its specification.
    pub spec: MountSpec,
    /// The FUSE handshake (FUSE_INIT) with the kernel.
    pub hello: HelloBytes,
}

/// A response of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(crate) enum WorkerResponse {
    /// To [`WorkerRequest::Adopt`]: the mount is served. Has the FUSE_INIT response of this or of an
    /// earlier worker.
    Adopted {
        /// The whole FUSE_INIT response.
        #[serde(with = "node_records::hex")]
        hello: Vec<u8>,
    },
    /// To [`WorkerRequest::Status`].
    Status(WorkerStatus),
    /// To [`WorkerRequest::Prewarm`].
    Prewarmed(PrewarmSummary),
    /// To [`WorkerRequest::Swap`], [`WorkerRequest::Heard`], [`WorkerRequest::LetGo`], [`WorkerRequest::Close`],
    /// [`WorkerRequest::Connections`], [`WorkerRequest::Detach`], [`WorkerRequest::GiveUp`] and [`WorkerRequest::Retire`].
    Done,
    /// To [`WorkerRequest::Hand`] and [`WorkerRequest::HandSocket`]: the descriptors travel beside the answer.
    Handed,
    /// To [`WorkerRequest::KeepPlan`].
    Kept(KeptPlan),
    /// To [`WorkerRequest::Attach`] and [`WorkerRequest::ServeQueues`]: it is served. To [`WorkerRequest::Grow`].
    Attached(DeviceStatus),
    /// To [`WorkerRequest::Attach`] of a block device of the machine, which the node makes then.
    Opened(OpenedDevice),
    /// It was not done.
    Refused {
        /// The kind of fault.
        fault: Fault,
        /// The reason, for people.
        why: String,
    },
}

/// The queues of a block device of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceQueues {
    /// The name of the device.
    pub name: String,
    /// The kernel's number of it.
    pub number: u32,
    /// How many there are.
    pub queues: u16,
    /// Requests in flight of each.
    pub depth: u16,
}

/// What the node has to know of an image to make a block device for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenedDevice {
    /// What it is and can do.
    pub info: DeviceInfo,
    /// What tells it from other images.
    pub identity: String,
}

/// The status of a worker.
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
    /// The request makes no sense.
    Invalid,
    /// The present state does not allow it.
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

/// Sends a request to the worker `pid`, which listens on `socket` and must respond within `patience`.
///
/// # Errors
/// If no worker listens there, or another process does, if it does not respond in time, or speaks another protocol. A
/// refusal is a response. Returns the descriptors that came with the response, too.
pub(crate) fn ask(
    (pid, socket): (u32, &Path),
    question: &WorkerRequest,
    beside: &[BorrowedFd<'_>],
    patience: Duration,
) -> anyhow::Result<(WorkerResponse, Vec<OwnedFd>)> {
    let deadline = Instant::now() + patience;
    let asked = || {
        let stream = unix_socket::connect_within(socket, patience).context("connecting")?;
        if peer_pid(&stream) != Some(pid) {
            bail!("the process that listens there is not the worker {pid}");
        }
        send(&stream, question, beside, deadline)?;
        receive(&stream, deadline)
    };
    asked().with_context(|| format!("calling the worker at {}", socket.display()))
}
