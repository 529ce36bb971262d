//! Unpacking a layer's tar into a directory, in the format of overlayfs's lower layers.
//!
//! Deletions in the tar become whiteouts (a character device 0/0), and a directory that
//! replaces that of lower layers is marked opaque. Nothing is written outside the directory,
//! whatever the names and links; an operation that cannot be done safely is an error.

mod attributes;
mod decompress;
mod entry;
mod implied;
mod limits;
mod root;
mod stream;
mod tree;
mod write;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use blocks::Digest;

use crate::{BlobError, LayerBlob, Watch};
use decompress::{ProgressReporter, Watched};
use root::Root;
use stream::TarStream;
use write::{Top, Writer};

pub use implied::Implied;
pub use limits::{Devices, Limits};
pub use tree::{LayerTree, Origin, read_layer, read_layer_with_places, stack};

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Extended attributes that were left out: of kinds that could mislead overlayfs, or that the
    /// file system cannot keep.
    pub skipped_xattrs: u64,
}

/// The error in a tar.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TarError {
    /// It cannot be read, decompressed or verified, or a file cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It ends in the middle.
    #[error("the tar archive is truncated")]
    Cut,
    /// It breaks a rule.
    #[error("the tar archive is invalid: {0}")]
    Rule(&'static str),
    /// It has more than allowed.
    #[error("the layer has more {0} than allowed")]
    Limit(&'static str),
    /// It has files with holes, in a form that no engine writes.
    #[error("sparse files of GNU tar are not supported: make the layer without tar --sparse")]
    Sparse,
    /// A hard link leads to a file that this layer has not.
    #[error("it is a hard link to {target:?}, which is not in this layer")]
    HardLink {
        /// Its target.
        target: String,
    },
    /// It has a device node.
    #[error("it is a device node, and those are not allowed here")]
    Device,
    /// Its files make no tree.
    #[error("its files do not form a tree")]
    Tree(#[from] blocks::TreeError),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// Why a layer could not be unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The blob, or the directory to write to, could not be opened.
    #[error("cannot open {path}")]
    Open {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The blob or its tar is not valid.
    #[error("cannot unpack the layer {layer}")]
    Layer {
        /// The short diff ID of the layer.
        layer: String,
        /// The error.
        source: TarError,
    },
    /// An entry cannot be made.
    #[error("cannot unpack {name:?} of the layer {layer}")]
    Entry {
        /// The short diff ID of the layer.
        layer: String,
        /// The entry's name, cut short.
        name: String,
        /// The cause.
        source: TarError,
    },
    /// The bytes are not those of the layer.
    #[error("the layer {layer} is damaged")]
    Damaged {
        /// The short diff ID of the layer.
        layer: String,
        /// The error.
        source: BlobError,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl UnpackError {
    /// Returns whether there was no room for the layer where it was to go.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let (Self::Open { source: error, .. }
        | Self::Layer {
            source: TarError::Io(error),
            ..
        }
        | Self::Entry {
            source: TarError::Io(error),
            ..
        }) = self
        else {
            return false;
        };
        matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Unpacks a layer into a directory, which must be empty. The watch receives how much of the blob
/// was read. The diff ID is verified at the end, so after an error the directory must be discarded.
///
/// # Errors
/// If the layer is damaged, hostile or larger than `limits`, if the directory cannot be written
/// to, or if the watch cancels.
pub fn unpack(
    layer: &LayerBlob,
    into: &Path,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<Unpacked, UnpackError> {
    let root = Root::open(into).map_err(opening(into))?;
    let blob = layer.open().map_err(opening(&layer.place.path))?;
    let at = |source: io::Error| explain(&layer.diff_id.short(), None, source.into());
    let reporter = ProgressReporter::new(watch);
    let tar = decompress::reporting_tar_of(blob, layer.diff_id, limits, &reporter).map_err(at)?;
    let writer = Writer::new(root, *limits, Top::AsTold);
    write_all(tar, layer.diff_id, writer).map(|(unpacked, _)| unpacked)
}

/// Unpacks a layer from a stream, compressed or not, into a directory,
/// which must be empty. The watch receives how much of its tar was unpacked. The diff ID is verified
/// at the end, as [`unpack`] does. The tar's entry for the top directory is ignored, as by containerd: the
/// directory stays as it is. The stream's source must verify the blob's digest, and must
/// fail instead of ending early.
///
/// # Errors
/// As [`unpack`], or if the blob cannot be read.
pub fn unpack_stream(
    blob: impl Read,
    diff_id: Digest,
    into: &Path,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<(Unpacked, Implied), UnpackError> {
    let root = Root::open(into).map_err(opening(into))?;
    let at = |source: io::Error| explain(&diff_id.short(), None, source.into());
    let tar = decompress::tar_of(blob, diff_id, limits).map_err(at)?;
    let writer = Writer::new(root, *limits, Top::Left);
    write_all(Watched::new(tar, watch), diff_id, writer)
}

/// Makes all that a tar says.
fn write_all(
    tar: impl Read,
    diff_id: Digest,
    mut writer: Writer,
) -> Result<(Unpacked, Implied), UnpackError> {
    let short = diff_id.short();
    let at = |name: Option<&[u8]>, source: TarError| explain(&short, name, source);
    let mut tar = TarStream::new(tar);
    while let Some(entry) = tar.next_entry().map_err(|error| at(None, error))? {
        writer
            .write(&entry, &mut tar.content())
            .map_err(|error| at(Some(&entry.name), error))?;
    }
    writer.finish().map_err(|error| at(None, error))
}

/// Says what could not be opened.
fn opening(path: &Path) -> impl FnOnce(io::Error) -> UnpackError {
    let path = path.to_owned();
    move |source| UnpackError::Open { path, source }
}

/// Finds in an error what a caller would want to tell apart.
fn explain(layer: &str, name: Option<&[u8]>, source: TarError) -> UnpackError {
    let layer = layer.to_owned();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&source);
    while let Some(error) = cause {
        if let Some(TarError::Cancelled) = error.downcast_ref() {
            return UnpackError::Cancelled;
        }
        if let Some(&source) = error.downcast_ref::<BlobError>() {
            return UnpackError::Damaged { layer, source };
        }
        // An `io::Error` does not show the error that it carries as its source.
        let carried = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause = match (error.downcast_ref::<TarError>(), carried) {
            (Some(TarError::Io(error)), _) => Some(error),
            (_, Some(carried)) => Some(carried),
            _ => error.source(),
        };
    }
    match name {
        Some(name) => UnpackError::Entry {
            layer,
            name: String::from_utf8_lossy(name).chars().take(200).collect(),
            source,
        },
        None => UnpackError::Layer { layer, source },
    }
}
