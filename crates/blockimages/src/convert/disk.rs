//! A disk as a block image: one layer with all that is not zeros.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use blocks::{BlockDevice, Content, DeviceAccess};
use lsmt::{BlobOptions, Compression, LayerInfo, Uuid, Wrapper, write_layer};

use super::layout::Layout;
use super::{ConvertError, ConvertOptions};
use crate::disk_file;
use crate::error::file;
use crate::{DeviceConfig, LowerConfig, RawDevice};

/// Bytes that are read at once.
const COPY_BYTES: u64 = 256 << 10;
/// What is zeros is left out in pieces of this: a block of the file systems on top.
const ZEROS_BYTES: usize = 4096;
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
/// What is read of a qcow2's header: up to the features that a reader has to know, which version 3 has.
const QCOW2_HEADER_BYTES: usize = 80;
/// The data is in another file, which the header names.
const QCOW2_EXTERNAL_DATA: u64 = 4;

/// A disk that was converted.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ConvertedDisk {
    /// Its configuration for serving the device.
    pub config: PathBuf,
    /// The digest of its only layer.
    pub digest: blocks::Digest,
    /// The layer's bytes.
    pub size: u64,
    /// Bytes of the device.
    pub device: u64,
}

/// Returns whether a disk is a qcow2, which `qemu-img` reads for [`convert_disk`].
#[must_use]
pub fn is_qcow2(disk: &Path) -> bool {
    let mut magic = [0; QCOW2_MAGIC.len()];
    let read = disk_file::open(disk).and_then(|mut disk| disk.read_exact(&mut magic));
    read.is_ok() && magic == QCOW2_MAGIC
}

/// Converts a raw disk, or a qcow2 by `qemu-img`, into the layout in `dir`, under the name `name`. The watch
/// receives how much of the device is done.
///
/// # Errors
/// If the disk cannot be read, if another process changes the layout, or if the watch cancels.
pub fn convert_disk(
    disk: &Path,
    dir: &Path,
    name: &str,
    options: &ConvertOptions,
    watch: oci::Watch<'_>,
) -> Result<ConvertedDisk, ConvertError> {
    let layout = Layout::open(dir, name)?;
    let raw = Raw::of(disk, &dir.join(".raw"))?;
    let device = RawDevice::open(&raw.path, DeviceAccess::ReadOnly)?;
    let size = device.info().size;
    let incoming = layout.new_blob()?;
    let info = LayerInfo {
        uuid: Uuid::NIL,
        virtual_size: size,
        ..LayerInfo::default()
    };
    let blob_options = BlobOptions {
        compression: Compression::ZFile(options.compression),
        wrapper: Wrapper::Tar,
    };
    write_layer::<ConvertError>(incoming.storage(), blob_options, &info, |body| {
        copy(&device, watch, &mut |at, bytes| body.append(at, bytes))
    })?;
    let (blob, content) = incoming.publish()?;
    let config = layout.write_config(&DeviceConfig {
        repo_blob_url: String::new(),
        lowers: vec![LowerConfig {
            file: format!("../blobs/sha256/{}", blob.digest.hex()),
            digest: blob.digest.to_string(),
            size: blob.size,
            content: Some(content),
            ..LowerConfig::default()
        }],
        ..DeviceConfig::default()
    })?;
    Ok(ConvertedDisk {
        config,
        digest: blob.digest,
        size: blob.size,
        device: size,
    })
}

/// A raw disk; one that was made for this is removed afterwards.
struct Raw {
    path: PathBuf,
    made: bool,
}

impl Raw {
    fn of(disk: &Path, scratch: &Path) -> Result<Self, ConvertError> {
        let mut header = [0; QCOW2_HEADER_BYTES];
        let mut opened = disk_file::open(disk).map_err(file("opening", disk))?;
        // One that is shorter is no qcow2.
        if opened.read_exact(&mut header).is_err() || !header.starts_with(&QCOW2_MAGIC) {
            let path = disk.to_owned();
            return Ok(Self { path, made: false });
        }
        refuse_other_files(&header)?;
        let raw = Self {
            path: scratch.to_owned(),
            made: true,
        };
        let mut program = Command::new("qemu-img");
        program.args(["convert", "-f", "qcow2", "-O", "raw", "-S", "4k", "--"]);
        program.args([disk, scratch]).stdin(Stdio::null());
        let status = program
            .status()
            .map_err(file("running qemu-img on", disk))?;
        match status.success() {
            true => Ok(raw),
            false => Err(ConvertError::Rule {
                rule: "qemu-img cannot read this qcow2",
            }),
        }
    }
}

/// Refuses a qcow2 that names other files: whoever wrote it, perhaps a guest to its raw disk, chose which files of this
/// machine would be in the image.
#[expect(clippy::big_endian_bytes, reason = "qcow2's")]
fn refuse_other_files(header: &[u8; QCOW2_HEADER_BYTES]) -> Result<(), ConvertError> {
    let word = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| header[at + i]));
    let has_backing_file = word(8) != 0;
    let version = word(0) & u64::from(u32::MAX);
    let has_data_file = version >= 3 && word(72) & QCOW2_EXTERNAL_DATA != 0;
    match has_backing_file || has_data_file {
        false => Ok(()),
        true => Err(ConvertError::Rule {
            rule: "this qcow2 is based on another file: if that is intended, make one of both \
                   (qemu-img convert -O qcow2)",
        }),
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Hands on all that is not zeros.
fn copy(
    device: &dyn BlockDevice,
    watch: oci::Watch<'_>,
    append: &mut dyn FnMut(u64, &[u8]) -> lsmt::Result<()>,
) -> Result<(), ConvertError> {
    let rule = |_| ConvertError::Rule {
        rule: "the disk cannot be read",
    };
    let size = device.info().size;
    let mut buffer = vec![0; usize::try_from(COPY_BYTES).unwrap_or(ZEROS_BYTES)];
    let mut at = 0;
    while at < size {
        let extents = device.extents(at..size, 1).map_err(rule)?;
        let Some(extent) = extents.first() else {
            break;
        };
        let end = at + extent.len;
        while extent.content == Content::Data && at < end {
            if watch(at).is_break() {
                return Err(ConvertError::Cancelled);
            }
            let len = usize::try_from((end - at).min(COPY_BYTES)).unwrap_or(ZEROS_BYTES);
            let piece = &mut buffer[..len];
            device.read_at(at, piece).map_err(rule)?;
            append_data(at, piece, append)?;
            at += len as u64;
        }
        at = end;
    }
    Ok(())
}

/// Hands on the runs of blocks that are not all zeros.
fn append_data(
    at: u64,
    bytes: &[u8],
    append: &mut dyn FnMut(u64, &[u8]) -> lsmt::Result<()>,
) -> lsmt::Result<()> {
    let is_zeros = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut start = 0;
    while start < bytes.len() {
        let rest = &bytes[start..];
        let blocks = || rest.chunks(ZEROS_BYTES);
        let zeros = blocks().take_while(|block| is_zeros(block)).count() * ZEROS_BYTES;
        let from = zeros.min(rest.len());
        let data = rest[from..].chunks(ZEROS_BYTES);
        let data = data.take_while(|block| !is_zeros(block)).count() * ZEROS_BYTES;
        let to = (from + data).min(rest.len());
        if to > from {
            append(at + (start + from) as u64, &rest[from..to])?;
        }
        start += to;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qcow2_that_names_other_files_is_refused() {
        let header = |version: u8, backing: u8, features: u8| {
            let mut header = [0; QCOW2_HEADER_BYTES];
            header[..4].copy_from_slice(&QCOW2_MAGIC);
            (header[7], header[15], header[79]) = (version, backing, features);
            header
        };
        for (version, backing, features, is_refused) in [
            (2, 0, 0, false),
            (3, 0, 0, false),
            // Dirty, and compressed by zstd.
            (3, 0, 9, false),
            // Version 2 has no features there.
            (2, 0, 4, false),
            (2, 1, 0, true),
            (3, 1, 0, true),
            (3, 0, 4, true),
        ] {
            let refused = refuse_other_files(&header(version, backing, features)).is_err();
            assert_eq!(refused, is_refused, "{version} {backing} {features}");
        }
    }
}
