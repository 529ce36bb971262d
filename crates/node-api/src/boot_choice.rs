//! Which boot image a mount is served from.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which boot image; in JSON the same text as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum BootChoice {
    /// The newest boot image of the source, or none if the store has none.
    #[default]
    Auto,
    /// No boot image.
    None,
    /// The boot image of the store with this id or name.
    Image(String),
    /// This file: a value that has a `/` in it.
    File(PathBuf),
}

impl BootChoice {
    /// Returns whether it is one boot image, and no other will do.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        matches!(self, Self::Image(_) | Self::File(_))
    }
}

impl FromStr for BootChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.to_owned().into())
    }
}

impl From<String> for BootChoice {
    fn from(text: String) -> Self {
        match text.as_str() {
            "auto" => Self::Auto,
            "none" => Self::None,
            path if path.contains('/') => Self::File(path.into()),
            _ => Self::Image(text),
        }
    }
}

impl From<BootChoice> for String {
    fn from(choice: BootChoice) -> Self {
        match choice {
            BootChoice::Auto => "auto".to_owned(),
            BootChoice::None => "none".to_owned(),
            BootChoice::Image(name) => name,
            BootChoice::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}
