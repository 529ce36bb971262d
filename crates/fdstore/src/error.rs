//! Errors of this crate.

use std::io;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Why it did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// `NOTIFY_SOCKET` names no unix socket.
    #[error("{0:?} is no address of a unix socket: it begins with / or @")]
    Address(String),
    /// A name that the protocol cannot carry.
    #[error("{0:?} cannot name a descriptor")]
    Name(String),
    /// The variables of `sd_listen_fds(3)` do not fit together.
    #[error("LISTEN_FDS is {0:?}, which is no number of descriptors")]
    Count(String),
    /// This program is configured for a keeper's descriptor, and has none.
    #[error("the descriptor of the keeper is missing: was this process started by a keeper?")]
    Unlinked,
    /// Another process is the keeper.
    #[error("{}", taken(*.process))]
    Taken {
        /// Its process id, if it has reported one.
        process: Option<u32>,
    },
    /// The manager did not respond in time.
    #[error("the service manager has not confirmed in time")]
    Unanswered,
    /// A step of it failed.
    #[error("{doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

fn taken(process: Option<u32>) -> String {
    match process {
        Some(process) => format!("process {process} is the keeper already"),
        None => "another process is the keeper already".to_owned(),
    }
}

impl StoreError {
    /// Makes errors of one step.
    pub(crate) fn step<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Io {
            doing,
            source: error.into(),
        }
    }
}
