//! Requests to the process that locks the pages.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use host::control::{Reply, call, nobody_listens};
use serde::{Deserialize, Serialize};

/// How long a request waits for its response.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Returns the socket of the process that locks pages.
pub(crate) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("pins.sock")
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Return the status.
    Status,
    /// To look at once which profiles are applied, and at their files.
    Refresh,
    /// Return the status after the last look at the profiles, at once, even if pages are being read.
    Figures,
}

/// A response: the status after the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The status.
    Status(Box<PinStatus>),
    /// Why it could not be done.
    Failed(String),
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// The status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinStatus {
    /// The process that locks pages; `None` if there is none.
    pub pid: Option<u32>,
    /// How much may be held.
    pub budget_bytes: u64,
    /// Size of the locked pages. Pages of several profiles are counted once.
    pub locked_bytes: u64,
    /// Size of the pages of applied profiles that their files have now.
    #[serde(default)]
    pub wanted_bytes: u64,
    /// How much of it is not held because of a limit.
    pub left_out_bytes: u64,
    /// This limit; `None` if nothing is left out.
    #[serde(default)]
    pub bound: Option<Bound>,
    /// The first files with pages that are left out.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// How often since the start a path led to another file than before, whose pages were locked instead.
    #[serde(default)]
    pub followed_files: u64,
    /// Errors since the start.
    #[serde(default)]
    pub errors: u64,
    /// The memory cgroup that is charged with it.
    pub group: Option<GroupStatus>,
    /// The profiles, in the order of their names.
    pub profiles: Vec<ProfileStatus>,
    /// Failures, for people.
    pub problems: Vec<String>,
}

/// What limits how much is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// What it is.
    pub kind: BoundKind,
    /// The directory of the cgroup, if it is one.
    pub path: Option<PathBuf>,
    /// The limit.
    pub limit_bytes: u64,
    /// How much of it was used before pages were locked the last time, without what can be reclaimed.
    pub used_bytes: u64,
}

/// A kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// `--budget`.
    Budget,
    /// The memory cgroup of the process, or one above it.
    Cgroup,
    /// `RLIMIT_MEMLOCK`, for a process without `CAP_IPC_LOCK`.
    Memlock,
}

/// A file with pages that are not held because of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its path.
    pub path: PathBuf,
    /// Their size.
    pub bytes: u64,
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its directory.
    pub path: PathBuf,
    /// Its limit; `None` without one.
    pub limit_bytes: Option<u64>,
    /// Its usage.
    pub charged_bytes: u64,
}

/// One profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileStatus {
    /// Its name.
    pub name: String,
    /// Whether its pages are to be held.
    pub applied: bool,
    /// How many files it has.
    pub files: usize,
    /// How many of them have other content than when it was recorded.
    pub changed_files: usize,
    /// Those that do not exist any more.
    pub missing_files: usize,
    /// Size of its pages.
    pub bytes: u64,
    /// How much its files have.
    pub file_bytes: u64,
    /// How much of it is held.
    pub locked_bytes: u64,
}

/// Sends a request to the process that locks pages; `None` if there is none.
///
/// # Errors
/// If it does not respond in time, or fails.
pub fn ask(run_dir: &Path, request: &Request) -> anyhow::Result<Option<PinStatus>> {
    ask_within(run_dir, request, DEADLINE)
}

/// As [`ask`], with a deadline of one's own.
///
/// # Errors
/// As [`ask`].
pub fn ask_within(
    run_dir: &Path,
    request: &Request,
    deadline: Duration,
) -> anyhow::Result<Option<PinStatus>> {
    match call(&socket(run_dir), request, deadline) {
        Ok(Response::Status(status)) => Ok(Some(*status)),
        Ok(Response::Failed(why)) => bail!("{why}"),
        Err(error) if nobody_listens(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
