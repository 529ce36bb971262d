//! Programs of an engine's that are run beside a container, with its state as their input.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use oci_spec::runtime::Hook;
use rawio::pidfd::PidFd;

use crate::error::{OciError, Result, at};

/// How long a hook may take that says nothing of it: an engine waits no longer for the whole start.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs hooks, in order.
///
/// # Errors
/// If one cannot be run, fails, or takes too long. Later ones are not run.
pub(crate) fn run(hooks: Option<&Vec<Hook>>, state: &str) -> Result<()> {
    for hook in hooks.into_iter().flatten() {
        run_one(hook, state)?;
    }
    Ok(())
}

fn run_one(hook: &Hook, state: &str) -> Result<()> {
    let path = hook.path();
    let mut command = Command::new(path);
    let arguments = hook.args().as_deref().unwrap_or_default();
    if let Some((name, arguments)) = arguments.split_first() {
        command.arg0(name).args(arguments);
    }
    command.env_clear();
    for variable in hook.env().iter().flatten() {
        if let Some((name, value)) = variable.split_once('=') {
            command.env(name, value);
        }
    }
    let spawned = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(at("running the hook", path))?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not want to know is a hook, too.
        let _unread = input.write_all(state.as_bytes());
    }
    let patience = hook
        .timeout()
        .and_then(|seconds| u64::try_from(seconds).ok());
    let patience = patience
        .filter(|seconds| *seconds > 0)
        .map_or(PATIENCE, Duration::from_secs);
    let process = PidFd::open(child.id()).map_err(at("watching the hook", path))?;
    let in_time = process
        .ended_within(patience)
        .map_err(at("watching the hook", path))?;
    if !in_time {
        let _gone = child.kill();
    }
    let output = child
        .wait_with_output()
        .map_err(at("waiting for the hook", path))?;
    match output.status.success() && in_time {
        true => Ok(()),
        false => Err(OciError::Invalid(format!(
            "error running hook {}: {}{}: {}",
            path.display(),
            output.status,
            if in_time {
                ""
            } else {
                ", since it took too long"
            },
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}
