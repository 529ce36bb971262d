//! Executing `runc`, for all that is not done here.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::log::Log;

/// Names another `runc` than that of the path.
const PROGRAM: &str = "SANDBOX_OCI_RUNC";

fn program() -> Command {
    Command::new(std::env::var_os(PROGRAM).unwrap_or_else(|| "runc".into()))
}

/// Executes `runc` with our arguments. Returns only if there is none.
pub(crate) fn take_over(log: Option<&Log>, why: &str) -> ExitCode {
    if !why.is_empty() {
        let message = format!("sandbox-oci does not honour {why}: handed to runc");
        match log.filter(|log| log.is_kept()) {
            Some(log) => log.info(&message),
            // podman names no log, and shows this as the container's, or if the start fails.
            None => eprintln!("{message}"),
        }
    }
    let error = program().args(std::env::args_os().skip(1)).exec();
    let message = match why {
        "" => format!("container does not exist here, and there is no runc to ask: {error}"),
        why => format!(
            "sandbox-oci does not honour {why}, and there is no runc to hand it to: {error}"
        ),
    };
    if let Some(log) = log {
        log.error(&message);
    }
    eprintln!("sandbox-oci: {message}");
    ExitCode::FAILURE
}

/// Returns the containers of `runc` in a directory.
pub(crate) fn listed(root: &Path, log: &Log) -> Vec<Value> {
    let output = program()
        .arg("--root")
        .arg(root)
        .args(["list", "--format", "json"])
        .output();
    let parsed = output
        .ok()
        .and_then(|output| serde_json::from_slice::<Vec<Value>>(&output.stdout).ok());
    parsed.unwrap_or_else(|| {
        log.info("runc does not list its containers");
        Vec::new()
    })
}
