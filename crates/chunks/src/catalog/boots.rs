//! Boot images of sources, as machines uploaded them: the newest of each source, within a budget.
//!
//! The machine that uploaded a boot image is recorded with it, as a number. When the budget is used up,
//! the machine with the most bytes loses its oldest boot image: no machine can evict others' boot
//! images by uploading more.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use blocks::ContentId;
use parking_lot::Mutex;
use rawio::regular::{self, Links};

use super::{BOOT_MAX, BOOTS_KEPT, Catalog, CatalogError, failed};

/// A boot image that the service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootEntry {
    /// The BLAKE3 of its bytes.
    pub id: ContentId,
    /// Its length in bytes.
    pub len: u64,
}

/// Files take whole blocks of a disk.
const BLOCK: u64 = 4096;

/// The boot images of all sources.
#[derive(Debug)]
pub(super) struct Boots {
    state: Mutex<BootsState>,
}

#[derive(Debug)]
struct BootsState {
    /// By index.
    kept: HashMap<ContentId, Vec<StoredBoot>>,
    /// The size of the files.
    bytes: u64,
    /// The limit of these bytes.
    most: u64,
    /// Each that comes has a higher number than those before.
    next: u64,
}

/// Numbers of boot images are below this: there is always a newer one.
const NUMBER_MAX: u64 = 1 << 63;

/// A boot image on the disk.
#[derive(Clone, Debug)]
struct StoredBoot {
    /// Of the boot images of its index the newest has the highest.
    number: u64,
    entry: BootEntry,
    /// The machine that uploaded it; 0 if unknown.
    giver: u64,
    /// When it came, among all.
    age: u64,
    path: PathBuf,
}

impl StoredBoot {
    /// Reads what the name of a file says: `NUMBER-ID-GIVER`, and `NUMBER-ID` of earlier releases.
    fn of(path: PathBuf) -> Option<Self> {
        let mut words = path.file_name()?.to_str()?.split('-');
        let number = u64::from_str_radix(words.next()?, 16).ok();
        let number = number.filter(|number| *number < NUMBER_MAX)?;
        let id = words.next()?.parse().ok()?;
        let giver = match words.next() {
            Some(giver) => u64::from_str_radix(giver, 16).ok()?,
            None => 0,
        };
        let meta = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let len = meta.len();
        words.next().is_none().then_some(Self {
            number,
            entry: BootEntry { id, len },
            giver,
            age: 0,
            path,
        })
    }

    fn takes(&self) -> u64 {
        takes(self.entry.len)
    }
}

const fn takes(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// Which one has to go, by its index and age.
type Which = (ContentId, u64);

impl BootsState {
    /// Returns what has to go so that `giver` may have `more` bytes of an index: `same`, which is the
    /// same boot image, and whatever is too much.
    fn in_the_way(
        &self,
        index: &ContentId,
        same: Option<u64>,
        giver: u64,
        more: u64,
    ) -> Result<Vec<Which>, CatalogError> {
        let all = self.kept.iter();
        let mut stays: Vec<(ContentId, &StoredBoot)> = all
            .flat_map(|(index, kept)| kept.iter().map(move |kept| (*index, kept)))
            .collect();
        let mut goes = Vec::new();
        let mut bytes = self.bytes + more;
        let mut out = |stays: &mut Vec<(ContentId, &StoredBoot)>, at: usize, bytes: &mut u64| {
            let (index, kept) = stays.swap_remove(at);
            *bytes -= kept.takes();
            goes.push((index, kept.age));
        };
        let is_same = |(of, kept): &(ContentId, &StoredBoot)| of == index && Some(kept.age) == same;
        if let Some(at) = stays.iter().position(is_same) {
            out(&mut stays, at, &mut bytes);
        }
        while let Some(at) = one_of_too_many(&stays, index, giver) {
            out(&mut stays, at, &mut bytes);
        }
        while bytes > self.most {
            let at = one_of_the_most(&stays, giver, more).ok_or(CatalogError::NoRoom)?;
            out(&mut stays, at, &mut bytes);
        }
        Ok(goes)
    }

    fn take_out(&mut self, (index, age): Which) -> Option<StoredBoot> {
        let kept = self.kept.get_mut(&index)?;
        let at = kept.iter().position(|kept| kept.age == age)?;
        let gone = kept.remove(at);
        if kept.is_empty() {
            self.kept.remove(&index);
        }
        self.bytes -= gone.takes();
        Some(gone)
    }
}

/// Returns the oldest of who has given the most of an index, if that has as many as it may and
/// `giver` gives one more.
fn one_of_too_many(
    all: &[(ContentId, &StoredBoot)],
    index: &ContentId,
    giver: u64,
) -> Option<usize> {
    let of = || (0..).zip(all).filter(|(_, (of, _))| of == index);
    if of().count() < BOOTS_KEPT {
        return None;
    }
    let mut counts = HashMap::from([(giver, 1)]);
    of().for_each(|(_, (_, kept))| *counts.entry(kept.giver).or_insert(0) += 1);
    let most = of().map(|(_, (_, kept))| counts[&kept.giver]).max()?;
    let theirs = of().filter(|(_, (_, kept))| counts[&kept.giver] == most);
    let oldest = theirs.min_by_key(|(_, (_, kept))| kept.number);
    oldest.map(|(at, _)| at)
}

/// Returns the oldest of who has given the most bytes, once `giver` has given `more`; `None` if
/// that is `giver`, and nothing of it is here.
fn one_of_the_most(all: &[(ContentId, &StoredBoot)], giver: u64, more: u64) -> Option<usize> {
    let mut givers = HashMap::from([(giver, more)]);
    for (_, kept) in all {
        *givers.entry(kept.giver).or_default() += kept.takes();
    }
    // The one who gives only if somebody else has not as much.
    let most = givers.into_iter();
    let (most, _) = most.max_by_key(|(of, bytes)| (*bytes, *of != giver))?;
    let theirs = (0..).zip(all).filter(|(_, (_, kept))| kept.giver == most);
    let oldest = theirs.min_by_key(|(_, (_, kept))| kept.age);
    oldest.map(|(at, _)| at)
}

impl Boots {
    /// Reads the existing ones. Their size is not limited yet.
    pub(super) fn read(dir: &Path) -> Result<Self, CatalogError> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed(dir))? {
            let path = entry.map_err(failed(dir))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(index) = name.and_then(|name| name.parse::<ContentId>().ok()) else {
                continue;
            };
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) => {
                    log::warn!("{} cannot be read: ignored: {error}", path.display());
                    continue;
                }
            };
            for entry in entries {
                let kept = entry.map_err(failed(&path))?.path();
                let written = fs::metadata(&kept).and_then(|meta| meta.modified()).ok();
                found.extend(StoredBoot::of(kept).map(|kept| (written, index, kept)));
            }
        }
        found.sort_by_key(|(written, _, kept)| (*written, kept.number));
        let mut state = BootsState {
            kept: HashMap::new(),
            bytes: 0,
            most: u64::MAX,
            next: 0,
        };
        for (age, (_, index, kept)) in (0..).zip(found) {
            state.bytes += kept.takes();
            state.next = age + 1;
            state
                .kept
                .entry(index)
                .or_default()
                .push(StoredBoot { age, ..kept });
        }
        Ok(Self {
            state: Mutex::new(state),
        })
    }
}

impl Catalog {
    /// Limits the size of all boot images together from now on; the excess is evicted
    /// at once.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn limit_boots(&self, bytes: u64) -> Result<(), CatalogError> {
        let _turn = self.write_lock.lock();
        // Nobody gives anything: who has the most loses.
        let goes = {
            let mut state = self.boots.state.lock();
            state.most = bytes;
            state.in_the_way(&ContentId([0; 32]), None, 0, 0)?
        };
        goes.into_iter()
            .try_for_each(|which| self.remove_boot(which))
    }

    /// Returns how long a boot image may be.
    #[must_use]
    pub fn boot_max(&self) -> u64 {
        let most = self.boots.state.lock().most;
        BOOT_MAX.min(most / BLOCK * BLOCK)
    }

    /// Returns the size of the boot images, and its limit.
    #[must_use]
    pub fn boot_room(&self) -> (u64, u64) {
        let state = self.boots.state.lock();
        (state.bytes, state.most)
    }

    /// Returns the boot images of an index, newest first.
    #[must_use]
    pub fn boots(&self, index: &ContentId) -> Vec<BootEntry> {
        let state = self.boots.state.lock();
        let mut kept: Vec<_> = state.kept.get(index).into_iter().flatten().collect();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.number));
        kept.into_iter().map(|kept| kept.entry).collect()
    }

    /// Returns the path of a boot image, which may be removed before it is opened; `None` if it does not
    /// exist any more.
    #[must_use]
    pub fn boot_path(&self, index: &ContentId, boot: &ContentId) -> Option<PathBuf> {
        let state = self.boots.state.lock();
        let mut kept = state.kept.get(index).into_iter().flatten();
        kept.find(|kept| kept.entry.id == *boot)
            .map(|kept| kept.path.clone())
    }

    /// Returns `len` bytes of a boot image from `offset`, fewer at its end; `None` if it does not
    /// exist any more.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn boot_piece(
        &self,
        index: &ContentId,
        boot: &ContentId,
        offset: u64,
        len: usize,
    ) -> Result<Option<Vec<u8>>, CatalogError> {
        let found = {
            let state = self.boots.state.lock();
            let mut kept = state.kept.get(index).into_iter().flatten();
            kept.find(|kept| kept.entry.id == *boot).cloned()
        };
        let Some(StoredBoot { entry, path, .. }) = found else {
            return Ok(None);
        };
        let left = entry.len.saturating_sub(offset);
        let mut piece = vec![0; len.min(usize::try_from(left).unwrap_or(len))];
        let opened = regular::open(&path, Links::Followed);
        let read = opened.and_then(|open| open.read_exact_at(&mut piece, offset));
        match read {
            Ok(()) => Ok(Some(piece)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path)(error)),
        }
    }

    /// Stores the boot image in `blocks` as the newest of an index. This evicts the oldest one of the machine
    /// with the most bytes: of this index if there are [`BOOTS_KEPT`], and of all if
    /// there is no space.
    ///
    /// # Errors
    /// If its bytes do not match `id`, there is no space, or it cannot be written.
    pub fn keep_boot(
        &self,
        index: &ContentId,
        id: &ContentId,
        blocks: &[Vec<u8>],
        giver: u64,
    ) -> Result<(), CatalogError> {
        let len = blocks.iter().map(|block| block.len() as u64).sum();
        let most = self.boot_max();
        if len == 0 || len > most {
            return Err(CatalogError::BootLength { bytes: len, most });
        }
        let mut hasher = blake3::Hasher::new();
        for block in blocks {
            hasher.update(block);
        }
        let found = ContentId(*hasher.finalize().as_bytes());
        if found != *id {
            return Err(CatalogError::WrongBoot { found });
        }
        let _turn = self.write_lock.lock();
        let same = {
            let state = self.boots.state.lock();
            let mut kept = state.kept.get(index).into_iter().flatten();
            kept.find(|kept| kept.entry.id == *id).cloned()
        };
        // It stays theirs who gave it first: nobody takes over what others gave, to have it go.
        let giver = same.as_ref().map_or(giver, |same| same.giver);
        let goes = {
            let state = self.boots.state.lock();
            let same = same.map(|same| same.age);
            state.in_the_way(index, same, giver, takes(len))?
        };
        // Before the new one is written: there is never more than may be.
        goes.into_iter()
            .try_for_each(|which| self.remove_boot(which))?;
        self.write_boot(index, BootEntry { id: *id, len }, blocks, giver)
    }

    fn write_boot(
        &self,
        index: &ContentId,
        entry: BootEntry,
        blocks: &[Vec<u8>],
        giver: u64,
    ) -> Result<(), CatalogError> {
        let newest = {
            let state = self.boots.state.lock();
            let kept = state.kept.get(index).into_iter().flatten();
            kept.map(|kept| kept.number).max()
        };
        let number = newest.map_or(1, |newest| newest + 1);
        let dir = self.boot_dir(index);
        fs::create_dir_all(&dir).map_err(failed(&dir))?;
        let path = dir.join(format!("{number:016x}-{}-{giver:016x}", entry.id));
        self.write_with(&path, |file| {
            blocks.iter().try_for_each(|block| file.write_all(block))
        })?;
        let mut state = self.boots.state.lock();
        let age = state.next;
        state.next += 1;
        state.bytes += takes(entry.len);
        state.kept.entry(*index).or_default().push(StoredBoot {
            number,
            entry,
            giver,
            age,
            path,
        });
        Ok(())
    }

    fn remove_boot(&self, which: Which) -> Result<(), CatalogError> {
        let Some(gone) = self.boots.state.lock().take_out(which) else {
            return Ok(());
        };
        match fs::remove_file(&gone.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                // It takes room still.
                let mut state = self.boots.state.lock();
                state.bytes += gone.takes();
                let path = gone.path.clone();
                state.kept.entry(which.0).or_default().push(gone);
                Err(failed(&path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the boot images of an index that was removed.
    pub(super) fn forget_boots(&self, index: &ContentId) -> Result<(), CatalogError> {
        let dir = self.boot_dir(index);
        let removed = match fs::remove_dir_all(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(&dir),
            removed => removed,
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&dir)(error)),
            _ => {
                let mut state = self.boots.state.lock();
                let gone = state.kept.remove(index).into_iter().flatten();
                let freed: u64 = gone.map(|gone| gone.takes()).sum();
                state.bytes -= freed;
                Ok(())
            }
        }
    }

    fn boot_dir(&self, index: &ContentId) -> PathBuf {
        self.dir.join("boots").join(index.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn give(catalog: &Catalog, index: &ContentId, seed: u8, len: u64, giver: u64) -> bool {
        let bytes = vec![seed; usize::try_from(len).unwrap()];
        let id = ContentId::of(&bytes);
        match catalog.keep_boot(index, &id, &[bytes], giver) {
            Ok(()) => true,
            Err(CatalogError::NoRoom) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns what is on the disk.
    fn on_disk(dir: &Path) -> u64 {
        let sources = fs::read_dir(dir.join("boots")).unwrap();
        let files = sources.flat_map(|source| fs::read_dir(source.unwrap().path()).unwrap());
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum()
    }

    fn of(catalog: &Catalog, index: &ContentId) -> Vec<u64> {
        catalog.boots(index).iter().map(|boot| boot.len).collect()
    }

    #[test]
    fn the_newest_boot_images_stay() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let index = ContentId::of(b"index");
        for n in 0..10 {
            assert!(give(&catalog, &index, n, 100, 1));
        }
        // Kept again: it is the newest, and not there twice.
        assert!(give(&catalog, &index, 5, 100, 1));
        let kept: Vec<_> = catalog.boots(&index).iter().map(|boot| boot.id).collect();
        let boot = |n: u8| ContentId::of(&[n; 100]);
        assert_eq!(kept, [5, 9, 8, 7, 6, 4, 3, 2].map(boot));
        let piece = catalog.boot_piece(&index, &boot(5), 90, 64).unwrap();
        assert_eq!(piece, Some(vec![5; 10]));
        assert_eq!(catalog.boot_piece(&index, &boot(0), 0, 64).unwrap(), None);
        let forged = catalog.keep_boot(&index, &boot(1), &[vec![2; 100]], 1);
        assert!(matches!(forged, Err(CatalogError::WrongBoot { .. })));
        assert!(catalog.boots(&ContentId::of(b"other")).is_empty());
        assert_eq!(
            (catalog.boot_room().0, on_disk(dir.path())),
            (8 * 4096, 800)
        );
        // As after a restart, and with what an earlier release has named.
        let first = dir.path().join("boots").join(index.to_string());
        let named = |n: u8| {
            fs::read_dir(&first).unwrap().find_map(|file| {
                let path = file.unwrap().path();
                let name = path.file_name()?.to_str()?.to_owned();
                name.contains(&boot(n).to_string()).then_some(path)
            })
        };
        let old = named(9).unwrap();
        let name = old.file_name().unwrap().to_str().unwrap();
        fs::rename(&old, first.join(name.rsplit_once('-').unwrap().0)).unwrap();
        let again = Catalog::open(dir.path()).unwrap();
        assert_eq!(again.boots(&index), catalog.boots(&index));
        assert_eq!(again.boot_room().0, 8 * 4096);
    }

    #[test]
    fn of_a_source_nobody_has_more_than_others_when_there_are_too_many() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let index = ContentId::of(b"index");
        for (giver, len) in [(1, 101), (2, 102), (3, 103)] {
            assert!(give(&catalog, &index, 1, len, giver));
        }
        // Twenty from one machine push out its own.
        for n in 0..20 {
            assert!(give(&catalog, &index, 9, 200 + n, 9));
        }
        assert_eq!(
            of(&catalog, &index),
            [219, 218, 217, 216, 215, 103, 102, 101]
        );
        // Who gives what another has given does not have it go for that.
        assert!(give(&catalog, &index, 1, 101, 9));
        for n in 20..30 {
            assert!(give(&catalog, &index, 9, 200 + n, 9));
        }
        assert_eq!(
            of(&catalog, &index),
            [229, 228, 227, 226, 225, 101, 103, 102]
        );
    }

    #[test]
    fn all_together_fit_into_the_budget_and_who_has_most_gives_way() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        catalog.limit_boots(1024 * KIB).unwrap();
        let index = |n: u8| ContentId::of(&[n]);
        assert!(give(&catalog, &index(0), 1, 100 * KIB, 1));
        for n in 1..100 {
            assert!(give(&catalog, &index(n), 7, 64 * KIB, 7));
            assert!(on_disk(dir.path()) <= 1024 * KIB);
        }
        assert_eq!(of(&catalog, &index(0)), [100 * KIB], "the other machine's");
        assert_eq!(on_disk(dir.path()), (100 + 14 * 64) * KIB);
        // Another one gets as much as the greedy one keeps, and no more.
        for n in 100..120 {
            assert!(give(&catalog, &index(n), 8, 64 * KIB, 8));
        }
        let theirs = |range: std::ops::Range<u8>| {
            range.map(|n| of(&catalog, &index(n)).len()).sum::<usize>()
        };
        assert_eq!((theirs(1..100), theirs(100..120)), (7, 7));
        // One that is larger than what anybody has would push out all others: it is refused.
        assert!(give(&catalog, &index(201), 3, 16 * KIB, 3));
        let before = on_disk(dir.path());
        assert!(!give(&catalog, &index(200), 3, 1000 * KIB, 3));
        assert_eq!(
            on_disk(dir.path()),
            before,
            "nothing goes for what is refused"
        );
        let long = catalog.keep_boot(&index(0), &index(0), &[vec![0; 1 << 20], vec![0]], 3);
        assert!(
            matches!(long, Err(CatalogError::BootLength { .. })),
            "{long:?}"
        );
        // A smaller budget holds at once.
        drop(catalog);
        let catalog = Catalog::open(dir.path()).unwrap();
        catalog.limit_boots(512 * KIB).unwrap();
        assert_eq!(of(&catalog, &index(0)), [100 * KIB]);
        assert!(on_disk(dir.path()) <= 512 * KIB);
        assert_eq!(catalog.boot_max(), 512 * KIB);
    }
}
