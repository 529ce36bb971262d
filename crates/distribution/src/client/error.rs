//! Why a request to a registry failed.

use std::error::Error as _;

use reqwest::Response;

use crate::{Inside, RealmError};

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Certificates or a proxy cannot be used.
    #[error("cannot set up requests")]
    SetUp(#[source] reqwest::Error),
    /// It could not be reached, or hung up.
    #[error("no response")]
    NoAnswer(#[source] reqwest::Error),
    /// It took too long.
    #[error("no response within {seconds} s")]
    TooSlow {
        /// The deadline.
        seconds: u64,
    },
    /// The response breaks this rule.
    #[error("invalid response: {0}")]
    Rule(&'static str),
    /// It leads to where it may not lead.
    #[error(transparent)]
    Inside(#[from] Inside),
    /// Its realm for tokens is not allowed.
    #[error(transparent)]
    Realm(#[from] RealmError),
    /// The token service issued none.
    #[error("no token: {}", .0.status())]
    NoToken(Box<Response>),
}

impl CallError {
    /// Makes an error of the client's, which may have a URL with a signature in it.
    pub(super) fn no_answer(error: reqwest::Error) -> Self {
        let mut cause = error.source();
        while let Some(found) = cause {
            if let Some(inside) = found.downcast_ref::<Inside>() {
                return Self::Inside(inside.clone());
            }
            cause = found.source();
        }
        Self::NoAnswer(error.without_url())
    }
}
