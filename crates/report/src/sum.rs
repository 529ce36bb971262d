//! Sums that cannot overflow.

/// Adds numbers that come from files and may be anything.
pub(crate) fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}
