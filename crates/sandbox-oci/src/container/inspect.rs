//! The state of containers, for engines and users.

use std::io;
use std::path::Path;

use serde_json::Value;

use super::running;
use crate::error::{Result, at};
use crate::state::Home;

/// Returns the state of a container, as the specification has it.
///
/// # Errors
/// If there is no such container.
pub fn state(root: &Path, id: &str) -> Result<Value> {
    let (home, saved) = running(root, id)?;
    let status = home.status(&saved)?;
    Ok(saved.state(status))
}

/// Returns the numbers of a container's processes.
///
/// # Errors
/// If there is no such container.
pub fn processes(root: &Path, id: &str) -> Result<Vec<u32>> {
    let (_, saved) = running(root, id)?;
    saved.groups.processes()
}

/// The containers of a directory.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The states of containers of this program.
    pub ours: Vec<Value>,
    /// Whether there are containers of `runc`.
    pub has_others: bool,
}

/// Lists containers.
///
/// # Errors
/// If the directory cannot be read.
pub fn list(root: &Path) -> Result<Listed> {
    let mut listed = Listed::default();
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listed),
        entries => entries.map_err(at("reading", root))?,
    };
    for entry in entries {
        let entry = entry.map_err(at("reading", root))?;
        let id = entry.file_name().to_string_lossy().into_owned();
        match Home::of(root, &id) {
            // One that is removed meanwhile is none any more.
            Ok(home) if home.is_ours() => listed.ours.extend(state(root, &id)),
            _ => listed.has_others = true,
        }
    }
    listed.ours.sort_by_key(|state| state["id"].to_string());
    Ok(listed)
}
