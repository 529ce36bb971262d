//! Boot images that are bound to a layer's directory which its engine has removed.
//!
//! They can never be of use again: an engine gives no directory the name of a former one, and neither do
//! we to those that images of no engine are unpacked in for a recording. What was
//! recorded of the layer itself has the layer's own name as well, and stays, for the layer may be
//! pulled again. Whatever is not surely gone counts as in use: the disk with the engine's directory
//! may only be away.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use blocks::Digest;
use bootimg::{ImageId, Store, StoredImage, place_name};

use recording::unpacked::PREFIX as UNPACKED;

/// A boot image that nothing will ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unbound {
    pub(super) id: ImageId,
    /// The directory that is gone.
    pub(super) dir: PathBuf,
    /// Bytes that its removal frees.
    pub(super) own_bytes: u64,
}

/// Returns the boot images of a store whose layer directories are gone.
///
/// # Errors
/// If the store cannot be read.
pub(super) fn unbound(store: &Store) -> anyhow::Result<Vec<Unbound>> {
    let images = store.list().context("listing the boot images")?;
    Ok(images
        .into_iter()
        .filter(|image| !image.pinned && only_for_a_place(image))
        .filter_map(|image| {
            let dir = PathBuf::from(image.info.source.label.strip_prefix("dir:")?);
            is_gone(&dir).then_some(Unbound {
                id: image.info.id,
                dir,
                own_bytes: image.own_bytes,
            })
        })
        .collect())
}

/// Whether all of its names bind it to the place that it is of.
fn only_for_a_place(image: &StoredImage) -> bool {
    let is_bound = |name: &String| {
        let layer = name
            .split_once('@')
            .and_then(|(layer, _)| layer.parse().ok());
        layer.is_some_and(|layer: Digest| *name == place_name(&layer, image.info.source.id))
    };
    !image.names.is_empty() && image.names.iter().all(is_bound)
}

/// Whether an engine had a layer in this directory, and has removed it.
fn is_gone(dir: &Path) -> bool {
    let Some((own, all)) = dir.parent().and_then(|own| Some((own, own.parent()?))) else {
        return false;
    };
    let is_missing = matches!(own.symlink_metadata(), Err(e) if e.kind() == ErrorKind::NotFound);
    let (Some(root), Some(name)) = (all.parent(), own.file_name()) else {
        return false;
    };
    is_missing
        && match (all.file_name(), dir.file_name()) {
            (Some(all), Some(diff)) if all == "overlay2" && diff == "diff" => {
                docker_has_no(root, name)
            }
            (Some(recorded), _) if is_unpacked_in(recorded, own) => root.is_dir(),
            (Some(snapshots), Some(fs)) if snapshots == "snapshots" && fs == "fs" => {
                ["metadata.redb", "metadata.db"]
                    .iter()
                    .any(|records| root.join(records).is_file())
                    && all.is_dir()
            }
            _ => false,
        }
}

/// Whether `own` is where the layers of an image were that was unpacked for a recording, in a directory of
/// this name.
fn is_unpacked_in(recorded: &OsStr, own: &Path) -> bool {
    let is_ours = recorded.as_encoded_bytes().starts_with(UNPACKED.as_bytes());
    is_ours && own.file_name().is_some_and(|name| name == "layers")
}

/// Whether Docker's own records of layers are there, and none of them names this directory.
fn docker_has_no(root: &Path, name: &OsStr) -> bool {
    let Ok(layers) = fs::read_dir(root.join("image/overlay2/layerdb/sha256")) else {
        return false;
    };
    let names_it = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.map(|entry| entry.path().join("cache-id"));
        match path.and_then(fs::read_to_string) {
            Ok(found) => OsStr::new(found.trim()) == name,
            // Half removed, or not to be read: who knows.
            Err(_) => true,
        }
    };
    !layers.into_iter().any(names_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_directory_is_gone_when_its_recording_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("yolofs-record-0123/layers/0");
        assert!(is_gone(&layer));
        fs::create_dir_all(&layer).unwrap();
        assert!(!is_gone(&layer));
        let others = ["notes/layers/0", "yolofs-record-0124/parts/0"];
        assert!(others.iter().all(|other| !is_gone(&dir.path().join(other))));
        let away = Path::new("/nonexistent/yolofs-record-0123/layers/0");
        assert!(!is_gone(away), "its disk may be away");
    }

    #[test]
    fn a_directory_is_gone_when_docker_has_forgotten_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let layer = root.join("overlay2/abc/diff");
        assert!(!is_gone(&layer), "Docker's whole directory is away");
        let record = root.join("image/overlay2/layerdb/sha256/1/cache-id");
        write(&record, "abc\n");
        assert!(!is_gone(&layer), "Docker knows it");
        write(&record, "def");
        assert!(is_gone(&layer));
        fs::create_dir_all(&layer).unwrap();
        assert!(!is_gone(&layer), "it is there");
        fs::remove_dir_all(root.join("overlay2")).unwrap();
        fs::remove_file(&record).unwrap();
        assert!(
            !is_gone(&layer),
            "a layer of which nobody knows where it is"
        );
    }

    #[test]
    fn a_snapshot_is_gone_when_the_others_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let snapshot = dir.path().join("snapshots/7/fs");
        assert!(!is_gone(&snapshot));
        write(&dir.path().join("snapshots/8/fs/file"), "");
        assert!(!is_gone(&snapshot), "not a snapshotter's directory");
        write(&dir.path().join("metadata.redb"), "");
        assert!(is_gone(&snapshot));
        assert!(!is_gone(&dir.path().join("snapshots/8/fs")));
    }

    #[test]
    fn other_directories_are_never_gone() {
        for path in ["/", "/nonexistent", "/nonexistent/a/b", "relative"] {
            assert!(!is_gone(Path::new(path)), "{path}");
        }
    }
}
