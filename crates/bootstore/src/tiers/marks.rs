//! Whether a directory is the tier that it was: where NVM is not mounted, its mount point is a
//! directory of the disk below, and must not fill up in its place. Nor must a medium that is mounted there instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tiering::medium::{DirMedium, Medium};
use tiering::objects::Mark;
use tiering::tier::{Capability, Kind, detect};

use super::Tiers;
use super::file::TierSpec;
use super::known::{Durable, replace};

/// The state of a tier's directory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) capability: Capability,
    pub(super) medium: Arc<dyn Medium>,
    mark: MarkState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkState {
    /// It has this mark.
    There(Mark),
    /// It was never used as a tier.
    New,
    /// It is in memory, which was emptied: it gets its former mark again.
    Lost(Mark),
}

/// The marks of the tiers that were used, by name.
#[derive(Debug)]
pub(super) struct Marks {
    path: PathBuf,
    marks: BTreeMap<String, Mark>,
    lasting_path: PathBuf,
    /// The tiers that were on a medium that keeps its content. Where such a tier has no mark, it is not
    /// an emptied tmpfs, even if its mount point lies in one.
    lasting: BTreeSet<String>,
}

impl Marks {
    /// # Errors
    /// If what is remembered cannot be read now. What is lost is not remembered: then every directory is
    /// what it says it is.
    pub(super) fn read(tiers: &Tiers) -> anyhow::Result<Self> {
        let path = tiers.state.join("marks.json");
        let lasting_path = tiers.state.join("lasting.json");
        let texts: BTreeMap<String, String> = remembered(&path)?;
        let lasting = remembered(&lasting_path)?;
        let marks = texts.into_iter().filter_map(|(name, text)| {
            let bytes = u128::from_str_radix(&text, 16).ok()?;
            Some((name, Mark(bytes.to_le_bytes())))
        });
        let marks = marks.collect();
        Ok(Self {
            path,
            marks,
            lasting_path,
            lasting,
        })
    }

    /// Checks the directory of a tier; leaves no file in it.
    ///
    /// # Errors
    /// If it is missing, has the mark of another tier, or lacks that which it was given.
    pub(super) fn find(&self, spec: &TierSpec) -> anyhow::Result<Found> {
        let capability = detect(&spec.dir).context("it is not there")?;
        let medium: Arc<dyn Medium> = Arc::new(DirMedium::open(&spec.dir)?);
        let mark = match (Mark::read(&*medium)?, self.marks.get(&spec.name)) {
            (Some(mark), Some(was)) if mark != *was => anyhow::bail!(
                "{} has the mark of {}: is the right file system mounted? (a new medium takes a new name in \
                 the tiers file)",
                spec.dir.display(),
                self.owner(mark)
            ),
            (Some(mark), _) => MarkState::There(mark),
            (None, None) => MarkState::New,
            (None, Some(was)) if self.is_emptied(spec, capability.kind) => MarkState::Lost(*was),
            (None, Some(_)) => anyhow::bail!(
                "{} lacks the mark of this tier: is its file system not mounted? (a new \
                 medium takes a new name in the tiers file)",
                spec.dir.display()
            ),
        };
        Ok(Found {
            capability,
            medium,
            mark,
        })
    }

    /// Returns whether a directory without its mark is the memory that the tier was in.
    fn is_emptied(&self, spec: &TierSpec, kind: Kind) -> bool {
        kind == Kind::Memory && !self.lasting.contains(&spec.name)
    }

    /// Returns whose mark it is, for errors.
    fn owner(&self, mark: Mark) -> String {
        let mut all = self.marks.iter();
        let owner = all.find(|(_, known)| **known == mark);
        owner.map_or_else(
            || "a tier that is not known here".to_owned(),
            |(name, _)| format!("the tier {name}"),
        )
    }

    /// Marks a directory as found, and remembers the mark. Only for processes that move objects.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn settle(&mut self, spec: &TierSpec, found: &Found) -> anyhow::Result<()> {
        let mark = match found.mark {
            MarkState::There(mark) => mark,
            MarkState::New => Mark::random()?,
            MarkState::Lost(mark) => mark,
        };
        // First what it is to be: a directory that is marked and not remembered is as good as new.
        if self.marks.insert(spec.name.clone(), mark) != Some(mark) {
            self.write()?;
        }
        let changed = if found.capability.kind == Kind::Memory {
            self.lasting.remove(&spec.name)
        } else {
            self.lasting.insert(spec.name.clone())
        };
        if changed {
            write(&self.lasting_path, &self.lasting)?;
        }
        if !matches!(found.mark, MarkState::There(_)) {
            let marking = mark.write(&*found.medium);
            marking.with_context(|| format!("marking {}", spec.dir.display()))?;
        }
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        let text = |mark: &Mark| format!("{:032x}", u128::from_le_bytes(mark.0));
        let texts: BTreeMap<&str, String> = self
            .marks
            .iter()
            .map(|(name, mark)| (name.as_str(), text(mark)))
            .collect();
        write(&self.path, &texts)
    }
}

/// Reads what was written; nothing, if it is missing or damaged.
fn remembered<T: DeserializeOwned + Default>(path: &Path) -> anyhow::Result<T> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

fn write(path: &Path, what: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_vec(what)?;
    replace(path, &text, Durable::Yes).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::file::SpaceLimit;
    use super::*;

    struct Fixture {
        state: tempfile::TempDir,
        disk: tempfile::TempDir,
        memory: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                state: tempfile::tempdir().unwrap(),
                // Of the build, which nobody does in memory.
                disk: tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap(),
                memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            }
        }

        fn marks(&self) -> anyhow::Result<Marks> {
            Marks::read(&Tiers {
                specs: Vec::new(),
                file: None,
                state: self.state.path().to_owned(),
            })
        }

        /// Uses a directory as a tier, as a process that moves objects does.
        fn take(&self, spec: &TierSpec) -> anyhow::Result<Mark> {
            let mut marks = self.marks()?;
            let found = marks.find(spec)?;
            marks.settle(spec, &found)?;
            Ok(Mark::read(&*found.medium)?.unwrap())
        }
    }

    fn tier(name: &str, dir: &Path) -> TierSpec {
        TierSpec {
            name: name.to_owned(),
            dir: dir.to_owned(),
            room: SpaceLimit::Percent(50),
        }
    }

    fn refused(fixture: &Fixture, spec: &TierSpec) -> String {
        let before = fs::read(fixture.state.path().join("marks.json")).unwrap();
        let error = format!("{:#}", fixture.take(spec).unwrap_err());
        let after = fs::read(fixture.state.path().join("marks.json")).unwrap();
        assert_eq!(before, after, "what is remembered was changed");
        error
    }

    #[test]
    fn the_mark_of_another_tier_is_refused_and_the_one_that_is_remembered_stays() {
        let fixture = Fixture::new();
        let (one, other) = (fixture.disk.path().join("1"), fixture.disk.path().join("2"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&other).unwrap();
        let mark = fixture.take(&tier("nvm", &one)).unwrap();
        assert_eq!(fixture.take(&tier("nvm", &one)).unwrap(), mark);
        assert_ne!(fixture.take(&tier("ssd", &other)).unwrap(), mark);
        let error = refused(&fixture, &tier("nvm", &other));
        assert!(error.contains("has the mark of the tier ssd"), "{error}");
        let foreign = Mark([7; 16]);
        foreign.write(&DirMedium::open(&one).unwrap()).unwrap();
        let error = refused(&fixture, &tier("nvm", &one));
        assert!(error.contains("a tier that is not known here"), "{error}");
        assert!(error.contains("takes a new name"), "{error}");
        // As it says.
        assert_eq!(fixture.take(&tier("new", &one)).unwrap(), foreign);
    }

    #[test]
    fn an_emptied_tmpfs_is_marked_again_and_one_in_place_of_a_disk_is_refused() {
        let fixture = Fixture::new();
        let in_memory = tier("memory", fixture.memory.path());
        let mark = fixture.take(&in_memory).unwrap();
        for file in fs::read_dir(fixture.memory.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        assert_eq!(fixture.take(&in_memory).unwrap(), mark);

        fixture.take(&tier("disk", fixture.disk.path())).unwrap();
        let mount_point = fixture.memory.path().join("mount point");
        fs::create_dir(&mount_point).unwrap();
        let error = refused(&fixture, &tier("disk", &mount_point));
        assert!(error.contains("is its file system not mounted?"), "{error}");
        assert_eq!(fs::read_dir(&mount_point).unwrap().count(), 0);
    }

    #[test]
    fn what_is_remembered_and_cannot_be_read_is_not_taken_for_lost() {
        let fixture = Fixture::new();
        let spec = tier("disk", fixture.disk.path());
        fixture.take(&spec).unwrap();
        let path = fixture.state.path().join("marks.json");
        fs::rename(&path, path.with_extension("aside")).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap(); // ELOOP, for root as well
        let error = format!("{:#}", fixture.take(&spec).unwrap_err());
        assert!(error.contains("marks.json"), "{error}");
    }
}
