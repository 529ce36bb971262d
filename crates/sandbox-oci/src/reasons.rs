//! Why a specification cannot be honoured.

/// Reasons against a specification: with one of them, runc gets the container.
pub(crate) type Reasons = Vec<String>;
