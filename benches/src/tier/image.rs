//! The images on the stage that `scripts/images/tiers.sh` makes.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

/// What an image is for: the categories of the paper's evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Category {
    /// A distribution as it is.
    Distribution,
    /// A database, or a store of keys.
    Database,
    /// A language with its libraries.
    Language,
    /// A web server.
    WebServer,
    /// A web framework with an application.
    WebFramework,
    /// An application for the command line.
    Application,
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Distribution => "distribution",
            Self::Database => "database",
            Self::Language => "language",
            Self::WebServer => "web server",
            Self::WebFramework => "web framework",
            Self::Application => "application",
        })
    }
}

/// What the stage says of an image.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ImageFacts {
    /// What it is for.
    pub category: Category,
}

/// Reads what the stage says of its images, by their names.
pub(super) fn all(stage: &Path) -> anyhow::Result<BTreeMap<String, ImageFacts>> {
    let dir = stage.join("images");
    let mut images = BTreeMap::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))? {
        let path = entry?.path();
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let facts = serde_json::from_slice(&text);
        let facts = facts.with_context(|| format!("reading {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        images.insert(name.into_owned(), facts);
    }
    ensure!(!images.is_empty(), "{} has no images", dir.display());
    Ok(images)
}
