//! The specification of a mount: a client sends it, and the node stores it.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};

use crate::boot_choice::BootChoice;
use crate::image::ImageSpec;
use crate::nic::{NicName, NicSpec};
use crate::serve_mode::ServeMode;

/// One mount, as requested. Two requests for the same place are the same mount if their specs are
/// equal; unknown fields are refused rather than ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    /// A directory tree or a disk image; absolute. Or `nic:NAME`, a source of a block service; or
    /// `overlaybd:PATH`, a block image.
    pub source: PathBuf,
    /// An existing directory; absolute, without symbolic links. It may be the source itself.
    pub mountpoint: PathBuf,
    /// Where boot images are kept.
    pub store: PathBuf,
    /// The boot image to serve from.
    #[serde(default)]
    pub boot: BootChoice,
    /// How to serve; by the source if absent.
    #[serde(default)]
    pub mode: Option<ServeMode>,
    /// Whether the boot image is pushed into the page cache.
    #[serde(default = "yes")]
    pub inject: bool,
    /// Whether pushed pages are locked in memory.
    #[serde(default)]
    pub lock: bool,
    /// At most so many bytes are pushed.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// How far the kernel reads ahead; its own default if absent.
    #[serde(default)]
    pub readahead_kib: Option<u32>,
    /// Threads that answer requests.
    #[serde(default = "two")]
    pub threads: u8,
    /// Whether boots that drift from their recording are learned from.
    #[serde(default)]
    pub auto: bool,
    /// Whether set-user-id bits and devices of the source count.
    #[serde(default)]
    pub suid_dev: bool,
    /// Whether requests for extended attributes are answered also where no file has any. Omitted unless
    /// requested: nodes and workers of an earlier release refuse fields that they do not know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_xattrs: bool,
    /// Whether the source is opened below whatever is mounted over it: for programs that mount over
    /// the source itself, where others do, too.
    #[serde(default)]
    pub plain: bool,
    /// Whether the node makes it again after a reboot. For any other mount, its client
    /// requests it again.
    #[serde(default = "yes")]
    pub lasting: bool,
    /// What the mount table shows as its source; the source's path if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// The block service and its options; needed if the source is served by it.
    #[serde(default)]
    pub nic: Option<NicSpec>,
    /// How the source is opened if it is a block image; left out for any other, as `all_xattrs` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Whether the file of a block image with a writable layer, or of a raw disk, can be written to; left out as
    /// `all_xattrs` is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub writable: bool,
}

/// Where the bytes of a mount are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceLocation {
    /// On a disk of this machine, and with a block service beside it, if there is one.
    Disk(Option<NicSpec>),
    /// At a block service only, by this name.
    Nic(NicSpec, NicName),
    /// In the layers of the block image at this path.
    Image(ImageSpec, PathBuf),
}

impl MountSpec {
    /// Returns the location of the source.
    ///
    /// # Errors
    /// If fields contradict each other.
    pub fn place(&self) -> anyhow::Result<SourceLocation> {
        if let Some(image) = ImageSpec::of_source(&self.source) {
            ensure!(
                self.nic.is_none() && !self.auto && !self.boot.is_named(),
                "a boot image, nic and auto are not for block images"
            );
            let spec = self.image.clone().unwrap_or_default();
            spec.check(image)?;
            return Ok(SourceLocation::Image(spec, image.to_owned()));
        }
        ensure!(
            self.image.is_none() && !self.writable,
            "image and writable are for block images (overlaybd:PATH)"
        );
        match (NicName::of_source(&self.source)?, &self.nic) {
            (None, None) => Ok(SourceLocation::Disk(None)),
            (None, Some(spec)) => {
                spec.beside()?;
                Ok(SourceLocation::Disk(Some(spec.clone())))
            }
            (Some(name), Some(spec)) => {
                spec.check_alone()?;
                Ok(SourceLocation::Nic(spec.clone(), name))
            }
            (Some(name), None) => bail!("{} needs nic.address", name.label()),
        }
    }

    /// Returns whether its source is on a disk of this machine.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.place(), Ok(SourceLocation::Disk(_)))
    }
}

const fn yes() -> bool {
    true
}

const fn two() -> u8 {
    2
}
