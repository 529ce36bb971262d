//! Chain IDs: what a layer is called together with those below it.

use blocks::Digest;

/// Returns the chain ID of a layer on top of others, as OCI's image specification defines it.
///
/// ```
/// let base = blocks::Digest([1; 32]);
/// assert_eq!(blockimages::convert::chain_id(None, base), base);
/// assert_ne!(blockimages::convert::chain_id(Some(base), base), base);
/// ```
#[must_use]
pub fn chain_id(parent: Option<Digest>, diff_id: Digest) -> Digest {
    match parent {
        None => diff_id,
        Some(parent) => oci::digest_of(format!("{parent} {diff_id}").as_bytes()),
    }
}
