//! Why a request to an engine failed.

use std::io;
use std::time::Duration;

/// An engine, or its client program, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The client program cannot be started.
    #[error("{doing}: {program} cannot be started")]
    Start {
        /// The operation.
        doing: String,
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// The client program failed.
    #[error("{doing}: {said}")]
    Failed {
        /// The operation.
        doing: String,
        /// Its standard error, truncated; or its exit status, if that is empty.
        said: String,
    },
    /// There was no response in time.
    #[error("{doing}: no response for {} s; does the engine hang?", after.as_secs())]
    TimedOut {
        /// The operation.
        doing: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The response is too long.
    #[error("{doing}: the response has more than {limit} bytes")]
    TooMuch {
        /// The operation.
        doing: String,
        /// The most that is read.
        limit: usize,
    },
    /// The response cannot be parsed.
    #[error("{doing}: the response is invalid: {why}")]
    Answer {
        /// The operation.
        doing: String,
        /// The reason.
        why: String,
    },
    /// The engine has no such image.
    #[error("{engine} has no image {reference}; {hint}")]
    NoImage {
        /// The engine.
        engine: String,
        /// The requested name.
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
        /// The engine.
        engine: String,
        /// The graph driver or snapshotter.
        driver: String,
        /// The supported ones.
        needed: &'static str,
    },
    /// Docker keeps its images in containerd.
    #[error("this Docker keeps its images in containerd, not in overlay2: ask that for them")]
    ContainerdStore,
}
