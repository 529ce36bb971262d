//! Extended attributes of layers.

/// Returns whether an extended attribute of a tar is kept: `trusted.overlay.redirect` would lead
/// overlayfs to another place, and only engines have business with `trusted`.
pub(crate) fn is_kept(name: &[u8]) -> bool {
    (name.starts_with(b"user.") && !name.starts_with(b"user.overlay."))
        || name == b"security.capability"
}
