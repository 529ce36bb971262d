//! What the mirror reads of what strangers send, for those who try to break it: the fuzz targets.

use super::document::{accepts, children, for_platform};
use super::fill::content_range;
use super::range::Wanted;
use super::route::Route;

/// Reads a path, and returns the repository that it asks for, which may begin with a registry.
#[must_use]
pub fn repository_in(path: &str) -> Option<String> {
    Route::parse(path)?.repository().cloned()
}

/// Reads a `Range` header for a blob of `size` bytes, and returns the bytes that are sent; `None`
/// where there is no one range to send.
#[must_use]
pub fn range_in(header: &str, size: u64) -> Option<(u64, u64)> {
    match Wanted::parse(Some(header), size) {
        Wanted::All => Some((0, size)),
        Wanted::Part { start, end, .. } => Some((start, end)),
        Wanted::Nothing | Wanted::Several => None,
    }
}

/// Reads the `Content-Range` of a registry, and returns where it begins and how long the blob is.
#[must_use]
pub fn content_range_in(header: &str) -> Option<(u64, u64)> {
    content_range(header).map(|stretch| (stretch.start, stretch.size))
}

/// Reads a manifest or an index, and returns how many things it names.
#[must_use]
pub fn names_in(document: &[u8], accept: &str) -> usize {
    let taken = usize::from(accepts(std::iter::once(accept), "application/json"));
    children(document).map_or(0, |children| children.len())
        + for_platform(document, "amd64").len()
        + taken
}
