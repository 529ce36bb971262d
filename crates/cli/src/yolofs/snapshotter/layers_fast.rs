//! `--layers-fast`: where layers go that a pull waits for.

use host::size::Size;

/// A bound for those who name none: the largest layers of most images, and little enough for a small
/// node.
pub(super) const DEFAULT_MAX: Size = Size(2 << 30);

/// What `--layers-by` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ByArg {
    /// By what is still being downloaded when containerd opens the layer
    Seen,
    /// By the sizes in the manifest
    Foreseen,
}
