//! The disk usage of the indexes of sources, and their eviction: of those that are neither open nor pinned,
//! the least recently used ones. Their sources are fetched again from their origin, as are those that lost
//! chunks.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Weak;
use std::time::SystemTime;

use blocks::ContentId;

use super::{Catalog, CatalogError, CatalogState, failed};
use crate::index::Index;

/// The indexes on the disk, in `CatalogState`.
#[derive(Debug)]
pub(super) struct Indexes {
    kept: HashMap<ContentId, Kept>,
    /// The size of the files.
    bytes: u64,
    /// The limit.
    most: u64,
    /// Each use has a higher number than those before.
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: u64,
    used: u64,
}

impl Default for Indexes {
    fn default() -> Self {
        Self {
            kept: HashMap::new(),
            bytes: 0,
            most: u64::MAX,
            next: 0,
        }
    }
}

impl Indexes {
    /// Reads those in a directory: their modification times stand for their last uses.
    pub(super) fn read(dir: &Path) -> Result<Self, CatalogError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(id) = name.and_then(|name| name.parse().ok()) else {
                continue;
            };
            let Some(meta) = path.metadata().ok().filter(fs::Metadata::is_file) else {
                log::warn!("{} is no index: ignored", path.display());
                continue;
            };
            let written = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((written, id, meta.len()));
        }
        found.sort_unstable_by_key(|(written, id, _)| (*written, *id));
        let mut indexes = Self::default();
        for (_, id, bytes) in found {
            indexes.put(id, bytes);
        }
        Ok(indexes)
    }

    pub(super) fn put(&mut self, id: ContentId, bytes: u64) {
        let used = self.next;
        self.next += 1;
        let before = self.kept.insert(id, Kept { bytes, used });
        self.bytes += bytes - before.map_or(0, |before| before.bytes).min(bytes);
    }

    pub(super) fn note_use(&mut self, id: &ContentId) {
        if let Some(kept) = self.kept.get_mut(id) {
            kept.used = self.next;
            self.next += 1;
        }
    }

    pub(super) fn forget(&mut self, id: &ContentId) {
        if let Some(kept) = self.kept.remove(id) {
            self.bytes -= kept.bytes;
        }
    }
}

impl CatalogState {
    /// Returns the index that goes next, with its names; `None` if each is open or pinned.
    fn next_to_go(&self) -> Option<(ContentId, Vec<Vec<u8>>)> {
        let names_of = |id: &ContentId| {
            let names = self.names.iter().filter(|(_, of)| *of == id);
            names.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let is_open = |id: &ContentId| {
            let open = self.used.get(id).map(Weak::strong_count);
            open.is_some_and(|count| count > 0)
        };
        let pinned: Vec<_> = (self.pins.iter())
            .filter_map(|name| self.names.get(name))
            .collect();
        let kept = self.indexes.kept.iter();
        let may_go = kept.filter(|(id, _)| !is_open(id) && !pinned.contains(id));
        let (id, _) = may_go.min_by_key(|(_, kept)| kept.used)?;
        Some((*id, names_of(id)))
    }
}

impl Catalog {
    /// Limits the size of the indexes from now on.
    ///
    /// # Errors
    /// If an excess index cannot be removed. Open and pinned ones stay, which is no error.
    pub fn limit_indexes(&self, bytes: u64) -> Result<(), CatalogError> {
        let _turn = self.write_lock.lock();
        self.state.lock().indexes.most = bytes;
        match self.make_room_for(0) {
            Err(error @ CatalogError::NoIndexRoom { .. }) => {
                log::warn!("{error}");
                Ok(())
            }
            made => made,
        }
    }

    /// Returns the size of the indexes, and its limit.
    #[must_use]
    pub fn index_room(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.indexes.bytes, state.indexes.most)
    }

    /// Makes space for an index that is about to be written, unless it exists already.
    pub(super) fn make_index_room(&self, index: &Index) -> Result<(), CatalogError> {
        let is_there = self.state.lock().indexes.kept.contains_key(&index.id());
        match is_there {
            true => Ok(()),
            false => self.make_room_for(index.bytes().len() as u64),
        }
    }

    fn make_room_for(&self, bytes: u64) -> Result<(), CatalogError> {
        loop {
            let (id, names) = {
                let mut state = self.state.lock();
                let most = state.indexes.most;
                if state.indexes.bytes.saturating_add(bytes) <= most {
                    return Ok(());
                }
                let none = CatalogError::NoIndexRoom { bytes, most };
                let (id, names) = (bytes <= most)
                    .then(|| state.next_to_go())
                    .flatten()
                    .ok_or(none)?;
                // Nobody finds it from now on.
                for name in &names {
                    state.names.remove(name);
                }
                (id, names)
            };
            for name in &names {
                remove(&self.name_path(name))?;
            }
            self.forget_boots(&id)?;
            remove(&self.index_path(&id))?;
            self.state.lock().indexes.forget(&id);
            log::info!("an index went, because others need its room: {id}");
        }
    }
}

fn remove(path: &Path) -> Result<(), CatalogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocks::testing::{Node, tree};

    use super::*;
    use crate::index::ZEROS;

    fn index(label: &str) -> Index {
        let nodes = [Node::dir(&[("a", 1)]), Node::file(9)];
        Index::new(
            label.as_bytes(),
            Arc::new(tree(&nodes).unwrap()),
            vec![ZEROS],
        )
        .unwrap()
    }

    fn names(catalog: &Catalog) -> Vec<String> {
        let names = catalog.names().into_iter();
        names
            .map(|(name, _)| String::from_utf8(name).unwrap())
            .collect()
    }

    fn on_disk(dir: &Path) -> u64 {
        let entries = fs::read_dir(dir.join("indexes")).unwrap();
        entries
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    }

    fn add(catalog: &Catalog, name: &str) -> Result<(), CatalogError> {
        catalog.add(name.as_bytes(), &index(name))
    }

    #[test]
    fn what_was_used_longest_ago_goes_and_what_is_open_or_pinned_stays() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let one = index("0").bytes().len() as u64;
        catalog.limit_indexes(4 * one).unwrap();
        for name in ["0", "1", "2", "3"] {
            add(&catalog, name).unwrap();
        }
        // The same one again takes nothing, and nothing goes for it.
        add(&catalog, "3").unwrap();
        assert_eq!(names(&catalog), ["0", "1", "2", "3"]);
        assert!(catalog.source(b"0").unwrap().is_some(), "it is used");
        let open = catalog.source(b"1").unwrap().unwrap();
        add(&catalog, "4").unwrap();
        assert_eq!(names(&catalog), ["0", "1", "3", "4"]);
        catalog.note_pin(b"3").unwrap();
        add(&catalog, "5").unwrap();
        add(&catalog, "6").unwrap();
        assert_eq!(names(&catalog), ["1", "3", "5", "6"]);
        assert_eq!(on_disk(dir.path()), 4 * one);
        assert_eq!(catalog.index_room(), (4 * one, 4 * one));
        assert_eq!(fs::read_dir(dir.path().join("names")).unwrap().count(), 4);
        drop(open);
        // After a restart as before, by when each was written.
        drop(catalog);
        for (age, name) in ["1", "3", "5", "6"].into_iter().enumerate() {
            let path = dir
                .path()
                .join("indexes")
                .join(index(name).id().to_string());
            let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age as u64);
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(written).unwrap();
        }
        let catalog = Catalog::open(dir.path()).unwrap();
        assert_eq!(catalog.index_room(), (4 * one, u64::MAX));
        catalog.limit_indexes(2 * one).unwrap();
        assert_eq!(names(&catalog), ["3", "6"]);
        assert_eq!(on_disk(dir.path()), 2 * one);
        let open = catalog.source(b"6").unwrap().unwrap();
        let refused = add(&catalog, "7").unwrap_err();
        assert!(matches!(refused, CatalogError::NoIndexRoom { .. }));
        assert_eq!(names(&catalog), ["3", "6"]);
        drop(open);
        add(&catalog, "7").unwrap();
        // What no name means goes with its bytes.
        catalog.limit_indexes(3 * one).unwrap();
        catalog.add(b"7", &index("8")).unwrap();
        assert_eq!(catalog.collect().unwrap(), 1);
        assert_eq!(catalog.index_room().0, on_disk(dir.path()));
        assert_eq!(on_disk(dir.path()), 2 * one);
    }

    #[test]
    fn one_that_fits_nowhere_makes_nothing_go() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let one = index("0").bytes().len() as u64;
        add(&catalog, "0").unwrap();
        catalog.limit_indexes(one).unwrap();
        let nodes = [
            Node::dir(&[("a", 1), ("b", 2)]),
            Node::file(9),
            Node::file(9),
        ];
        let tree = Arc::new(tree(&nodes).unwrap());
        let large = Index::new(b"large", tree, vec![ZEROS; 2]).unwrap();
        let refused = catalog.add(b"large", &large).unwrap_err();
        assert!(matches!(refused, CatalogError::NoIndexRoom { .. }));
        assert_eq!(names(&catalog), ["0"]);
    }
}
