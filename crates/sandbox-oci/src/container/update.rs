//! Other limits for a container that runs.

use std::path::Path;

use oci_spec::runtime::LinuxResources;
use serde_json::Value;

use super::running;
use crate::error::{OciError, Result};
use crate::honoured;
use crate::plan::resources;

/// Sets the limits that are said, and leaves the others. Devices are never changed.
///
/// # Errors
/// If limits are among them that are not honoured: then nothing was changed.
pub fn update(root: &Path, id: &str, limits: &Value) -> Result<()> {
    let (_, saved) = running(root, id)?;
    let mut reasons = honoured::unhonoured_below("linux.resources", limits);
    if limits.get("devices").is_some_and(|devices| !devices.is_null()) {
        reasons.push("linux.resources.devices of a container that runs".to_owned());
    }
    let parsed: LinuxResources = serde_json::from_value(limits.clone())
        .map_err(|error| OciError::Invalid(format!("the limits cannot be read: {error}")))?;
    let limits = resources::translate(Some(&parsed), &mut reasons);
    match reasons.is_empty() {
        true => saved.groups.limit(&limits),
        false => Err(OciError::NotHonoured(reasons)),
    }
}
