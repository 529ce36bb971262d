//! The kind of a mount's source, before it is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use localfs::SourceRoot;
use tracer::TraceInfo;

use crate::source::{timestamp, trace_info};
use node_api::nic::NicName;

/// Where the source of a mount is.
#[derive(Debug)]
pub enum From {
    /// On a disk of this machine.
    Disk(Arc<SourceRoot>),
    /// At a block service: `nic:NAME`.
    Nic(NicName),
}

impl From {
    /// # Errors
    /// If it is not a source, or does not respond within the deadline.
    pub fn open(source: &Path, deadline: Duration) -> anyhow::Result<Self> {
        Ok(match NicName::of_source(source)? {
            Some(name) => Self::Nic(name),
            None => Self::Disk(Arc::new(SourceRoot::open_within(source, deadline)?)),
        })
    }

    /// Returns the source, if it is on a disk.
    pub const fn root(&self) -> Option<&Arc<SourceRoot>> {
        match self {
            Self::Disk(root) => Some(root),
            Self::Nic(_) => None,
        }
    }

    /// Returns what the mount table and `status` show.
    pub fn shown(&self) -> PathBuf {
        match self {
            Self::Disk(root) => root.path().to_path_buf(),
            Self::Nic(name) => name.label().into(),
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
        }
    }
}
