//! `--upper`: where containers write.

use host::size::Size;

/// A bound for those who name none: room for a few dozen containers that write logs, and little
/// enough for a small node.
pub(super) const DEFAULT_MAX: Size = Size(1 << 30);

/// What `--upper-full` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum FullArg {
    /// New containers fail, and are told why
    Refuse,
    /// New containers write to the disk of the root
    Spill,
}
