//! The kind of a mount's source, before it is opened.

use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::SourceId;
use localfs::SourceRoot;
use tracer::TraceInfo;

use crate::source::{timestamp, trace_info};
use node_api::image::ImageSpec;
use node_api::nic::NicName;

/// Where the source of a mount is.
#[derive(Debug)]
pub enum From {
    /// On a disk of this machine.
    Disk(Arc<SourceRoot>),
    /// At a block service: `nic:NAME`.
    Nic(NicName),
    /// In the layers of a block image: `overlaybd:PATH`.
    Image(PathBuf),
}

impl From {
    /// # Errors
    /// If it is not a source, or does not respond within the deadline.
    pub fn open(source: &Path, deadline: Duration) -> anyhow::Result<Self> {
        if let Some(image) = ImageSpec::of_source(source) {
            return Ok(Self::Image(image.to_owned()));
        }
        Ok(match NicName::of_source(source)? {
            Some(name) => Self::Nic(name),
            None => Self::Disk(Arc::new(SourceRoot::open_within(source, deadline)?)),
        })
    }

    /// Returns the source, if it is on a disk.
    pub const fn root(&self) -> Option<&Arc<SourceRoot>> {
        match self {
            Self::Disk(root) => Some(root),
            Self::Nic(_) | Self::Image(_) => None,
        }
    }

    /// Returns what the mount table and `status` show.
    pub fn shown(&self) -> PathBuf {
        match self {
            Self::Disk(root) => root.path().to_path_buf(),
            Self::Nic(name) => name.label().into(),
            Self::Image(image) => ImageSpec::source(image),
        }
    }

    /// Returns the description of the source for a trace.
    pub fn trace_info(&self, started: SystemTime) -> TraceInfo {
        match self {
            Self::Disk(root) => trace_info(root, started),
            Self::Nic(name) => TraceInfo {
                label: name.label().into_bytes(),
                source: name.source_id(),
                started: timestamp(started),
            },
            Self::Image(image) => {
                let label = ImageSpec::source(image).into_os_string().into_vec();
                TraceInfo {
                    source: SourceId::of_label(&label),
                    label,
                    started: timestamp(started),
                }
            }
        }
    }
}
