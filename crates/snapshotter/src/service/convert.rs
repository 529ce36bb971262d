//! Conversion of our types to those of containerd's API.

use std::error::Error as _;
use std::time::SystemTime;

use containerd_client::services::v1::snapshots as api;
use containerd_client::types;
use prost_types::Timestamp;
use tonic::{Code, Status};

use crate::error::SnapshotError;
use crate::overlay::Mount;
use crate::snapshot::{Kind, Snapshot, Usage};

pub(super) fn info(snapshot: Snapshot) -> api::Info {
    let kind = match snapshot.kind {
        Kind::Active => api::Kind::Active,
        Kind::View => api::Kind::View,
        Kind::Committed => api::Kind::Committed,
    };
    api::Info {
        kind: kind.into(),
        name: snapshot.name,
        parent: snapshot.parent.unwrap_or_default(),
        labels: snapshot.labels.into_iter().collect(),
        created_at: Some(timestamp(snapshot.created)),
        updated_at: Some(timestamp(snapshot.updated)),
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    time.into()
}

pub(super) fn usage(usage: Usage) -> api::UsageResponse {
    api::UsageResponse {
        inodes: i64::try_from(usage.inodes).unwrap_or(i64::MAX),
        size: i64::try_from(usage.bytes).unwrap_or(i64::MAX),
    }
}

pub(super) fn mounts(mounts: Vec<Mount>) -> Vec<types::Mount> {
    let each = mounts.into_iter();
    each.map(|mount| types::Mount {
        r#type: mount.fs_type.to_owned(),
        source: mount.source,
        target: String::new(),
        options: mount.options,
    })
    .collect()
}

/// containerd decides by the code, and shows users the message: it includes the causes.
pub(super) fn status(error: &SnapshotError) -> Status {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    Status::new(code(error), words)
}

fn code(error: &SnapshotError) -> Code {
    match error {
        SnapshotError::NotFound { .. } => Code::NotFound,
        SnapshotError::AlreadyExists { .. } => Code::AlreadyExists,
        SnapshotError::WrongKind { .. }
        | SnapshotError::HasChildren { .. }
        | SnapshotError::NotStaged { .. }
        | SnapshotError::MixedLayers { .. }
        | SnapshotError::NoDevice { .. }
        | SnapshotError::OwnDevice { .. }
        | SnapshotError::Lost { .. } => Code::FailedPrecondition,
        SnapshotError::ParentNotCommitted { .. }
        | SnapshotError::OtherParent { .. }
        | SnapshotError::Immutable { .. }
        | SnapshotError::Filter(_)
        | SnapshotError::TooLarge { .. }
        | SnapshotError::BadMapping { .. }
        | SnapshotError::BadBlockLayer { .. }
        | SnapshotError::Empty { .. } => Code::InvalidArgument,
        SnapshotError::BlockImage { .. } => Code::Unavailable,
        SnapshotError::Damaged { .. } => Code::DataLoss,
        error if error.is_no_space() => Code::ResourceExhausted,
        _ => Code::Internal,
    }
}
