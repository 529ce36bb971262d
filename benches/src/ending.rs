//! How the programs of the rig end.

use std::process::ExitCode;

/// Returns the exit code of a program, after saying why it failed, if it did.
#[must_use]
pub fn end(result: &anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
