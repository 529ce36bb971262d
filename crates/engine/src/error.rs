//! Why an engine did not do what it was asked for.

use std::io;
use std::time::Duration;

/// An engine, or its client program, did not answer as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The client program cannot be started.
    #[error("{doing}: {program} cannot be started")]
    Start {
        /// What it was for.
        doing: String,
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// The client program failed.
    #[error("{doing}: {said}")]
    Failed {
        /// What it was for.
        doing: String,
        /// What it wrote to its standard error, cut short; or how it ended, if it wrote nothing.
        said: String,
    },
    /// There was no answer in time.
    #[error("{doing}: no response for {} s; does the engine hang?", after.as_secs())]
    TimedOut {
        /// What was asked for.
        doing: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The answer is longer than any that makes sense.
    #[error("{doing}: the response has more than {limit} bytes")]
    TooMuch {
        /// What was asked for.
        doing: String,
        /// The most that is read.
        limit: usize,
    },
    /// The answer cannot be understood.
    #[error("{doing}: the response is invalid: {why}")]
    Answer {
        /// What was asked for.
        doing: String,
        /// What is wrong with it.
        why: String,
    },
    /// The engine has no such image.
    #[error("{engine} has no image {reference}; {hint}")]
    NoImage {
        /// Who was asked.
        engine: String,
        /// For what.
        reference: String,
        /// What to try.
        hint: String,
    },
    /// The engine keeps layers in a way that has no directory for each.
    #[error(
        "{engine} uses {driver}, which has no directory for each layer; \
         {needed} is needed"
    )]
    Driver {
        /// Who was asked.
        engine: String,
        /// The graph driver or snapshotter.
        driver: String,
        /// Those that work.
        needed: &'static str,
    },
    /// Docker keeps its images in containerd.
    #[error("this Docker keeps its images in containerd, not in overlay2: ask that for them")]
    ContainerdStore,
}
