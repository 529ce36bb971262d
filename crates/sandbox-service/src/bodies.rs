//! What goes over the socket.

use std::path::PathBuf;

use sandbox::{BaseSpec, Counts, ExitStatus, Phase, Request, Sandbox, ZygoteCounts, ZygoteSpec};
use sandbox_handlers::{HandlerCounts, HandlerSpec};
use serde::{Deserialize, Serialize};

/// The longest body of a request: its strings are bounded by the crate `sandbox`, and JSON may spell a
/// byte as six.
pub const BODY_MAX_BYTES: usize = 8 << 20;

/// The longest response: the output of a sandbox, as JSON.
pub const ANSWER_MAX_BYTES: usize = 32 << 20;

/// The longest time that a request waits for a sandbox to end. Clients that want to wait longer repeat it.
pub const WAIT_MAX_MS: u64 = 60_000;

/// A request for a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// Its specification.
    pub request: Request,
    /// How long to wait for its end, in milliseconds.
    #[serde(default)]
    pub wait_ms: u64,
    /// What a program of Python needs, as it was added to the daemon's store: it gets all packages that
    /// this took.
    #[serde(default)]
    pub requires: Vec<String>,
}

/// A request to install packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddPackages {
    /// The base that they are for.
    pub base: String,
    /// The interpreter, by its path in the base.
    pub interpreter: String,
    /// What is needed, such as `django>=4`.
    pub requirements: Vec<String>,
    /// The address of an index, or the directory that has them.
    #[serde(flatten)]
    pub from: PackageSource,
    /// Source distributions to build first, each `NAME==VERSION`. Their code runs in sandboxes.
    #[serde(default)]
    pub build: Vec<String>,
    /// A directory with `pip`, for a base without it.
    #[serde(default)]
    pub pip: Option<PathBuf>,
}

/// The source of packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageSource {
    /// An index, by its address.
    Index(String),
    /// A directory of wheels. There is no network then.
    Directory(PathBuf),
}

/// The installed packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// Each `NAME==VERSION`.
    pub packages: Vec<String>,
}

/// A request for another program in a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// When it is killed, in milliseconds.
    pub timeout_ms: u64,
}

/// What a program has written, as text: bytes that are no UTF-8 are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The first part of its standard output.
    pub stdout: String,
    /// The first part of its standard errors.
    pub stderr: String,
    /// Bytes of both that were not kept.
    pub dropped_bytes: u64,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxView {
    /// Its id.
    pub id: String,
    /// Its base.
    pub base: String,
    /// Its program and arguments.
    pub command: Vec<String>,
    /// Its phase, or how it ended.
    pub phase: Phase,
    /// Its first process.
    pub pid: u32,
    /// The user that it is.
    pub user: u32,
    /// Its address on the bridge, if it has one.
    #[serde(default)]
    pub address: Option<std::net::Ipv4Addr>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// The packages that it requested.
    pub packages: Vec<String>,
    /// The Zygotes that it descends from, each with its packages; none if it was started without one.
    pub ancestry: Vec<String>,
    /// Bytes of memory that it is charged for; `None` after its end.
    pub memory_bytes: Option<u64>,
}

impl SandboxView {
    /// Returns the view of a sandbox.
    pub fn of(sandbox: &Sandbox) -> Self {
        let request = sandbox.request();
        let python = request.python.as_ref();
        Self {
            id: sandbox.id().to_owned(),
            base: request.base.clone(),
            command: request.command.clone(),
            phase: sandbox.phase(),
            pid: sandbox.pid(),
            user: sandbox.user(),
            address: sandbox.address(),
            created_ms: sandbox.created_ms(),
            packages: python
                .map_or_else(Vec::new, |python| python.packages.iter().cloned().collect()),
            ancestry: sandbox.ancestry().to_vec(),
            memory_bytes: sandbox.memory_bytes().ok(),
        }
    }
}

/// A sandbox that was made, and its output if it has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The sandbox.
    pub sandbox: SandboxView,
    /// Its output, if it has ended.
    pub output: Option<Output>,
}

/// How another program in a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Its exit status; `None` if it was killed by the timeout.
    pub status: Option<ExitStatus>,
    /// Its output.
    pub output: Output,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Sandboxes.
    pub sandboxes: Counts,
    /// How programs of Python began.
    pub zygotes: ZygoteCounts,
    /// Requests to handlers, and the cache of handlers.
    pub handlers: HandlerCounts,
    /// Sandboxes that run or are paused.
    pub live: u64,
}

/// What the daemon makes again when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The bases.
    pub bases: Vec<BaseSpec>,
    /// The Zygotes that were requested.
    pub zygotes: Vec<ZygoteSpec>,
    /// The handlers.
    #[serde(default)]
    pub handlers: Vec<HandlerSpec>,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A code for programs: `invalid`, `unknown`, `exists`, `full`, `used`, `busy`, `late`, `handler`, `forbidden` or
    /// `failed`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}
