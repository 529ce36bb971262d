//! Why a document of an image cannot be used.

/// Why a document of an image cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// It cannot be decoded.
    #[error("the {what} cannot be decoded")]
    Json {
        /// The document.
        what: &'static str,
        /// The error, with its place.
        source: serde_json::Error,
    },
    /// It is well formed, and breaks a rule.
    #[error("the {what} is invalid: {rule}")]
    Rule {
        /// The document.
        what: &'static str,
        /// The broken rule.
        rule: &'static str,
    },
    /// The manifest and the configuration do not belong together.
    #[error(
        "the image is invalid: its manifest has {layers} layers, and its configuration {diff_ids}"
    )]
    LayerCount {
        /// Layers in the manifest.
        layers: usize,
        /// Layers in the configuration.
        diff_ids: usize,
    },
    /// It is another kind of artifact.
    #[error("it is not a container image: its configuration is of type {media_type:?}")]
    NotAnImage {
        /// The type of its configuration.
        media_type: String,
    },
    /// There is no image for this kind of machine.
    #[error("there is no image for {wanted}; there is {have}")]
    NoSuchPlatform {
        /// The platform that is needed.
        wanted: String,
        /// The platforms that are there, cut short.
        have: String,
    },
}

/// Returns names for a message: the first few, and how many more there are.
pub fn shown(names: impl IntoIterator<Item = String>) -> String {
    const SHOWN: usize = 8;
    let mut names: Vec<String> = names.into_iter().collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let short = |name: &String| name.chars().take(80).collect::<String>();
    let list: Vec<String> = names.iter().map(short).collect();
    match (list.is_empty(), more) {
        (true, _) => "none with a name".to_owned(),
        (false, 0) => list.join(", "),
        (false, _) => format!("{} and {more} more", list.join(", ")),
    }
}
