//! The catalog of sources: their indexes, and the boot images that were recorded of them.
//!
//! ```text
//! DIR/names/<hash of the name>          the id of the index, and the name
//! DIR/indexes/<id>                      an index
//! DIR/boots/<id>/<number>-<boot id>-<giver>   a boot image of that index; the highest number is newest
//! DIR/pins/<hash of the name>           the name of a pinned source
//! ```
//!
//! Files are written atomically, one at a time by all processes that have the directory: who writes holds its lock.
//! Their names are verified against their content. Memory holds the names, and each index for as long as it is used.

mod boots;
mod indexes;
mod pins;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use blocks::ContentId;
use parking_lot::Mutex;
use rawio::file_lock::{FileLock, Purpose};
use rawio::regular::{self, Links};

use crate::index::{INDEX_MAX, Index, IndexError};
use boots::Boots;
use indexes::Indexes;

pub use boots::BootEntry;

/// The longest name of a source or a client, in bytes.
pub const NAME_MAX: usize = 255;
/// The most bytes of a file that names a source: its index, and the name.
const RECORD_MAX: u64 = 32 + NAME_MAX as u64;
/// The largest boot image that is kept.
pub const BOOT_MAX: u64 = 1 << 30;
/// How many boot images of a source are kept: the newest.
pub const BOOTS_KEPT: usize = 8;

/// How long another process may write one file.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
const WRITES: Purpose = Purpose {
    holder: "writes an index, a plan or a boot image of a source",
    advice: "try again; if it hangs, end that process, or give this one a directory of its own",
};

/// Why an operation of the catalog failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogError {
    /// An I/O error.
    #[error("cannot use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An index is damaged.
    #[error("the index {path} cannot be used; import its source again")]
    Index {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: IndexError,
    },
    /// A name is empty or too long.
    #[error("a source's name has 1 to {NAME_MAX} bytes")]
    Name,
    /// A boot image is larger than allowed, or empty.
    #[error("a boot image has 1 to {most} bytes here, not {bytes}")]
    BootLength {
        /// Its size.
        bytes: u64,
        /// How large it may be.
        most: u64,
    },
    /// There is no space for a boot image without evicting smaller ones of other machines.
    #[error("no room for the boot image: it would evict smaller ones of other machines")]
    NoRoom,
    /// An index is too much beside those that are open or pinned.
    #[error(
        "there is no room for an index of {bytes} bytes: those of all sources may take {most}, and what is \
         open or pinned stays; unpin something, or raise the limit (`size`)"
    )]
    NoIndexRoom {
        /// Its size.
        bytes: u64,
        /// The limit of all together.
        most: u64,
    },
    /// The bytes of a boot image are not those that its id names.
    #[error("the boot image has the hash {found}, not the announced one")]
    WrongBoot {
        /// The id of the bytes.
        found: ContentId,
    },
}

/// The sources of a service.
#[derive(Debug)]
pub struct Catalog {
    dir: PathBuf,
    state: Mutex<CatalogState>,
    /// Held while files are written: numbers of boot images are given out under it.
    write_lock: Mutex<()>,
    boots: Boots,
    additions: AtomicU64,
}

#[derive(Debug, Default)]
struct CatalogState {
    names: BTreeMap<Vec<u8>, ContentId>,
    /// Whether the disk failed records of names: it is not known which indexes these mean.
    has_unread: bool,
    used: HashMap<ContentId, Weak<Index>>,
    pins: BTreeSet<Vec<u8>>,
    indexes: Indexes,
}

impl Catalog {
    /// Opens the catalog in `dir`, which is created if missing.
    ///
    /// # Errors
    /// If the directory cannot be created or read.
    pub fn open(dir: &Path) -> Result<Self, CatalogError> {
        let mut state = CatalogState::default();
        for sub in ["names", "indexes", "boots", pins::DIR] {
            let path = dir.join(sub);
            fs::create_dir_all(&path).map_err(failed(&path))?;
        }
        let names = dir.join("names");
        for entry in fs::read_dir(&names).map_err(failed(&names))? {
            let path = entry.map_err(failed(&names))?.path();
            // One that is damaged hides no other.
            let bytes = match regular::read(&path, Links::Followed, RECORD_MAX) {
                Ok(bytes) => bytes,
                Err(error) => {
                    log::warn!("{} cannot be read: ignored: {error}", path.display());
                    state.has_unread |= is_unread(&error);
                    continue;
                }
            };
            match bytes.split_first_chunk::<32>() {
                Some((id, name)) if path.ends_with(ContentId::of(name).to_string()) => {
                    state.names.insert(name.to_vec(), ContentId(*id));
                }
                // What was being written when the power went.
                _ => log::warn!("{} is not the record of a source: ignored", path.display()),
            }
        }
        state.pins = pins::read(&dir.join(pins::DIR), &state.names)?;
        state.indexes = Indexes::read(&dir.join("indexes"))?;
        Ok(Self {
            dir: dir.to_owned(),
            state: Mutex::new(state),
            write_lock: Mutex::new(()),
            boots: Boots::read(&dir.join("boots"))?,
            additions: AtomicU64::new(0),
        })
    }

    /// Stores an index under the name `name`. Others may be evicted.
    ///
    /// # Errors
    /// If it cannot be written, there is no space for it, or the name is invalid.
    pub fn add(&self, name: &[u8], index: &Index) -> Result<(), CatalogError> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(CatalogError::Name);
        }
        let _turn = self.write_lock.lock();
        self.make_index_room(index)?;
        self.write(&self.index_path(&index.id()), index.bytes())?;
        let len = index.bytes().len() as u64;
        self.state.lock().indexes.put(index.id(), len);
        let mut named = index.id().0.to_vec();
        named.extend_from_slice(name);
        self.write(&self.name_path(name), &named)?;
        self.state.lock().names.insert(name.to_vec(), index.id());
        self.additions.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns how often a source was added since the catalog was opened.
    #[must_use]
    pub fn additions(&self) -> u64 {
        self.additions.load(Relaxed)
    }

    /// Returns the index of the source `name`, or `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn source(&self, name: &[u8]) -> Result<Option<Arc<Index>>, CatalogError> {
        let id = {
            let mut state = self.state.lock();
            let Some(id) = state.names.get(name).copied() else {
                return Ok(None);
            };
            state.indexes.note_use(&id);
            if let Some(index) = state.used.get(&id).and_then(Weak::upgrade) {
                return Ok(Some(index));
            }
            id
        };
        let path = self.index_path(&id);
        let bytes = match regular::read(&path, Links::Followed, INDEX_MAX) {
            // It has just gone for another, or is another by now.
            Err(_) if self.id(name) != Some(id) => return Ok(None),
            bytes => bytes.map_err(failed(&path))?,
        };
        let index = Index::decode(&bytes).and_then(|index| match index.id() == id {
            true => Ok(Arc::new(index)),
            false => Err(IndexError::Hash),
        });
        let index = index.map_err(|source| CatalogError::Index { path, source })?;
        let mut state = self.state.lock();
        state.used.retain(|_, used| used.strong_count() > 0);
        state.used.insert(id, Arc::downgrade(&index));
        Ok(Some(index))
    }

    /// Returns the id of the index of the source `name`.
    #[must_use]
    pub fn id(&self, name: &[u8]) -> Option<ContentId> {
        self.state.lock().names.get(name).copied()
    }

    /// Returns the names of all sources, each with the id of its index.
    #[must_use]
    pub fn names(&self) -> Vec<(Vec<u8>, ContentId)> {
        let state = self.state.lock();
        let names = state.names.iter();
        names.map(|(name, id)| (name.clone(), *id)).collect()
    }

    /// Removes indexes that no name means any more, with their boot images, and returns how many.
    /// Connections that have one open keep it.
    ///
    /// # Errors
    /// If they cannot be listed or removed.
    pub fn collect(&self) -> Result<u64, CatalogError> {
        let _turn = self.write_lock.lock();
        let named: HashSet<ContentId> = {
            let state = self.state.lock();
            if state.has_unread {
                log::warn!("no index is removed: not all names could be read");
                return Ok(0);
            }
            state.names.values().copied().collect()
        };
        let mut removed = 0;
        let dir = self.dir.join("indexes");
        for entry in fs::read_dir(&dir).map_err(failed(&dir))? {
            let entry = entry.map_err(failed(&dir))?;
            let path = entry.path();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let name = path.file_name().and_then(|name| name.to_str());
            let id = name.and_then(|name| name.parse::<ContentId>().ok());
            let Some(id) = id.filter(|_| is_file) else {
                continue;
            };
            if named.contains(&id) {
                continue;
            }
            self.forget_boots(&id)?;
            fs::remove_file(&path).map_err(failed(&path))?;
            self.state.lock().indexes.forget(&id);
            removed += 1;
        }
        Ok(removed)
    }

    fn index_path(&self, id: &ContentId) -> PathBuf {
        self.dir.join("indexes").join(id.to_string())
    }

    fn name_path(&self, name: &[u8]) -> PathBuf {
        self.dir.join("names").join(ContentId::of(name).to_string())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), CatalogError> {
        self.write_with(path, |file| file.write_all(bytes))
    }

    /// Writes a file, whole or not at all, even if the power goes.
    fn write_with(
        &self,
        path: &Path,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), CatalogError> {
        let aside = self.dir.join("writing");
        let written = || {
            // A mount beside this one may have the same cache: its file has the same name until it is whole.
            let dir = File::open(&self.dir)?;
            let lock = FileLock::of(dir, &self.dir, LOCK_PATIENCE, WRITES);
            let _turn = lock.map_err(io::Error::other)?;
            let mut file = regular::create_anew(&aside)?;
            content(&mut file)?;
            file.sync_all()?;
            fs::rename(&aside, path)?;
            let dir = path.parent().unwrap_or(&self.dir);
            File::open(dir)?.sync_all()
        };
        written().map_err(failed(path))
    }
}

/// Returns whether a record may be there, and the disk failed it.
fn is_unread(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, InvalidInput, NotFound};
    !matches!(error.kind(), FileTooLarge | InvalidInput | NotFound)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CatalogError {
    let path = path.to_owned();
    move |source| CatalogError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::index::ZEROS;
    use blocks::testing::{Node, tree};
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    fn index(label: &[u8]) -> Index {
        let nodes = [Node::dir(&[("a", 1)]), Node::file(9)];
        Index::new(label, Arc::new(tree(&nodes).unwrap()), vec![ZEROS]).unwrap()
    }

    #[test]
    fn what_was_added_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let (one, two) = (index(b"one"), index(b"two"));
        catalog.add(b"a/b:latest", &one).unwrap();
        catalog.add(b"a/b:latest", &two).unwrap();
        assert!(catalog.source(b"a/b").unwrap().is_none());
        let again = Catalog::open(dir.path()).unwrap();
        let found = again.source(b"a/b:latest").unwrap().unwrap();
        assert_eq!(found.id(), two.id());
        let shared = again.source(b"a/b:latest").unwrap().unwrap();
        assert!(
            Arc::ptr_eq(&found, &shared),
            "it is read once while it is used"
        );
        assert_eq!(again.names(), [(b"a/b:latest".to_vec(), two.id())]);
        assert!(matches!(catalog.add(b"", &one), Err(CatalogError::Name)));
    }

    #[test]
    fn what_no_name_means_any_more_is_collected() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let (one, two) = (index(b"one"), index(b"two"));
        for index in [&one, &two] {
            catalog.add(b"a", index).unwrap();
            let boot = ContentId::of(b"boot");
            let bytes = [b"boot".to_vec()];
            catalog.keep_boot(&index.id(), &boot, &bytes, 1).unwrap();
        }
        catalog.add(b"b", &two).unwrap();
        assert_eq!(catalog.collect().unwrap(), 1);
        assert_eq!(catalog.collect().unwrap(), 0);
        assert!(catalog.boots(&one.id()).is_empty());
        assert_eq!(catalog.boots(&two.id()).len(), 1);
        let again = Catalog::open(dir.path()).unwrap();
        assert_eq!(again.source(b"a").unwrap().unwrap().id(), two.id());
    }

    /// Mounts with one cache are processes of their own. They wrote to one file that is set aside: what one published had
    /// bytes of the other, or it found nothing to publish.
    #[test]
    fn two_that_have_one_directory_write_whole_files() {
        const TURNS: u32 = 40;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names").join("one");
        let write = |byte: u8| {
            let catalog = Catalog::open(dir.path()).unwrap();
            for _ in 0..TURNS {
                let half = [byte; 5000];
                let halves = |file: &mut File| {
                    file.write_all(&half)?;
                    std::thread::yield_now();
                    file.write_all(&half)
                };
                catalog.write_with(&path, halves).unwrap();
                let found = fs::read(&path).unwrap();
                let whole = found.iter().all(|other| *other == found[0]);
                assert!(found.len() == 10_000 && whole, "a torn file");
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| write(1));
            write(2);
            other.join().unwrap();
        });
    }

    /// Puts what is no record at a path.
    const IN_ITS_PLACE: [fn(&Path); 5] = [
        |path| mkfifo(path, Mode::S_IRWXU).unwrap(),
        |path| fs::create_dir_all(path.join("a")).unwrap(),
        |path| fs::write(path, [7; 10]).unwrap(),
        |path| fs::write(path, [7; 1000]).unwrap(),
        |path| std::os::unix::fs::symlink("nowhere", path).unwrap(),
    ];

    /// Workers write to the catalog of `--nic-cache`: one that was broken into may have put anything there, and so may a
    /// disk that fails. The other sources are what they were, and nothing is waited for.
    #[test]
    fn what_is_no_record_hides_no_other() {
        let index = [index(b"web"), index(b"db")];
        for (put, sub) in IN_ITS_PLACE
            .iter()
            .flat_map(|put| ["names", "indexes", pins::DIR, "boots"].map(|sub| (put, sub)))
        {
            let dir = tempfile::tempdir().unwrap();
            let catalog = Catalog::open(dir.path()).unwrap();
            let boot = (ContentId::of(b"boot"), [b"boot".to_vec()]);
            for (name, index) in [&b"web"[..], b"db"].into_iter().zip(&index) {
                catalog.add(name, index).unwrap();
                catalog.note_pin(name).unwrap();
                catalog.keep_boot(&index.id(), &boot.0, &boot.1, 1).unwrap();
            }
            drop(catalog);
            let web = match sub {
                "names" | "pins" => ContentId::of(b"web"),
                _ => index[0].id(),
            };
            let path = dir.path().join(sub).join(web.to_string());
            fs::remove_dir_all(&path)
                .or_else(|_| fs::remove_file(&path))
                .unwrap();
            put(&path);
            put(&dir
                .path()
                .join(sub)
                .join(ContentId::of(b"other").to_string()));
            let (tell, told) = channel();
            std::thread::spawn(move || {
                let catalog = Catalog::open(dir.path());
                tell.send((catalog, dir)).unwrap();
            });
            let opened = told.recv_timeout(Duration::from_secs(30));
            let (catalog, _dir) = opened.expect("it waits for a pipe");
            let catalog = catalog.unwrap();
            assert!(catalog.limit_indexes(1 << 30).is_ok() && catalog.limit_boots(1 << 30).is_ok());
            assert_eq!(
                catalog.source(b"db").unwrap().unwrap().id(),
                index[1].id(),
                "{sub}"
            );
            assert!(catalog.is_pinned(b"db"));
            assert_eq!(catalog.boots(&index[1].id()).len(), 1, "{sub}");
            assert!(catalog.is_pinned(b"web"), "{sub}");
            match (sub, catalog.source(b"web")) {
                ("names", Ok(None)) | ("indexes", Err(_)) | ("pins" | "boots", Ok(Some(_))) => {}
                (sub, found) => panic!("{sub}: {found:?}"),
            }
            // It is in the way of nothing that is removed, or comes.
            catalog.limit_boots(0).unwrap();
            catalog.collect().unwrap();
            if sub != pins::DIR {
                catalog.forget_pin(b"web").unwrap();
                catalog.forget_pin(b"db").unwrap();
                catalog.limit_indexes(0).unwrap();
                assert!(catalog.source(b"db").unwrap().is_none(), "{sub}");
                catalog.limit_indexes(1 << 30).unwrap();
            }
            catalog.add(b"new", &index[1]).unwrap();
        }
    }

    #[test]
    fn indexes_whose_names_the_disk_failed_are_not_collected() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let index = index(b"one");
        catalog.add(b"one", &index).unwrap();
        let path = catalog.name_path(b"one");
        drop(catalog);
        let name = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // What cannot be opened, though something is there.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        assert_eq!(catalog.collect().unwrap(), 0);
        drop(catalog);
        fs::remove_file(&path).unwrap();
        fs::write(&path, name).unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        assert_eq!(catalog.source(b"one").unwrap().unwrap().id(), index.id());
    }

    #[test]
    fn a_pipe_or_a_link_in_the_place_of_what_is_written_is_removed() {
        let index = index(b"web");
        for put in [IN_ITS_PLACE[0], IN_ITS_PLACE[4]] {
            let dir = tempfile::tempdir().unwrap();
            let catalog = Catalog::open(dir.path()).unwrap();
            put(&dir.path().join("writing"));
            let (tell, told) = channel();
            let added = index.clone();
            std::thread::spawn(move || tell.send(catalog.add(b"web", &added)).unwrap());
            let added = told.recv_timeout(Duration::from_secs(30));
            added.expect("it waits for the pipe").unwrap();
            assert!(!dir.path().join("nowhere").exists());
            let catalog = Catalog::open(dir.path()).unwrap();
            assert!(catalog.source(b"web").unwrap().is_some());
        }
    }

    #[test]
    fn a_damaged_index_is_said_to_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let index = index(b"one");
        catalog.add(b"one", &index).unwrap();
        let path = dir.path().join("indexes").join(index.id().to_string());
        let mut bytes = fs::read(&path).unwrap();
        bytes[60] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(matches!(
            catalog.source(b"one"),
            Err(CatalogError::Index { .. })
        ));
    }
}
