//! Records of boot images as objects: the object of each, whether it is pinned, and
//! how hot it is. A small file for each, written aside and renamed.
//!
//! All of it can be lost: then an object is made anew, and heat begins again.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use blocks::ContentId;
use rawio::file_lock::{FileLock, Purpose};
use rawio::private;
use serde::{Deserialize, Serialize};
use tiering::heat::Heat;

/// Bytes of a file: it has a few fields.
const FILE_MAX: u64 = 4096;
/// Boot images of which something is known: more than a store of any size has.
const KNOWN_MAX: usize = 65_536;
/// How long a start waits for the lock to record its heat; it can skip that.
const HEAT_PATIENCE: Duration = Duration::from_secs(1);
/// How long other changes wait for the lock.
const PATIENCE: Duration = Duration::from_secs(30);

const NOTES: Purpose = Purpose {
    holder: "records what is known of boot images",
    advice: "try again when it has ended",
};

/// The record of a boot image, apart from its heat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The file that it is when it is moved: its hash.
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub object: Option<ContentId>,
    /// Length of that file.
    #[serde(default)]
    pub bytes: u64,
    /// Whether it is pinned to the fastest tier.
    #[serde(default)]
    pub pinned: bool,
    /// The path of the file that this is a whole copy of; absent for a boot image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The directory whose files were passed through in the latest mount of the boot image's source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<String>,
}

/// A directory of records.
#[derive(Clone, Debug)]
pub struct Knowledge {
    known: PathBuf,
    heat: PathBuf,
    lock: PathBuf,
}

impl Knowledge {
    pub(super) fn in_dir(dir: &Path) -> Self {
        Self {
            known: dir.join("known"),
            heat: dir.join("heat"),
            lock: dir.join("known.lock"),
        }
    }

    /// Returns the record of a boot image. An unreadable record counts as absent.
    pub fn get(&self, key: ContentId) -> Option<Known> {
        let bytes = read_bounded(&self.known.join(key.to_string())).ok()?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| log::warn!("the record of {} is damaged: {error}", key.short()))
            .ok()
    }

    /// Returns how hot a boot image is.
    pub fn heat(&self, key: ContentId) -> Heat {
        let text = read_bounded(&self.heat.join(key.to_string())).ok();
        text.and_then(|text| heat_of(&text)).unwrap_or_default()
    }

    /// Returns the directories whose modification times show whether records changed.
    pub(super) fn dirs(&self) -> [&Path; 2] {
        [&self.known, &self.heat]
    }

    /// Returns the boot images of which something is known, sorted.
    pub fn keys(&self) -> Vec<ContentId> {
        let names = [&self.known, &self.heat].into_iter().flat_map(|dir| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        });
        let mut keys: Vec<ContentId> = names.collect();
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(KNOWN_MAX);
        keys
    }

    /// Changes the record of a boot image, durably.
    ///
    /// # Errors
    /// If it cannot be written, or its lock is not released in time.
    pub fn change(&self, key: ContentId, change: impl FnOnce(&mut Known)) -> anyhow::Result<()> {
        let _turn = self.turn(PATIENCE)?;
        let mut known = self.get(key).unwrap_or_default();
        let before = known.clone();
        change(&mut known);
        if known == before {
            return Ok(());
        }
        let text = serde_json::to_vec(&known).context("encoding the record")?;
        let path = self.room(&self.known, key)?;
        replace(&path, &text, Durable::Yes).with_context(|| format!("writing {}", path.display()))
    }

    /// Adds a start that needed all of a boot image. A power cut may lose the latest starts.
    ///
    /// # Errors
    /// If it cannot be written, or its lock is not released in time.
    pub fn add_heat(&self, key: ContentId, now: Duration) -> anyhow::Result<()> {
        self.heat_up(key, now, |_| 1.0)
    }

    /// Records that a start is expected, by a user who copied its data here: it is at least as hot as if it had
    /// started now.
    ///
    /// # Errors
    /// As [`add_heat`](Self::add_heat).
    pub fn expect_start(&self, key: ContentId, now: Duration) -> anyhow::Result<()> {
        self.heat_up(key, now, |is| (1.0 - is).max(0.0))
    }

    fn heat_up(
        &self,
        key: ContentId,
        now: Duration,
        by: impl Fn(f64) -> f64,
    ) -> anyhow::Result<()> {
        let _turn = self.turn(HEAT_PATIENCE)?;
        let mut heat = self.heat(key);
        heat.add(now, by(heat.at(now)));
        let path = self.room(&self.heat, key)?;
        let text = format!("{:.6} {}\n", heat.at(now), now.as_secs());
        replace(&path, text.as_bytes(), Durable::No)
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Removes the record of a boot image.
    ///
    /// # Errors
    /// If the lock is not released in time, or it cannot be removed.
    pub fn forget(&self, key: ContentId) -> anyhow::Result<()> {
        let _turn = self.turn(PATIENCE)?;
        for dir in [&self.known, &self.heat] {
            let path = dir.join(key.to_string());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn turn(&self, patience: Duration) -> anyhow::Result<FileLock> {
        for dir in [&self.known, &self.heat] {
            private::make_dir_alike(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(FileLock::take(&self.lock, patience, NOTES)?)
    }

    /// Returns where something of a boot image is written, if there is room for one more.
    fn room(&self, dir: &Path, key: ContentId) -> anyhow::Result<PathBuf> {
        let path = dir.join(key.to_string());
        let full = !path.exists() && fs::read_dir(dir)?.count() >= KNOWN_MAX;
        anyhow::ensure!(
            !full,
            "there are {KNOWN_MAX} records of boot images, which is the limit"
        );
        Ok(path)
    }
}

fn heat_of(text: &[u8]) -> Option<Heat> {
    let text = std::str::from_utf8(text).ok()?;
    let (value, at) = text.trim().split_once(' ')?;
    let value: f64 = value.parse().ok()?;
    Some(Heat::of(value, Duration::from_secs(at.parse().ok()?)))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a power cut may undo a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    No,
}

/// Replaces a file atomically. Only for the holder of the lock.
pub(super) fn replace(path: &Path, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = private::open_or_create(&new)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    if durable == Durable::Yes {
        file.sync_all()?;
    }
    fs::rename(&new, path)?;
    match path.parent() {
        Some(dir) if durable == Durable::Yes => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

/// An object's hash as text.
mod hex {
    use blocks::ContentId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    #[expect(clippy::ref_option, reason = "serde asks for it")]
    pub(super) fn serialize<S: Serializer>(
        id: &Option<ContentId>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => to.collect_str(id),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<ContentId>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn fresh() -> (tempfile::TempDir, Knowledge) {
        let dir = tempfile::tempdir().unwrap();
        let knowledge = Knowledge::in_dir(dir.path());
        (dir, knowledge)
    }

    #[test]
    fn what_was_noted_is_known_and_can_be_forgotten() {
        let (_dir, knowledge) = fresh();
        let (key, object) = (ContentId::of(b"image"), ContentId::of(b"object"));
        assert_eq!(knowledge.get(key), None);
        knowledge.change(key, |known| known.pinned = true).unwrap();
        knowledge
            .change(key, |known| known.object = Some(object))
            .unwrap();
        let known = knowledge.get(key).unwrap();
        assert_eq!((known.object, known.pinned), (Some(object), true));
        assert_eq!(knowledge.keys(), [key]);
        knowledge.forget(key).unwrap();
        knowledge.forget(key).unwrap();
        assert_eq!(knowledge.keys(), []);
    }

    #[test]
    fn who_expects_a_start_makes_it_as_hot_as_one() {
        let (_dir, knowledge) = fresh();
        let key = ContentId([7; 32]);
        for _ in 0..3 {
            knowledge.expect_start(key, HOUR).unwrap();
            assert!((knowledge.heat(key).at(HOUR) - 1.0).abs() < 1e-3);
        }
        for _ in 0..3 {
            knowledge.add_heat(key, HOUR).unwrap();
        }
        knowledge.expect_start(key, HOUR).unwrap();
        assert!((knowledge.heat(key).at(HOUR) - 4.0).abs() < 1e-3);
    }

    #[test]
    fn heat_adds_up_and_decays_across_processes() {
        let (dir, knowledge) = fresh();
        let key = ContentId::of(b"image");
        knowledge.add_heat(key, HOUR).unwrap();
        knowledge.add_heat(key, HOUR).unwrap();
        let again = Knowledge::in_dir(dir.path());
        assert!((again.heat(key).at(HOUR) - 2.0).abs() < 1e-3);
        assert!((again.heat(key).at(HOUR * 25) - 1.0).abs() < 1e-3);
        assert_eq!(knowledge.keys(), [key], "what has heat only is known, too");
    }

    #[test]
    fn what_is_damaged_or_half_written_is_not_known() {
        let (_dir, knowledge) = fresh();
        let key = ContentId::of(b"image");
        knowledge.change(key, |known| known.pinned = true).unwrap();
        knowledge.add_heat(key, HOUR).unwrap();
        for file in [&knowledge.known, &knowledge.heat] {
            fs::write(file.join(key.to_string()), b"{\"pin").unwrap();
            fs::write(file.join(key.to_string()).with_extension("new"), b"x").unwrap();
        }
        assert_eq!(knowledge.get(key), None);
        assert!(knowledge.heat(key).at(HOUR) < 1e-9);
        assert_eq!(knowledge.keys(), [key]);
        knowledge.change(key, |known| known.pinned = true).unwrap();
        assert!(knowledge.get(key).unwrap().pinned);
    }
}
