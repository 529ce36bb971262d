//! The names that a mount is served with: written by its first worker, read by all others. If the
//! source is served by a block service, they are in its index.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, bail};
use blocks::Tree;
use bootimg::{decode_names, encode_names};
use chunks::index::Index;

use super::changes::names_len;

/// More than any names that [`encode_names`] gives.
const LONGEST: u64 = 2 << 30;

/// Whether a worker has answered FUSE_INIT for a mount. From then on the kernel goes by the names that were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Init {
    Unanswered,
    Answered,
}

/// The names of a mount, and the label of its source.
pub(super) struct Names {
    pub(super) tree: Tree,
    pub(super) label: Vec<u8>,
}

/// Reads the names that earlier workers served, or returns `None` if there was none. Before FUSE_INIT is answered, a
/// partial file of a worker that died is ignored.
///
/// # Errors
/// If the file cannot be read, or is damaged after FUSE_INIT.
pub(super) fn read(file: &OwnedFd, init: Init) -> anyhow::Result<Option<Names>> {
    let doing = "reading the names that the mount was served with";
    match decode_names(&contents(file, doing)?) {
        Ok((tree, label)) => Ok(Some(Names { tree, label })),
        Err(_) if init == Init::Unanswered => Ok(None),
        Err(error) => Err(error).context(doing),
    }
}

/// Writes the names that are served from now on. The file is complete before FUSE_INIT is answered.
///
/// # Errors
/// If the device is full.
pub(super) fn write(file: &OwnedFd, tree: &Tree, label: &[u8]) -> anyhow::Result<()> {
    let doing = "writing down the names that the mount is served with";
    let bytes = encode_names(tree, label).context(doing)?;
    replace(file, &bytes, doing)
}

/// Reads the index that earlier workers served from, or returns `None` if there was none, as
/// [`read`] does.
///
/// # Errors
/// If the file cannot be read, or is damaged after FUSE_INIT.
pub(super) fn read_index(file: &OwnedFd, init: Init) -> anyhow::Result<Option<Index>> {
    let doing = "reading the index that the mount was served from";
    match Index::decode(&contents(file, doing)?) {
        Ok(index) => Ok(Some(index)),
        Err(_) if init == Init::Unanswered => Ok(None),
        Err(error) => Err(error).context(doing),
    }
}

/// Writes the index that is served from. The file is complete before FUSE_INIT is answered.
///
/// # Errors
/// If the device is full.
pub(super) fn write_index(file: &OwnedFd, index: &Index) -> anyhow::Result<()> {
    let doing = "writing down the index that the mount is served from";
    replace(file, index.bytes(), doing)
}

/// Returns all of the file, but for [what changed since](super::changes).
fn contents(file: &OwnedFd, doing: &'static str) -> anyhow::Result<Vec<u8>> {
    let file = File::from(file.try_clone().context(doing)?);
    let len = names_len(&file).context(doing)?;
    if len > LONGEST {
        bail!("{doing}: {len} bytes exceed the limit");
    }
    let mut bytes = vec![0; usize::try_from(len).context(doing)?];
    file.read_exact_at(&mut bytes, 0).context(doing)?;
    Ok(bytes)
}

fn replace(file: &OwnedFd, bytes: &[u8], doing: &'static str) -> anyhow::Result<()> {
    let file = File::from(file.try_clone().context(doing)?);
    file.set_len(0)
        .and_then(|()| file.write_all_at(bytes, 0))
        .context(doing)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use mounting::source::Source;

    fn scanned() -> Arc<Tree> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "content").unwrap();
        Source::open(dir.path()).unwrap().tree
    }

    #[test]
    fn names_are_written_once_and_read_again() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let tree = scanned();
        assert!(read(&file, Init::Unanswered).unwrap().is_none());
        assert!(read(&file, Init::Answered).is_err());
        write(&file, &tree, b"dir:/srv").unwrap();
        for init in [Init::Unanswered, Init::Answered] {
            let names = read(&file, init).unwrap().unwrap();
            assert_eq!((&names.tree, &names.label[..]), (&*tree, &b"dir:/srv"[..]));
        }
    }

    #[test]
    fn an_index_is_written_once_and_read_again() {
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        let id = chunks::ChunkId::of(b"content");
        let index = Index::new(b"web", scanned(), vec![id]).unwrap();
        assert!(read_index(&file, Init::Unanswered).unwrap().is_none());
        assert!(read_index(&file, Init::Answered).is_err());
        write_index(&file, &index).unwrap();
        for init in [Init::Unanswered, Init::Answered] {
            let known = read_index(&file, init).unwrap().unwrap();
            assert_eq!(known.id(), index.id());
        }
    }

    #[test]
    fn half_of_them_count_only_before_the_kernel_was_told() {
        let file = tempfile::tempfile().unwrap();
        let fd = OwnedFd::from(file.try_clone().unwrap());
        write(&fd, &scanned(), b"dir:/srv").unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        assert!(read(&fd, Init::Unanswered).unwrap().is_none());
        assert!(read(&fd, Init::Answered).is_err());
        write(&fd, &scanned(), b"dir:/srv").unwrap();
        assert!(read(&fd, Init::Answered).unwrap().is_some());
    }
}
