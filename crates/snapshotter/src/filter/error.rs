//! Why a text is not a filter.

/// The text is not a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expected} at byte {at} of {filter:?}")]
pub struct FilterError {
    /// The filter, cut short.
    pub filter: String,
    /// Where it goes wrong.
    pub at: usize,
    /// What is wrong, or was expected there.
    pub expected: String,
}
