//! Exit codes, the same for all programs. `--help` and the manual pages list them.

use std::process::ExitCode;

use crate::api_words::in_flags;
use crate::output::{Failure, complain};
use host::interrupt::Interrupted;
use host::rights::missing_for;
use recording::not_ready::NotReady;

/// How a command ended, beyond "it failed".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All was done.
    Done,
    /// It ran, and what it looked at is damaged, stale or different.
    Different,
}

/// The text of `--help` that explains the codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed; the message says what, why and what to try
  2    the command line is wrong
  3    the workload was not ready in time, or failed
  4    verification found damage or differences
  130  interrupted

Sizes are bytes, or take a unit of 1024: 4096, 64K, 512M, 1.5G.";

/// Prints the error, if there is one, and returns the code.
#[must_use]
pub(crate) fn report(program: &str, result: &anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Different) => ExitCode::from(4),
        Err(error) => {
            let failure = error.downcast_ref::<Failure>();
            if !matches!(failure, Some(Failure::Unread)) {
                let mut message = in_flags(&format!("{error:#}"));
                if let Some(missing) = missing_for(error)
                    && !message.contains("needs root")
                {
                    message = format!("{message} ({missing})");
                }
                complain(&format!("{program}: {message}"));
            }
            match failure {
                None if error.is::<NotReady>() => ExitCode::from(3),
                None if error.is::<Interrupted>() => ExitCode::from(130),
                // All that there was to do is done.
                Some(Failure::Unread) => ExitCode::SUCCESS,
                None => ExitCode::FAILURE,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn only_output_that_nobody_reads_is_no_failure() {
        let code = |error: anyhow::Error| report("test", &Err(error));
        assert_eq!(code(Failure::Unread.into()), ExitCode::SUCCESS);
        // A daemon that went away while it was asked.
        let daemon = Err::<(), _>(Error::from(ErrorKind::BrokenPipe)).context("sending");
        assert_eq!(code(daemon.unwrap_err()), ExitCode::FAILURE);
    }
}
