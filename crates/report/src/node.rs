//! The data of a page about a node.

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
    /// The maximum size of the store.
    pub store_max_bytes: u64,
    /// Bytes of the store's files.
    pub store_bytes: u64,
    /// Bytes that the boot images would use without sharing.
    pub unshared_bytes: u64,
    /// Boot images in the store; a container image has one for each layer.
    pub boot_images: u64,
    /// The images, by name.
    pub images: Vec<ImageReport>,
    /// Every mount, also of what has no boot image.
    pub mounts: Vec<MountReport>,
    /// Measurements of other images.
    pub measured: Vec<Comparison>,
}
