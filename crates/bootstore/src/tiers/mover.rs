//! The process that moves objects: one at a time, for one move or a few.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use blocks::ContentId;
use bootimg::{ImageId, Store, StoreError, StoredParts, WriteError};
use rawio::file_lock::{FileLock, Purpose};
use rawio::private::{self, Readers};
use tiering::medium::{DirMedium, open_regular};
use tiering::objects::{Copied, ObjectError, Objects, TierConfig, TierIndex, name_of};
use tiering::pace::Pace;
use tiering::parts::{Index, Part, PartedObjects};

use super::Tiers;
use super::lock::{Hold, hold_alone_within};
use super::marks::Marks;
use super::pace::watch;
use host::interrupt::Interrupted;
use host::size::Size;

/// How long a command waits for another one that moves objects.
pub const PATIENCE: Duration = Duration::from_secs(60);

const MOVES: Purpose = Purpose {
    holder: "moves boot images between tiers",
    advice: "try again when it has ended",
};

/// How long a process that checks or reads a part of a copy may hold it: far longer than either takes.
const LOOK: Duration = Duration::from_millis(200);

/// The objects, and the right to move them.
#[derive(Debug)]
pub struct Mover {
    tiers: Tiers,
    objects: PartedObjects,
    /// For each tier of `objects`, its place among the tiers that the file names.
    places: Vec<usize>,
    /// Why the other tiers cannot be used.
    away: Vec<(usize, String)>,
    _alone: FileLock,
}

/// What became of a copy that was to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It was removed.
    Gone,
    /// It is open, and stays.
    Open,
    /// There was none.
    None,
}

impl Mover {
    /// Opens the objects on the tiers that are present, and recovers from an interrupted
    /// operation.
    ///
    /// # Errors
    /// If another process moves objects for longer than `patience`, or no tier can be used.
    pub fn open(tiers: &Tiers, patience: Duration) -> anyhow::Result<Self> {
        let state = &tiers.state;
        private::make_dir_alike(state).with_context(|| format!("making {}", state.display()))?;
        let alone = FileLock::take(&state.join("lock"), patience, MOVES)?;
        if let (None, [own]) = (tiers.file(), tiers.specs()) {
            let making = private::make_dir_alike(&own.dir);
            making.with_context(|| format!("making {}", own.dir.display()))?;
        }
        let mut marks = Marks::read(tiers)?;
        let (mut places, mut away, mut configs) = (Vec::new(), Vec::new(), Vec::new());
        for (place, spec) in tiers.specs().iter().enumerate() {
            let found = marks.find(spec);
            match found.and_then(|found| marks.settle(spec, &found).map(|()| found)) {
                Ok(found) => {
                    close_copies(&spec.dir);
                    places.push(place);
                    configs.push(TierConfig {
                        capacity_bytes: spec.room.bytes(found.capability.capacity_bytes),
                        medium: found.medium,
                    });
                }
                Err(error) => away.push((place, format!("{error:#}"))),
            }
        }
        if let (true, Some((place, why))) = (configs.is_empty(), away.first()) {
            bail!("no tier can be used; {}: {why}", tiers.specs()[*place].name);
        }
        let journal = DirMedium::open(state).context("opening the journal of objects")?;
        let opened = PartedObjects::open(std::sync::Arc::new(journal), configs);
        let (objects, report) = opened.context("opening the objects on the tiers")?;
        if report.lost + report.swept + report.adopted > 0 {
            log::info!("the objects on the tiers differed from the journal: {report:?}");
        }
        let tiers = tiers.clone();
        Ok(Self {
            tiers,
            objects,
            places,
            away,
            _alone: alone,
        })
    }

    /// Copies a boot image to a tier. An existing copy is read and verified; if it is damaged, it
    /// is written again.
    ///
    /// # Errors
    /// If the tier is missing or full, the store has no such image, or `pace` stops it.
    pub fn bring(
        &self,
        store: &Store,
        id: &ImageId,
        place: usize,
        pace: &dyn Pace,
    ) -> anyhow::Result<Copied> {
        let known = self.tiers.known().get(id.0).and_then(|known| known.object);
        match self.bring_known(known, place, pace)? {
            Some(copied) => Ok(copied),
            None => self.make(store, id, place, pace),
        }
    }

    /// Copies an object that is on another tier to this one; `None` if it has to be made from its source.
    pub(super) fn bring_known(
        &self,
        known: Option<ContentId>,
        place: usize,
        pace: &dyn Pace,
    ) -> anyhow::Result<Option<Copied>> {
        let to = self.index_of(place)?;
        match known.and_then(|object| self.objects().get(object)) {
            Some(object) if object.tiers.contains(&to) => {
                if self.is_sound(object.id, place, pace)? {
                    return Ok(Some(Copied::There));
                }
                // Whoever has it open reads on in what he has open.
                self.objects.remove(object.id)?;
                Ok(None)
            }
            Some(object) if !object.tiers.is_empty() => {
                match self.objects.copy(object.id, to, pace) {
                    Ok(copied) => Ok(Some(copied)),
                    Err(ObjectError::Damaged { .. }) => {
                        self.objects.remove(object.id)?;
                        Ok(None)
                    }
                    Err(error) => Err(self.explain(error, place)),
                }
            }
            _ => Ok(None),
        }
    }

    /// Puts an object on a tier.
    pub(super) fn add(
        &self,
        object: ContentId,
        bytes: u64,
        place: usize,
        content: &mut dyn Read,
        pace: &dyn Pace,
    ) -> anyhow::Result<Copied> {
        let to = self.index_of(place)?;
        let added = self.objects().add(object, bytes, to, content, pace);
        added.map_err(|error| self.explain(error, place))
    }

    const fn objects(&self) -> &Objects {
        self.objects.objects()
    }

    pub(super) const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Removes a copy of an object, even the last one: its source is in the store.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn drop_from(&self, object: ContentId, place: usize) -> anyhow::Result<Dropped> {
        let from = self.index_of(place)?;
        let Some(held) = self.objects().get(object) else {
            return Ok(Dropped::None);
        };
        if !held.tiers.contains(&from) {
            return Ok(Dropped::None);
        }
        let hold = hold_alone_within(&self.path_of(object, place), LOOK);
        if matches!(hold, Hold::Open) {
            return Ok(Dropped::Open);
        }
        let gone = match held.tiers.len() {
            1 => self.objects.remove(object),
            _ => self.objects.leave(object, from),
        };
        gone.map_err(|error| self.explain(error, place))?;
        drop(hold);
        Ok(Dropped::Gone)
    }

    /// Returns the places of the tiers that have an object.
    pub fn places_of(&self, object: ContentId) -> Vec<usize> {
        let object = self.objects().get(object);
        let tiers = object.map(|object| object.tiers).unwrap_or_default();
        tiers
            .into_iter()
            .filter_map(|tier| self.places.get(tier.0).copied())
            .collect()
    }

    /// Makes the object that a boot image is, and puts it on a tier: in parts, so that what it has in
    /// common with others is there once.
    fn make(
        &self,
        store: &Store,
        id: &ImageId,
        place: usize,
        pace: &dyn Pace,
    ) -> anyhow::Result<Copied> {
        let to = self.index_of(place)?;
        let made = match store.parts(id, &mut watch(pace)) {
            Err(StoreError::Write(WriteError::Cancelled)) => {
                return Err(Interrupted.into());
            }
            made => made.context("reading the boot image")?,
        };
        let index = index_of(&made).context("writing its index")?;
        let object = index.id();
        // First what it is, then that it is there: a copy that nobody knows would be garbage.
        self.tiers.known().change(id.0, |known| {
            known.object = Some(object);
            known.bytes = index.encode().len() as u64 + index.part_bytes();
        })?;
        let mut bring = |_: usize, part: &Part, buf: &mut [u8]| {
            let read = made.read(part.pool, part.blocks, buf);
            read.map_err(|source| ObjectError::Input { id: object, source })
        };
        let added = self.objects.add(&index, to, &mut bring, pace);
        added.map_err(|error| self.explain(error, place))
    }

    fn is_sound(&self, object: ContentId, place: usize, pace: &dyn Pace) -> anyhow::Result<bool> {
        let bytes = self.objects().get(object).map_or(0, |object| object.len);
        if pace.turn(bytes).is_err() {
            return Err(Interrupted.into());
        }
        if self.objects.index(object).is_some() {
            let to = self.index_of(place)?;
            let sound = self.objects.has_all_parts(object, to, pace);
            return sound.map_err(|_| Interrupted.into());
        }
        // What cannot be read is not sound either.
        let found =
            open_regular(&self.path_of(object, place)).and_then(|mut file| name_of(&mut file));
        Ok(found.is_ok_and(|found| found == (object, bytes)))
    }

    fn path_of(&self, object: ContentId, place: usize) -> std::path::PathBuf {
        self.tiers.specs()[place].dir.join(object.to_string())
    }

    fn index_of(&self, place: usize) -> anyhow::Result<TierIndex> {
        let index = self.places.iter().position(|there| *there == place);
        index.map(TierIndex).ok_or_else(|| {
            let why = self.away.iter().find(|(away, _)| *away == place);
            let why = why.map_or("it is not there", |(_, why)| why);
            anyhow!(
                "tier {} cannot be used: {why}",
                self.tiers.specs()[place].name
            )
        })
    }

    /// Says what failed in the words of the tiers file.
    fn explain(&self, error: ObjectError, place: usize) -> anyhow::Error {
        let tier = &self.tiers.specs()[place].name;
        let full = "make room (yolofs tier evict), or give it more in the tiers file";
        match error {
            ObjectError::Cancelled { .. } => Interrupted.into(),
            ObjectError::Full { need, room, .. } => anyhow!(
                "it needs {}, and tier {tier} has {} left: {full}",
                Size(need),
                Size(room)
            ),
            ObjectError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                anyhow!("the file system of tier {tier} is full: {full}")
            }
            error => anyhow::Error::from(error).context(format!("on tier {tier}")),
        }
    }
}

/// Closes copies that an earlier release left open to everybody: they have content of files that only root
/// may read. What has another name is not ours.
fn close_copies(dir: &Path) {
    let close = || -> io::Result<()> {
        let readers = Readers::in_dir(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let id = name.strip_suffix(".part").unwrap_or(name);
            if id.parse::<ContentId>().is_ok() && entry.metadata()?.mode() & 0o007 != 0 {
                private::give(&entry.path(), readers)?;
            }
        }
        Ok(())
    };
    if let Err(error) = close() {
        let dir = dir.display();
        log::warn!("everybody may be able to read the copies in {dir}: {error}");
    }
}

/// Returns the index of a boot image, whose parts are those of its files in the store.
fn index_of(made: &StoredParts) -> Result<Index, tiering::parts::IndexError> {
    let parts = made.parts().iter().map(|part| Part {
        pool: part.file,
        blocks: part.blocks,
        hash: part.hash,
    });
    Index::new(made.files().collect(), parts.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn copies_of_earlier_releases_are_closed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let id = ContentId::of(b"x");
        let ours = [id.to_string(), format!("{id}.part")];
        let others = ["notes".to_owned(), format!("{id}.txt")];
        for name in ours.iter().chain(&others) {
            let path = dir.path().join(name);
            fs::write(&path, b"content").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        close_copies(dir.path());
        let mode = |name: &String| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        assert_eq!(ours.each_ref().map(mode), [0o600; 2]);
        assert_eq!(others.each_ref().map(mode), [0o644; 2]);
        // What is written there from now on is closed from the start.
        let medium = DirMedium::open(dir.path()).unwrap();
        tiering::medium::Medium::write_at(&medium, "new", 0, b"x").unwrap();
        assert_eq!(mode(&"new".to_owned()), 0o600);
    }

    /// A tier may be in a place where everybody makes files, such as a tmpfs.
    #[test]
    fn no_copy_is_written_where_a_link_leads() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, b"root").unwrap();
        let tier = dir.path().join("tier");
        let medium = DirMedium::open(&tier).unwrap();
        std::os::unix::fs::symlink(&elsewhere, tier.join("copy")).unwrap();
        let written = tiering::medium::Medium::write_at(&medium, "copy", 0, b"x");
        assert!(written.is_err());
        let freed = tiering::medium::Medium::give_back(&medium, "copy", 0, 4);
        assert!(freed.is_err());
        assert_eq!(fs::read(&elsewhere).unwrap(), b"root");
    }
}
