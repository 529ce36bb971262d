//! turboOCI layers: the metadata of a file system, whose data is in a layer of a container image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use blocks::Digest;
use flate2::read::GzDecoder;
use lsmt::{FileStorage, GzipIndex, GzipTar, Layer, LsmtError, ReadAt, SegmentBudget};

use crate::config::Place;
use crate::disk_file;
use crate::error::file;
use crate::{BlobSource, ImageError, LowerConfig, RemoteLayer, Start};

/// The file of a layer's metadata that marks them.
pub(crate) const MARKER: &str = ".turbo.ociv1";
/// The index of a compressed layer.
pub(crate) const GZIP_INDEX: &str = "gzip.meta";
/// The metadata of file systems, in the order in which they are preferred.
const METADATA: [&str; 2] = ["erofs.fs.meta", "ext4.fs.meta"];
/// Bytes of one of these files: some hundredths of a layer.
const FILE_MAX: u64 = 4 << 30;
/// Bytes of the tar with all of them, and files in it.
const TAR_MAX: u64 = 3 * FILE_MAX;
const FILES_MAX: usize = 16;

/// Unpacks the tar of a layer's metadata into `dir`, and returns the layer's part of a configuration: names are
/// within `dir`.
pub(crate) fn unpack(tar_gz: &Path, dir: &Path) -> Result<LowerConfig, ImageError> {
    fs::create_dir_all(dir).map_err(file("making", dir))?;
    let opened = disk_file::open(tar_gz).map_err(file("opening", tar_gz))?;
    let found = copy_files(opened, dir).map_err(file("unpacking turboOCI metadata of", tar_gz))?;
    let has = |name: &str| found.contains(&name);
    let metadata = METADATA.iter().find(|name| has(name));
    let metadata = metadata.ok_or_else(|| ImageError::Create {
        path: dir.into(),
        rule: "the layer has no turboOCI metadata",
    })?;
    Ok(LowerConfig {
        file: (*metadata).to_owned(),
        gzip_index: match has(GZIP_INDEX) {
            true => GZIP_INDEX.to_owned(),
            false => String::new(),
        },
        ..LowerConfig::default()
    })
}

/// Returns a layer's part of a configuration, whose metadata somebody has unpacked to `dir`. What is no regular file there is
/// not taken for one: it may lead anywhere.
///
/// # Errors
/// If there are no metadata, or they do not say how long the layer is that they refer to.
pub fn unpacked_lower(dir: &Path, target: &Digest) -> Result<LowerConfig, ImageError> {
    let path_of = |name: &str| {
        let path = dir.join(name);
        let is_file = path.symlink_metadata().is_ok_and(|about| about.is_file());
        is_file.then(|| path.display().to_string())
    };
    let refused = |rule| ImageError::Rule {
        path: dir.into(),
        rule,
    };
    let metadata = METADATA.iter().find_map(|name| path_of(name));
    let index = path_of(GZIP_INDEX);
    Ok(LowerConfig {
        file: metadata.ok_or_else(|| refused("the layer has no turboOCI metadata"))?,
        gzip_index: index.ok_or_else(|| {
            refused("it refers to a layer that is not compressed, whose length nobody says")
        })?,
        target_digest: target.to_string(),
        ..LowerConfig::default()
    })
}

/// Copies the files that are known; returns their names.
fn copy_files(tar_gz: impl Read, dir: &Path) -> io::Result<Vec<&'static str>> {
    let mut tar = tar::Archive::new(GzDecoder::new(tar_gz).take(TAR_MAX));
    let mut found = Vec::new();
    // As they are: a header that renames the next file may have gigabytes, which would be read into memory.
    for (number, entry) in tar.entries()?.raw(true).enumerate() {
        let mut entry = entry?;
        if number == FILES_MAX {
            return Err(invalid("it has too many files"));
        }
        let path = entry.path_bytes().into_owned();
        let known = METADATA.into_iter().chain([GZIP_INDEX]);
        let known = { known }.find(|name| name.as_bytes() == path);
        let Some(name) = known.filter(|_| entry.header().entry_type().is_file()) else {
            continue;
        };
        if entry.size() > FILE_MAX {
            return Err(invalid("a file is too long"));
        }
        let mut to = File::create(dir.join(name))?;
        io::copy(&mut entry, &mut to)?;
        to.sync_all()?;
        found.push(name);
    }
    Ok(found)
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Opens a layer: `number` is its place, from the bottom. What it refers to is read from `remote` if it is not on
/// this machine.
pub(crate) fn open_layer(
    number: u32,
    lower: &LowerConfig,
    base: &Path,
    blob_url: &str,
    (remote, start, budget): (Option<&dyn BlobSource>, &Start, &SegmentBudget),
) -> Result<Layer, ImageError> {
    let start = start.of_layer(number);
    let Place::Local(path) = lower.place(base) else {
        return Err(ImageError::Rule {
            path: base.into(),
            rule: "the metadata of a turboOCI layer have to be a file of this machine",
        });
    };
    let failed = |source: LsmtError| ImageError::Layer {
        number: number as usize + 1,
        name: path.display().to_string(),
        source,
    };
    let meta = storage(&path)?;
    let index = match lower.gzip_index.is_empty() {
        true => None,
        false => {
            let index = storage(&base.join(&lower.gzip_index))?;
            Some(GzipIndex::open(index).map_err(failed)?)
        }
    };
    let target: Arc<dyn ReadAt> = match lower.target_file.is_empty() {
        false => start.watched(storage(&base.join(&lower.target_file))?),
        true => {
            let digest = lower.target_digest.clone();
            // Without a digest of its own, the size in the configuration is that of the target.
            let size = index.as_ref().map_or(lower.size, GzipIndex::gzip_size);
            let remote = remote.ok_or_else(|| ImageError::Remote {
                digest: digest.clone(),
            })?;
            let layer = RemoteLayer {
                number,
                digest,
                size,
                content: None,
            };
            remote.blob(blob_url, &layer, start)?
        }
    };
    let tar: Arc<dyn ReadAt> = match index {
        None => target,
        Some(index) => Arc::new(GzipTar::open(target, index).map_err(failed)?),
    };
    lsmt::open_turbo_blob_within(meta, tar, budget).map_err(failed)
}

fn storage(path: &Path) -> Result<Arc<FileStorage>, ImageError> {
    let opened = disk_file::open(path).map_err(file("opening the layer", path))?;
    Ok(Arc::new(FileStorage::new(opened)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::EntryType;

    use super::*;

    fn packed(entries: &[(&str, EntryType)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, kind) in entries {
            let mut header = tar::Header::new_ustar();
            // As hostile programs write it: unchecked.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_link_name("/etc/passwd").unwrap();
            let has_content = kind.is_file() || kind.is_gnu_longname();
            header.set_size(if has_content { 3 } else { 0 });
            header.set_cksum();
            tar.append(&header, &b"abc"[..if has_content { 3 } else { 0 }])
                .unwrap();
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&tar.into_inner().unwrap()).unwrap();
        gzip.finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> Result<(LowerConfig, Vec<String>), ImageError> {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("packed"), dir.path().join("to"));
        fs::write(&from, bytes).unwrap();
        let lower = unpack(&from, &to)?;
        let names = fs::read_dir(&to)
            .unwrap()
            .chain(fs::read_dir(dir.path()).unwrap());
        let names = names.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        Ok((lower, names))
    }

    #[test]
    fn only_files_that_are_known_are_unpacked() {
        let file = EntryType::Regular;
        let bytes = packed(&[
            ("ext4.fs.meta", file),
            ("../gzip.meta", file),
            ("/gzip.meta", file),
            ("gzip.meta", EntryType::Symlink),
            (MARKER, file),
            ("other", file),
        ]);
        let (lower, names) = unpacked(&bytes).unwrap();
        assert_eq!((&*lower.file, &*lower.gzip_index), ("ext4.fs.meta", ""));
        assert_eq!(names, ["ext4.fs.meta", "packed", "to"]);
        let both = packed(&[
            ("ext4.fs.meta", file),
            ("erofs.fs.meta", file),
            (GZIP_INDEX, file),
        ]);
        let (lower, _) = unpacked(&both).unwrap();
        assert_eq!(
            (&*lower.file, &*lower.gzip_index),
            ("erofs.fs.meta", GZIP_INDEX)
        );
    }

    #[test]
    fn headers_that_rename_a_file_are_not_heeded() {
        let bytes = packed(&[
            ("ext4.fs.meta", EntryType::Regular),
            // The next one is called "abc", and again as it is.
            ("././@LongLink", EntryType::GNULongName),
            (GZIP_INDEX, EntryType::Regular),
        ]);
        let (lower, names) = unpacked(&bytes).unwrap();
        assert_eq!(lower.gzip_index, GZIP_INDEX);
        assert_eq!(names, ["ext4.fs.meta", GZIP_INDEX, "packed", "to"]);
    }

    #[test]
    fn what_is_cut_or_has_no_metadata_is_refused() {
        let file = EntryType::Regular;
        let failed = |bytes: &[u8]| unpacked(bytes).map(drop).unwrap_err();
        assert!(
            failed(&packed(&[(MARKER, file)]))
                .to_string()
                .contains("no turboOCI")
        );
        let many = packed(&[(MARKER, file); FILES_MAX + 1]);
        let error = failed(&many);
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("too many"), "{why}");
        let whole = packed(&[("ext4.fs.meta", file)]);
        for cut in [0, 5, whole.len() / 2] {
            failed(&whole[..cut]);
        }
        failed(b"not a gzip file");
    }
}
