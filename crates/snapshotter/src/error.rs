//! What can go wrong, sorted by what a client of containerd can do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::filter::FilterError;
use crate::kind::Kind;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No snapshot has this key.
    #[error("snapshot {key:?} does not exist")]
    NotFound {
        /// The requested key.
        key: String,
    },
    /// The key or name is taken.
    #[error("snapshot {key:?} already exists")]
    AlreadyExists {
        /// The key that was to be made.
        key: String,
    },
    /// A parent must be committed.
    #[error("parent {parent:?} is {kind}, not committed")]
    ParentNotCommitted {
        /// The parent that was named.
        parent: String,
        /// Its kind.
        kind: Kind,
    },
    /// The snapshot has another parent already.
    #[error("snapshot {key:?} stands on {has:?}: it cannot be committed on {asked:?}")]
    OtherParent {
        /// The snapshot.
        key: String,
        /// Its parent.
        has: String,
        /// The parent that was named.
        asked: String,
    },
    /// The request needs a snapshot of another kind.
    #[error("snapshot {key:?} is {kind}: {needed}")]
    WrongKind {
        /// The snapshot.
        key: String,
        /// Its kind.
        kind: Kind,
        /// What the request needs, as a sentence.
        needed: &'static str,
    },
    /// It has children.
    #[error("cannot remove snapshot {key:?}: {child:?} has it as its parent")]
    HasChildren {
        /// The snapshot.
        key: String,
        /// One of its children.
        child: String,
    },
    /// The field is not the client's to change.
    #[error("field {field:?} of snapshot {key:?} cannot be updated; only labels can")]
    Immutable {
        /// The snapshot.
        key: String,
        /// The path of the field.
        field: String,
    },
    /// A filter that does not parse.
    #[error("the filter is invalid")]
    Filter(#[from] FilterError),
    /// A request beyond the limits.
    #[error("{what} is {actual} {unit}; at most {limit} are allowed")]
    TooLarge {
        /// The item that is too large.
        what: &'static str,
        /// Its size.
        actual: usize,
        /// How large it may be.
        limit: usize,
        /// The unit of these.
        unit: &'static str,
    },
    /// User IDs that no container can have.
    #[error(
        "the label {label} is {value:?}: it must be ranges of IDs that begin with that of root, as the other one is \
             ({wanted})"
    )]
    BadMapping {
        /// The label.
        label: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        wanted: String,
    },
    /// A layer of a block image that cannot be served.
    #[error("the layer with the blob {digest:?} cannot be used: {why}")]
    BadBlockLayer {
        /// Its blob, as the label has it.
        digest: String,
        /// The reason.
        why: String,
    },
    /// A block image on something else: its device replaces all files, and cannot be stacked.
    #[error(
        "snapshot {key:?} is the layer of a block image, and {below:?} below it is none: convert the whole image"
    )]
    MixedLayers {
        /// The layer.
        key: String,
        /// The first one below that is none.
        below: String,
    },
    /// The file system of a block image cannot be had.
    #[error("the block image of snapshot {key:?} cannot be served")]
    BlockImage {
        /// Its topmost layer.
        key: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A snapshot that cannot have the device that its label asks for.
    #[error(
        "snapshot {key:?} cannot write to a device (overlaybd.writable): {why}; or leave the label out, and it gets an overlay"
    )]
    NoDevice {
        /// The snapshot.
        key: String,
        /// The reason.
        why: &'static str,
    },
    /// The device of a snapshot cannot be used.
    #[error("the device that snapshot {key:?} writes to cannot be {doing}")]
    OwnDevice {
        /// The operation: what cannot be done to it.
        doing: &'static str,
        /// The snapshot.
        key: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request without a name.
    #[error("the {what} of a snapshot cannot be empty")]
    Empty {
        /// The empty item.
        what: &'static str,
    },
    /// The directory has snapshots of another snapshotter.
    #[error(
        "{} has snapshots but no metadata.redb: they belong to another snapshotter, or their records are lost; \
         choose another directory, or remove {} by hand",
        root.display(),
        root.join("snapshots").display()
    )]
    NotOurs {
        /// The directory.
        root: PathBuf,
    },
    /// A directory whose name cannot be passed to overlayfs.
    #[error("{path:?} cannot be used: overlayfs cannot handle ',' and ':' in a path")]
    Unmountable {
        /// The directory.
        path: PathBuf,
    },
    /// The snapshot's directory is missing.
    #[error(
        "the directory {dir:?} of snapshot {key:?} is lost; remove the snapshot and prepare it again"
    )]
    Lost {
        /// The snapshot.
        key: String,
        /// Its path.
        dir: PathBuf,
    },
    /// Background work was cancelled.
    #[error("it was stopped")]
    Stopped,
    /// A layer was changed while it was copied, or the copy is damaged.
    #[error("{path:?} differs from its original")]
    NotACopy {
        /// The copy.
        path: PathBuf,
    },
    /// No layer is staged by that name, or its process has ended.
    #[error(
        "no layer is staged as {name:?}, or the process that unpacked it has ended; pull it again"
    )]
    NotStaged {
        /// Its name.
        name: String,
    },
    /// The fast tier has no room.
    #[error(
        "the fast tier {dir:?} is full: {used} of {max} bytes are used; remove containers, raise its limit (max=), or let layers go to the disk when it is full (`upper_full`)"
    )]
    UpperFull {
        /// The tier.
        dir: PathBuf,
        /// Bytes in use.
        used: u64,
        /// Bytes it may hold.
        max: u64,
    },
    /// The metadata cannot be read or written.
    #[error("cannot {doing} in the metadata")]
    Catalog {
        /// The operation.
        doing: &'static str,
        /// The cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// A record that this version cannot have written.
    #[error("the record of snapshot {key:?} is damaged: {why}")]
    Damaged {
        /// The snapshot.
        key: String,
        /// The reason.
        why: String,
    },
    /// The metadata is of another version.
    #[error("the metadata has format {found}, and this program knows {known}")]
    Format {
        /// The format found.
        found: u64,
        /// The format known.
        known: u64,
    },
    /// A file or directory failed.
    #[error("cannot {doing} {path:?}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// The result of a request.
pub type Result<T, E = SnapshotError> = std::result::Result<T, E>;

impl SnapshotError {
    /// Returns a function that wraps an I/O error on `path`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }

    /// Adds the operation, if the metadata failed.
    pub(crate) fn while_doing(mut self, what: &'static str) -> Self {
        if let Self::Catalog { doing, .. } = &mut self {
            *doing = what;
        }
        self
    }

    /// Returns whether a file or directory does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Returns whether another process has the root.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Catalog { source, .. }
            if matches!(**source, redb::Error::DatabaseAlreadyOpen))
    }

    /// Returns whether a disk was full.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Catalog { source, .. } => match &**source {
                redb::Error::Io(source) => source,
                _ => return false,
            },
            Self::UpperFull { .. } => return true,
            _ => return false,
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for SnapshotError {
            fn from(source: redb::$error) -> Self {
                Self::Catalog {
                    doing: "read or write",
                    source: Box::new(source.into()),
                }
            }
        }
    )*};
}

from_redb!(
    CommitError,
    DatabaseError,
    StorageError,
    TableError,
    TransactionError
);
