//! Errors of requests to a registry.

use distribution::{CallError, Inside, RealmError};

use crate::blobs::FillError;

/// The error of a request to a registry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The URL of a registry is invalid.
    #[error("not the URL of a registry: {0:?}; expected http:// or https:// and a host")]
    Url(String),
    /// The HTTP client cannot be set up, for example with these certificates.
    #[error("cannot set up the HTTP client")]
    SetUp(#[source] reqwest::Error),
    /// The registry could not be reached, or closed the connection.
    #[error("no response: {0}")]
    NoAnswer(#[source] reqwest::Error),
    /// It took too long.
    #[error("no response within {seconds} s")]
    TooSlow {
        /// The deadline.
        seconds: u64,
    },
    /// The body of a response was truncated.
    #[error("the response was truncated")]
    Cut,
    /// The registry does not have the content.
    #[error("the upstream registry does not have it")]
    NotFound,
    /// The registry denies access.
    #[error("the upstream registry denies access (status {0})")]
    Denied(u16),
    /// The registry responded with another status.
    #[error("the upstream registry responded with status {0}")]
    Refused(u16),
    /// The budget of memory for large documents is used up.
    #[error("no memory is left for large manifests and lists")]
    NoMemory,
    /// The registry redirects to an address of a more internal network than its own.
    #[error(
        "the upstream registry redirects to an internal address (redirect_networks allows it): {0}"
    )]
    Inside(Inside),
    /// The response violates the protocol.
    #[error("the upstream registry violates the protocol: {0}")]
    Protocol(&'static str),
}

impl UpstreamError {
    /// Returns whether a retry may succeed: the registry is not reachable, or busy.
    #[must_use]
    pub const fn is_outage(&self) -> bool {
        match self {
            Self::NoAnswer(_) | Self::TooSlow { .. } | Self::Cut => true,
            Self::Refused(status) => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }
}

impl From<CallError> for UpstreamError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::SetUp(source) => Self::SetUp(source),
            CallError::NoAnswer(source) => Self::NoAnswer(source),
            CallError::TooSlow { seconds } => Self::TooSlow { seconds },
            CallError::Rule(rule) => Self::Protocol(rule),
            CallError::Inside(inside) => Self::Inside(inside),
            CallError::Realm(RealmError::Elsewhere { .. }) => Self::Protocol(
                "its realm for tokens is outside its domain (`token_hosts` allows others)",
            ),
            CallError::Realm(RealmError::NoTls) => {
                Self::Protocol("its realm for tokens has no TLS, and the registry has")
            }
            CallError::NoToken(answer) => match answer.status().as_u16() {
                404 => Self::NotFound,
                status @ (401 | 403) => Self::Denied(status),
                status => Self::Refused(status),
            },
            _ => Self::Protocol("the realm for tokens is not a URL"),
        }
    }
}

impl From<UpstreamError> for FillError {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::NotFound => Self::NotFound,
            UpstreamError::Denied(status) => Self::Denied(status),
            other => Self::Upstream(other.to_string()),
        }
    }
}
