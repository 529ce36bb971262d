//! The directory with the profiles: `NAME.trace` is a profile, and an empty file `NAME.applied` beside it means
//! that its pages are locked.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use host::names::random_name;
use tracer::Trace;

use crate::profile::Profile;

const PROFILE: &str = "trace";
const APPLIED: &str = "applied";
/// The longest name.
const NAME_MAX: usize = 64;
/// The most profiles.
const PROFILES_MAX: usize = 256;
/// The longest profile, in bytes: 1 million touches.
const PROFILE_MAX: u64 = 64 << 20;

/// The directory with the profiles.
#[derive(Clone, Debug)]
pub struct PinDir(PathBuf);

impl PinDir {
    /// Returns the one at `path`, which need not be there yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Stores a profile atomically; one of the same name is replaced.
    ///
    /// # Errors
    /// If the name is invalid, or the directory cannot be written.
    pub fn keep(&self, name: &str, trace: &Trace) -> anyhow::Result<Profile> {
        check_name(name)?;
        let bytes = trace.write().context("writing the profile")?;
        let profile = Profile::from_bytes(name, &bytes)?;
        self.write(&self.path(name, PROFILE), &bytes)?;
        Ok(profile)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// If there is none of that name, or it is damaged.
    pub fn profile(&self, name: &str) -> anyhow::Result<Profile> {
        check_name(name)?;
        let path = self.path(name, PROFILE);
        let mut bytes = Vec::new();
        let opened = File::open(&path).with_context(|| {
            format!(
                "there is no profile {name} ({}): `yolofs pin record {name} -- COMMAND` makes one",
                path.display()
            )
        });
        let read = opened?.take(PROFILE_MAX + 1).read_to_end(&mut bytes);
        read.with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            bytes.len() as u64 <= PROFILE_MAX,
            "{} is too long for a profile",
            path.display()
        );
        Profile::from_bytes(name, &bytes)
    }

    /// Marks a profile as applied: its pages are to be locked.
    ///
    /// # Errors
    /// If there is no such profile, or the mark cannot be written.
    pub fn apply(&self, name: &str) -> anyhow::Result<()> {
        self.profile(name)?;
        self.write(&self.path(name, APPLIED), b"")
    }

    /// Removes that mark, and returns whether there was one.
    ///
    /// # Errors
    /// If there is no such profile, or the mark cannot be removed.
    pub fn drop_one(&self, name: &str) -> anyhow::Result<bool> {
        check_name(name)?;
        let there = self.path(name, PROFILE).exists();
        let removed = remove(&self.path(name, APPLIED))?;
        ensure!(
            there || removed,
            "there is no profile {name} in {}",
            self.0.display()
        );
        Ok(removed)
    }

    /// Removes a profile that is not applied.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn forget(&self, name: &str) -> anyhow::Result<()> {
        self.drop_one(name)?;
        remove(&self.path(name, PROFILE)).map(drop)
    }

    /// Returns the names of all profiles, in order.
    ///
    /// # Errors
    /// If the directory cannot be read, or has too many.
    pub fn names(&self) -> anyhow::Result<Vec<String>> {
        self.named(PROFILE)
    }

    /// Returns the names of the applied profiles, in order.
    ///
    /// # Errors
    /// As [`names`](Self::names).
    pub fn applied(&self) -> anyhow::Result<Vec<String>> {
        self.named(APPLIED)
    }

    fn named(&self, extension: &str) -> anyhow::Result<Vec<String>> {
        let doing = || format!("listing the profiles in {}", self.0.display());
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(doing)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let path = entry.with_context(doing)?.path();
            let name = path.file_stem().and_then(|name| name.to_str());
            if path.extension().is_some_and(|is| is == extension)
                && let Some(name) = name.filter(|name| check_name(name).is_ok())
            {
                names.push(name.to_owned());
            }
            if names.len() > PROFILES_MAX {
                bail!(
                    "{} has more than {PROFILES_MAX} profiles: `yolofs pin drop --forget` removes some",
                    self.0.display()
                );
            }
        }
        names.sort();
        Ok(names)
    }

    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.0.join(format!("{name}.{extension}"))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let doing = || format!("writing {}", path.display());
        let mut dir = fs::DirBuilder::new();
        dir.recursive(true)
            .mode(0o700)
            .create(&self.0)
            .with_context(doing)?;
        let aside = self.0.join(random_name(".new-")?);
        let written = File::create(&aside)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&aside, path))
            .and_then(|()| File::open(&self.0)?.sync_all());
        if written.is_err() {
            // What could not be written is of no use; that it stays would be no news.
            let _gone = fs::remove_file(&aside);
        }
        written.with_context(doing)
    }
}

fn remove(path: &Path) -> anyhow::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let fits = (1..=NAME_MAX).contains(&name.len()) && !name.starts_with(['.', '-']);
    ensure!(
        fits && name.bytes().all(plain),
        "{name:?} cannot be the name of a profile: use up to {NAME_MAX} letters, digits, dots, dashes and underscores"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::SOURCE;
    use blocks::SourceId;
    use std::os::unix::fs::PermissionsExt as _;

    fn empty() -> Trace {
        let mut trace = Trace::default();
        trace.info.source = SourceId::of_label(SOURCE.as_bytes());
        trace
    }

    #[test]
    fn a_profile_is_kept_applied_dropped_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let pins = PinDir::new(dir.path().join("pins"));
        assert_eq!(pins.names().unwrap(), [""; 0]);
        assert!(pins.apply("docker").is_err());
        pins.keep("docker", &empty()).unwrap();
        pins.keep("qemu-7.2", &empty()).unwrap();
        let mode = fs::metadata(&pins.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        pins.apply("docker").unwrap();
        pins.apply("docker").unwrap();
        assert_eq!(pins.names().unwrap(), ["docker", "qemu-7.2"]);
        assert_eq!(pins.applied().unwrap(), ["docker"]);
        assert!(pins.drop_one("docker").unwrap());
        assert!(!pins.drop_one("docker").unwrap());
        pins.forget("docker").unwrap();
        assert!(pins.drop_one("docker").is_err());
        assert_eq!(pins.names().unwrap(), ["qemu-7.2"]);
    }

    #[test]
    fn a_name_stays_in_the_directory() {
        let pins = PinDir::new("/nonexistent".into());
        for name in ["", ".", "..", "a/b", "-x", "a b", &"x".repeat(65)] {
            assert!(pins.keep(name, &empty()).is_err(), "{name}");
            assert!(pins.forget(name).is_err(), "{name}");
        }
    }
}
