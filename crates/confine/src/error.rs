//! Why a process cannot be confined.

use std::io;

/// What keeps a process from being confined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// Some of it is for one thread only, and no thread can do it to another.
    #[error("the process has {0} threads already")]
    Threads(usize),
    /// A step failed.
    #[error("{doing} failed")]
    Step {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The capabilities cannot be given up.
    #[error("giving up capabilities failed")]
    Capabilities(#[from] caps::errors::CapsError),
    /// Landlock refuses the rules.
    #[error("confining to files failed")]
    Files(#[from] landlock::RulesetError),
    /// The filter of system calls cannot be made.
    #[error("compiling the filter of system calls failed")]
    Filter(#[from] seccompiler::BackendError),
    /// A call has a condition that its filter cannot test.
    #[error(
        "the filter of system calls cannot test the arguments of the call {0}: compile it by another way"
    )]
    Condition(i64),
    /// The kernel refuses the filter of system calls.
    #[error("filtering system calls failed")]
    Calls(#[from] seccompiler::Error),
}

impl ConfineError {
    pub(crate) fn step(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Step { doing, source }
    }
}
