//! A recorded workload that did not become ready.

/// The recorded workload did not become ready; the reason, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);
