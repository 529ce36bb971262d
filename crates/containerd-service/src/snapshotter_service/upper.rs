//! `--upper`: the place where containers write.

use host::size::Size;

/// The default maximum: enough for a few dozen containers that write logs, and small enough for a
/// small node.
pub const DEFAULT_MAX: Size = Size(1 << 30);

/// The value of `--upper-full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpperFull {
    /// New containers fail, and are told why
    Refuse,
    /// New containers write to the disk of the root
    Spill,
}

impl UpperFull {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Refuse, Self::Spill];

    /// Returns its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Spill => "spill",
        }
    }

    /// Returns its description, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Refuse => "New containers fail, and are told why",
            Self::Spill => "New containers write to the disk of the root",
        }
    }
}
