//! What can be asked of the process that holds the pages.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use host::control::{Reply, call, nobody_listens};
use serde::{Deserialize, Serialize};

/// How long a request waits for its answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Returns where the process that holds pages is asked.
pub(crate) fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("pins.sock")
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// How things are.
    Status,
    /// To look at once which profiles are applied, and at their files.
    Refresh,
}

/// What is answered: how things are then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// How things are.
    Status(Box<PinStatus>),
    /// Why it could not be done.
    Failed(String),
}

impl Reply for Response {
    fn failed(why: String) -> Self {
        Self::Failed(why)
    }
}

/// What is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinStatus {
    /// The process that holds it; `None` if nobody does.
    pub pid: Option<u32>,
    /// How much may be held.
    pub budget_bytes: u64,
    /// How much is held. Pages that several profiles want are counted once.
    pub locked_bytes: u64,
    /// How much is not held because the budget is used up.
    pub left_out_bytes: u64,
    /// The memory cgroup that is charged with it.
    pub group: Option<GroupStatus>,
    /// The profiles, in the order of their names.
    pub profiles: Vec<ProfileStatus>,
    /// What could not be done, for people.
    pub problems: Vec<String>,
}

/// A memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its directory.
    pub path: PathBuf,
    /// How much it may use; `None` without a limit.
    pub limit_bytes: Option<u64>,
    /// How much it uses.
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
    /// How many of them are gone.
    pub missing_files: usize,
    /// How much of its files it wants in memory.
    pub bytes: u64,
    /// How much its files have.
    pub file_bytes: u64,
    /// How much of it is held.
    pub locked_bytes: u64,
}

/// Asks the process that holds pages; `None` if there is none.
///
/// # Errors
/// If it does not answer in time, or could not do it.
pub fn ask(run_dir: &Path, request: &Request) -> anyhow::Result<Option<PinStatus>> {
    match call(&socket(run_dir), request, DEADLINE) {
        Ok(Response::Status(status)) => Ok(Some(*status)),
        Ok(Response::Failed(why)) => bail!("{why}"),
        Err(error) if nobody_listens(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
