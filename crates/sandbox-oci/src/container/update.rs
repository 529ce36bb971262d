//! Other limits for a container that runs.

use std::path::Path;

use oci_spec::runtime::LinuxResources;
use serde_json::Value;

use super::running;
use crate::error::{OciError, Result};
use crate::honoured;
use crate::plan::resources;

/// Sets the given limits, and leaves the others. Devices are never changed.
///
/// # Errors
/// If some of the limits are not honoured: then nothing was changed.
pub fn update(root: &Path, id: &str, limits: &Value) -> Result<()> {
    let (_, saved) = running(root, id)?;
    let limits = &said(limits.clone());
    let mut reasons = honoured::unhonoured_below("linux.resources", limits);
    if limits
        .get("devices")
        .is_some_and(|devices| !devices.is_null())
    {
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

/// Leaves out zeros and what is empty, by which engines say that a limit stays as it is.
fn said(value: Value) -> Value {
    let is_said = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, said(value)));
            fields.filter(|(_, value)| is_said(value)).collect()
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_zero_says_nothing() {
        let docker = json!({"memory": {"limit": 5, "kernel": 0}, "cpu": {"cpus": "", "shares": 0}, "pids": null});
        assert_eq!(said(docker), json!({"memory": {"limit": 5}}));
    }
}
