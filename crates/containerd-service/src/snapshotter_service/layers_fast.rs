//! `--layers-fast`: where layers go that a pull waits for.

use host::size::Size;

/// The default maximum: enough for the largest layers of most images, and small enough for a small
/// node.
pub const DEFAULT_MAX: Size = Size(2 << 30);

/// The value of `--layers-by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayersBy {
    /// By what is still being downloaded when containerd opens the layer
    Seen,
    /// By the sizes in the manifest
    Foreseen,
}

impl LayersBy {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Seen, Self::Foreseen];

    /// Returns its name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Foreseen => "foreseen",
        }
    }

    /// Returns its description, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Seen => "By what is still being downloaded when containerd opens the layer",
            Self::Foreseen => "By the sizes in the manifest",
        }
    }
}
