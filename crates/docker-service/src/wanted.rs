//! The images that are to be served: stored on disk, so that the successor of a worker that died
//! knows them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;
use blocks::Digest;
use rawio::regular::{self, Links};
use serde::{Deserialize, Serialize};

/// The longest list, in bytes: some hundred thousand images.
const LIST_MAX: u64 = 8 << 20;

/// The desired images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// All that have boot images, those that come later included.
    #[serde(default)]
    pub all: bool,
    /// These in any case.
    #[serde(default)]
    pub images: BTreeSet<Digest>,
    /// These not, even if all are.
    #[serde(default)]
    pub never: BTreeSet<Digest>,
}

/// The images that a command names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chosen {
    /// All images.
    All,
    /// These.
    Images(BTreeSet<Digest>),
}

impl Wanted {
    /// Returns whether an image is to be served.
    pub fn has(&self, image: &Digest) -> bool {
        self.images.contains(image) || self.all && !self.never.contains(image)
    }

    /// Returns whether no image ever is.
    pub fn is_nothing(&self) -> bool {
        !self.all && self.images.is_empty()
    }

    /// Adds images.
    pub fn add(&mut self, chosen: &Chosen) {
        match chosen {
            Chosen::All => {
                self.all = true;
                self.never.clear();
            }
            Chosen::Images(images) => {
                self.never.retain(|image| !images.contains(image));
                self.images.extend(images);
            }
        }
    }

    /// Removes images.
    pub fn remove(&mut self, chosen: &Chosen) {
        match chosen {
            Chosen::All => *self = Self::default(),
            Chosen::Images(images) => {
                self.images.retain(|image| !images.contains(image));
                if self.all {
                    self.never.extend(images);
                }
            }
        }
    }

    /// Reads the stored list; empty if there is none.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = match regular::read(path, Links::Followed, LIST_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("reading {}", path.display()))?,
        };
        serde_json::from_slice(&text).with_context(|| {
            format!(
                "parsing {}: if it is damaged, remove it, and attach the images again",
                path.display()
            )
        })
    }

    /// Stores the list atomically. Only for the holder of the lock to serve: the temporary file has one
    /// name, and the last write wins.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".part");
        let text = serde_json::to_vec_pretty(self).context("writing JSON")?;
        // What is there is not opened: it may be a pipe, or a link.
        match fs::remove_file(&aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
        .and_then(|()| fs::File::create_new(&aside))
        .and_then(|mut file| file.write_all(&text))
        .and_then(|()| fs::rename(&aside, path))
        .with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_follows_the_commands() {
        let (a, b) = (Digest([1; 32]), Digest([2; 32]));
        let only = |image: Digest| Chosen::Images([image].into());
        let mut wanted = Wanted::default();
        assert!(wanted.is_nothing());
        wanted.add(&only(a));
        assert!(wanted.has(&a) && !wanted.has(&b));
        wanted.add(&Chosen::All);
        assert!(wanted.has(&b));
        wanted.remove(&only(b));
        assert!(!wanted.has(&b) && wanted.has(&a));
        wanted.remove(&only(a));
        assert!(!wanted.has(&a), "detached although all are attached");
        wanted.add(&only(b));
        assert!(wanted.has(&b));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wanted");
        assert_eq!(Wanted::load(&path).unwrap(), Wanted::default());
        wanted.save(&path).unwrap();
        assert_eq!(Wanted::load(&path).unwrap(), wanted);
        fs::write(&path, "{").unwrap();
        assert!(Wanted::load(&path).is_err());
        wanted.remove(&Chosen::All);
        assert!(wanted.is_nothing());
    }

    #[test]
    fn a_pipe_in_the_place_of_the_list_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wanted");
        let pipe = |name| {
            nix::unistd::mkfifo(&dir.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        };
        pipe("wanted");
        pipe("wanted.part");
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let loaded = Wanted::load(&path);
            Wanted::default().save(&path).unwrap();
            tell.send((loaded, Wanted::load(&path)))
        });
        let seen = told.recv_timeout(std::time::Duration::from_secs(30));
        let (loaded, saved) = seen.expect("it waits for the pipe");
        let why = format!("{:#}", loaded.unwrap_err());
        assert!(why.contains("not a regular file"), "{why}");
        assert_eq!(saved.unwrap(), Wanted::default());
    }
}
