//! Why a text is not a filter.

/// The text is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expected} at byte {at} of {filter:?}")]
pub struct FilterError {
    /// The filter, truncated.
    pub filter: String,
    /// The position of the error.
    pub at: usize,
    /// The error, or what was expected there.
    pub expected: String,
}
