//! What a page about a node says.

use serde::{Deserialize, Serialize};

use crate::image::ImageReport;
use crate::measured::Comparison;
use crate::mount::MountReport;

/// Everything that is known of a node's boot images.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// What the node is called.
    pub name: String,
    /// The directory of the store.
    pub store: String,
    /// Bytes that the store may take.
    pub store_max_bytes: u64,
    /// Bytes of the store's files.
    pub store_bytes: u64,
    /// Bytes that the boot images would take if they shared nothing.
    pub unshared_bytes: u64,
    /// Boot images in the store; a container image has one for each layer.
    pub boot_images: u64,
    /// The images, by name.
    pub images: Vec<ImageReport>,
    /// Every mount, also of what has no boot image.
    pub mounts: Vec<MountReport>,
    /// Measurements of what is none of the images.
    pub measured: Vec<Comparison>,
}
