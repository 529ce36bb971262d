//! How a source is served.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a source is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServeMode {
    /// For container trees: opens cost no request.
    Lower,
    /// For disk images: whole files pass through to the source.
    Disk,
}

impl ServeMode {
    /// Returns its name, as it is written in requests and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Disk => "disk",
        }
    }
}

impl FromStr for ServeMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let modes = [Self::Lower, Self::Disk].into_iter();
        let found = modes.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is no mode: lower and disk are"))
    }
}
