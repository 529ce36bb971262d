//! Why an image cannot be converted or pushed.

use std::path::PathBuf;

use crate::ImageError;

/// An error of converting or pushing an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A file of the layout cannot be used.
    #[error(transparent)]
    File(#[from] ImageError),
    /// A blob cannot be written.
    #[error("a layer cannot be written")]
    Layer(#[from] lsmt::LsmtError),
    /// A layer cannot be read.
    #[error("a layer cannot be read")]
    Unpack(#[from] oci::unpack::UnpackError),
    /// The layers do not make a tree.
    #[error("the layers do not make a tree of files")]
    Tree(#[from] blocks::TreeError),
    /// The tree cannot be a file system.
    #[error("the tree cannot be written as a file system")]
    Erofs(#[from] erofs::ErofsError),
    /// The same, of an ext4.
    #[error("the tree cannot be written as a file system")]
    Ext4(#[source] ext4::Ext4Error),
    /// A layer cannot be referred to.
    #[error("the layer cannot be referred to")]
    Turbo {
        /// The cause.
        source: std::io::Error,
    },
    /// A registry lacks a layer that metadata refer to.
    #[error(
        "the repository has no layer {digest}, to which the image refers: push the container image to it first"
    )]
    NoTarget {
        /// Its digest.
        digest: blocks::Digest,
    },
    /// A registry lacks a layer of the image below.
    #[error(
        "the repository has no layer {digest} of the image below, and takes it from no other: push that image to it \
         first"
    )]
    NoLayer {
        /// Its digest.
        digest: blocks::Digest,
    },
    /// Layers were written on another image.
    #[error(
        "the layers were written on another image: layer {number} from the bottom differs, of {layers} that they were \
         written on and {of_base} of the image below; name the image that they were written on (`base`)"
    )]
    OtherStack {
        /// The first layer that differs, from 1 on.
        number: usize,
        /// Layers that they were written on.
        layers: usize,
        /// Layers of the image.
        of_base: usize,
    },
    /// A layer is not what it was.
    #[error("{} was changed: its digest is {found} now", .path.display())]
    OtherLayer {
        /// Its file.
        path: PathBuf,
        /// Its digest.
        found: blocks::Digest,
    },
    /// A request to the registry failed.
    #[error("a request to the registry failed")]
    Registry(#[from] oci::registry::RegistryError),
    /// A document of the image is invalid.
    #[error("a document of the image is invalid")]
    Document(#[from] oci::DocumentError),
    /// The image cannot be opened.
    #[error("the image cannot be opened")]
    Image(#[from] oci::ImageError),
    /// The same, of what is not decoded further.
    #[error("the image's configuration is invalid")]
    Config(#[from] serde_json::Error),
    /// The image breaks a rule.
    #[error("the image cannot be used: {rule}")]
    Rule {
        /// The rule.
        rule: &'static str,
    },
    /// The device is too small for the image.
    #[error("a device of {size} bytes is too small for the image: make it larger (`size`)")]
    TooSmall {
        /// Bytes of the device.
        size: u64,
    },
    /// The name cannot be a directory's.
    #[error(
        "{name:?} cannot name an image here: use letters, digits, dots, dashes and underscores"
    )]
    Name {
        /// Its name.
        name: String,
    },
    /// Another process changes the layout.
    #[error("another process changes the layout {}: wait for it", .0.display())]
    InUse(PathBuf),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// There is no such image.
    #[error("there is no image {0}")]
    NoImage(String),
}

impl From<ext4::Ext4Error> for ConvertError {
    fn from(error: ext4::Ext4Error) -> Self {
        match error {
            ext4::Ext4Error::TooSmall { bytes: size } => Self::TooSmall { size },
            error => Self::Ext4(error),
        }
    }
}
