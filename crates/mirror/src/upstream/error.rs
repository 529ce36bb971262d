//! Why a registry did not give what it was asked for.

use distribution::{CallError, Inside, RealmError};

use crate::blobs::FillError;

/// Why a registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// This is not a URL of a registry.
    #[error("not a URL of a registry: {0:?}; http:// or https:// and a host are needed")]
    Url(String),
    /// Certificates cannot be used.
    #[error("cannot set up requests")]
    SetUp(#[source] reqwest::Error),
    /// It could not be reached, or hung up.
    #[error("no answer: {0}")]
    NoAnswer(#[source] reqwest::Error),
    /// It took too long.
    #[error("no answer within {seconds} s")]
    TooSlow {
        /// How long was waited.
        seconds: u64,
    },
    /// A body ended before its end.
    #[error("the answer was cut")]
    Cut,
    /// It has no such thing.
    #[error("the upstream has no such thing")]
    NotFound,
    /// It wants to know who asks, or does not like who does.
    #[error("the upstream does not give it (status {0})")]
    Denied(u16),
    /// It answers with another status.
    #[error("the upstream answered {0}")]
    Refused(u16),
    /// Too many long answers are in memory.
    #[error("too many long documents are on their way")]
    NoMemory,
    /// It leads further inside than it is.
    #[error("the upstream leads inside (redirect_networks allows that where it is meant): {0}")]
    Inside(Inside),
    /// The answer breaks the protocol.
    #[error("the upstream breaks a rule: {0}")]
    Protocol(&'static str),
}

impl UpstreamError {
    /// Returns whether another time may go better: the upstream is away, or busy.
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
                "passwords go to the registry's own domain only (token_hosts allows others)",
            ),
            CallError::Realm(RealmError::NoTls) => {
                Self::Protocol("who asks is not sent without TLS")
            }
            CallError::NoToken(answer) => match answer.status().as_u16() {
                404 => Self::NotFound,
                status @ (401 | 403) => Self::Denied(status),
                status => Self::Refused(status),
            },
            _ => Self::Protocol("the realm of a token is a URL"),
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
