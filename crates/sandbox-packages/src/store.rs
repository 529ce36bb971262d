//! The directory of packages: how they are added, found and removed.
//!
//! ```text
//! BASE/packages/NAME==VERSION/   what sandboxes see at /packages, read-only
//! BASE/records/NAME==VERSION.json
//! BASE/resolutions/HASH.json     requirements, and all that they took
//! BASE/built/                    wheels that were made of source distributions
//! incoming/                      what is under way; emptied at the next start
//! ```

mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use sandbox::cache::Hits;
use sandbox::{Packages, Sandboxes};

use crate::claims::{Claim, Claims};
use crate::error::{PackageError, Result, at};
use crate::names::{Pinned, check_requirements};
use crate::pip::{Installer, Source};
use crate::records::{self, Installed, Resolution, path_of};
use crate::tree;

/// Packages that one request may take.
const PACKAGES_MAX: usize = 512;

/// The packages of a machine. One program has it at a time.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    next: AtomicU64,
    uses: Mutex<BTreeMap<(String, String), Hits>>,
    claims: Arc<Claims>,
    _lock: Flock<File>,
}

/// A directory for what is under way, which goes when it is done.
#[derive(Debug)]
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = tree::remove(&self.0) {
            log::warn!("{} stays until the next start: {error}", self.0.display());
        }
    }
}

impl Store {
    /// Opens a directory, and removes incomplete work of a program that was killed.
    ///
    /// # Errors
    /// If it is in use by another program, or cannot be created.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self> {
        let root: PathBuf = root.into();
        let incoming = root.join("incoming");
        fs::create_dir_all(&incoming).map_err(at("making", &incoming))?;
        let root = root.canonicalize().map_err(at("opening", &root))?;
        let path = root.join("lock");
        let file = File::create(&path).map_err(at("making", &path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
            PackageError::Invalid(format!(
                "another program has its packages in {}: choose another directory",
                root.display()
            ))
        })?;
        // Whoever is in a sandbox comes by mounts only.
        let private = Permissions::from_mode(0o700);
        fs::set_permissions(&root, private).map_err(at("setting the mode of", &root))?;
        let store = Self {
            root,
            next: AtomicU64::new(0),
            uses: Mutex::default(),
            claims: Arc::default(),
            _lock: lock,
        };
        for entry in fs::read_dir(&incoming).map_err(at("reading", &incoming))? {
            tree::remove(&entry.map_err(at("reading", &incoming))?.path())?;
        }
        Ok(store)
    }

    /// Returns the directory that sandboxes of a base have as `/packages`.
    pub fn dir_of(&self, base: &str) -> PathBuf {
        self.of(base, "packages")
    }

    fn of(&self, base: &str, kind: &str) -> PathBuf {
        self.root.join(base).join(kind)
    }

    /// Makes sure that all packages that requirements need are installed, and returns them. An earlier resolution
    /// is used again, without network access.
    ///
    /// # Errors
    /// If the installer fails, or a package is invalid.
    pub fn add(
        &self,
        sandboxes: &Sandboxes,
        installer: &Installer,
        requirements: &[String],
        source: &Source,
    ) -> Result<Packages> {
        let requirements = check_requirements(requirements)?;
        self.make(&installer.base)?;
        if let Some(packages) = self.kept(&installer.base, &requirements) {
            return Ok(packages);
        }
        let work = self.work()?;
        self.lend_built(&installer.base, &work.0)?;
        installer.download(sandboxes, &requirements, source, &work.0)?;
        let wheels = wheels_in(&work.0.join("wheels"))?;
        let packages: Packages = wheels.iter().map(|(pinned, _)| pinned.text()).collect();
        // What is there is not removed until the resolution names it, and what is being removed is installed after that.
        let _claim = self.claim(&installer.base, &packages)?;
        for (pinned, wheel) in wheels {
            if !self.dir_of(&installer.base).join(pinned.text()).is_dir() {
                self.install(sandboxes, installer, &pinned, &wheel)?;
            }
        }
        let resolution = Resolution {
            requirements,
            packages: packages.clone(),
        };
        let path = path_of(
            &self.of(&installer.base, "resolutions"),
            &resolution.requirements,
        );
        records::write(&path, &work.0.join("resolution"), &resolution)?;
        Ok(packages)
    }

    /// Builds a wheel from a source distribution, whose code runs in a sandbox for that, and keeps it for
    /// later requests. `package` is `NAME==VERSION`.
    ///
    /// # Errors
    /// If the installer fails, or the result is another package.
    pub fn build(
        &self,
        sandboxes: &Sandboxes,
        installer: &Installer,
        package: &str,
        source: &Source,
    ) -> Result<()> {
        let pinned = Pinned::parse(package)?;
        self.make(&installer.base)?;
        let work = self.work()?;
        installer.build(sandboxes, &pinned.text(), source, &work.0)?;
        let wheels = wheels_in(&work.0.join("wheels"))?;
        let [(made, wheel)] = &wheels[..] else {
            return Err(hostile(
                &pinned,
                format!("its build made {} wheels", wheels.len()),
            ));
        };
        if *made != pinned {
            return Err(hostile(&pinned, format!("its build made {}", made.text())));
        }
        let name = wheel.file_name().unwrap_or_default();
        let place = self.of(&installer.base, "built").join(name);
        fs::rename(wheel, &place).map_err(at("keeping", place))
    }

    /// Unpacks a wheel, and puts what it has in its place.
    fn install(
        &self,
        sandboxes: &Sandboxes,
        installer: &Installer,
        pinned: &Pinned,
        wheel: &Path,
    ) -> Result<()> {
        let began = Instant::now();
        let alone = self.work()?;
        let unpacked = self.work()?;
        let file = wheel
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let place = alone.0.join(file);
        fs::rename(wheel, &place).map_err(at("moving", wheel))?;
        installer.install(sandboxes, &alone.0, file, &unpacked.0)?;
        let files = unpacked.0.join("files");
        let size = tree::take_over(&files, pinned, 0)?;
        tree::check_identity(&files, pinned)?;
        let record = Installed {
            package: pinned.text(),
            base: installer.base.clone(),
            bytes: size.bytes,
            files: size.files,
            install_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            installed_ms: now_ms(),
        };
        let records = self.of(&installer.base, "records");
        let path = records.join(format!("{}.json", pinned.text()));
        records::write(&path, &alone.0.join("record"), &record)?;
        // All of its files are on the disk before its name is.
        let dir = File::open(&files).map_err(at("opening", &files))?;
        nix::unistd::syncfs(&dir).map_err(at("writing out", &files))?;
        let place = self.dir_of(&installer.base).join(pinned.text());
        match fs::rename(&files, &place) {
            // Another request was faster.
            Err(_) if place.is_dir() => Ok(()),
            renamed => renamed.map_err(at("putting in place", place)),
        }
    }

    /// Returns what requirements took when they were resolved, if all of that is there.
    fn kept(&self, base: &str, requirements: &[String]) -> Option<Packages> {
        let path = path_of(&self.of(base, "resolutions"), requirements);
        let kept: Resolution = records::read(&path)?;
        let dir = self.dir_of(base);
        let is_whole = kept.requirements == requirements
            && kept
                .packages
                .iter()
                .all(|package| dir.join(package).is_dir());
        is_whole.then_some(kept.packages)
    }

    /// Returns the packages that requirements take, which were added before, and a claim on them: none is removed
    /// until that is dropped. From the start of a sandbox on, the sandbox keeps them.
    ///
    /// # Errors
    /// If they were not added.
    pub fn packages_of(&self, base: &str, requirements: &[String]) -> Result<(Packages, Claim)> {
        let missing = || {
            let all = requirements.join(" ");
            PackageError::Unknown(format!(
                "nobody has added {all} for {base}: sandbox package add --base {base} {all}"
            ))
        };
        let packages = self.needed_by(base, requirements)?.ok_or_else(missing)?;
        let claim = self.claim(base, &packages)?;
        // What was found may have been removed before it was claimed.
        let kept = self.needed_by(base, requirements)?;
        if kept.as_ref() != Some(&packages) {
            return Err(missing());
        }
        self.used(base, &packages);
        Ok((packages, claim))
    }

    /// Returns the packages that requirements take, if they were added before. This is no use of them.
    ///
    /// # Errors
    /// If the base or a requirement is none.
    pub fn needed_by(&self, base: &str, requirements: &[String]) -> Result<Option<Packages>> {
        check_name(base)?;
        let requirements = check_requirements(requirements)?;
        Ok(self.kept(base, &requirements))
    }

    /// Claims packages by their names.
    ///
    /// # Errors
    /// If one is being removed.
    pub fn claim(&self, base: &str, packages: &Packages) -> Result<Claim> {
        let claim = self.claims.claim(base, packages);
        claim.map_err(|(base, package)| {
            PackageError::Unknown(format!(
                "the package {package} of {base} is still being removed: try again later"
            ))
        })
    }

    /// Returns all packages.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Installed>> {
        let mut all = Vec::new();
        for base in names_in(&self.root)? {
            let packages = self.dir_of(&base);
            if !packages.is_dir() {
                continue;
            }
            for package in names_in(&packages)? {
                let record = self.of(&base, "records").join(format!("{package}.json"));
                all.extend(records::read::<Installed>(&record));
            }
        }
        all.sort_by(|a, b| (&a.base, &a.package).cmp(&(&b.base, &b.package)));
        Ok(all)
    }

    /// Makes the directories of a base.
    fn make(&self, base: &str) -> Result<()> {
        check_name(base)?;
        for kind in ["packages", "records", "resolutions", "built"] {
            let dir = self.of(base, kind);
            fs::create_dir_all(&dir).map_err(at("making", dir))?;
        }
        let dir = self.dir_of(base);
        fs::set_permissions(&dir, Permissions::from_mode(0o755))
            .map_err(at("setting the mode of", dir))
    }

    /// Makes a directory that a sandbox may write to. Nobody else finds it: those above are root's.
    fn work(&self) -> Result<Work> {
        let number = self.next.fetch_add(1, Relaxed);
        let dir = self.root.join("incoming").join(number.to_string());
        fs::create_dir(&dir).map_err(at("making", &dir))?;
        let work = Work(dir);
        for name in ["", "tmp", "wheels", "files", "built"] {
            let dir = work.0.join(name);
            fs::create_dir_all(&dir).map_err(at("making", &dir))?;
            let open = Permissions::from_mode(0o777);
            fs::set_permissions(&dir, open).map_err(at("setting the mode of", dir))?;
        }
        Ok(work)
    }

    /// Has a sandbox find the wheels that were built before.
    fn lend_built(&self, base: &str, work: &Path) -> Result<()> {
        let built = self.of(base, "built");
        for name in names_in(&built)? {
            let to = work.join("built").join(&name);
            fs::copy(built.join(&name), &to).map_err(at("copying", to))?;
        }
        Ok(())
    }
}

/// Takes the wheels that a sandbox has left in a directory, and nothing else.
fn wheels_in(dir: &Path) -> Result<Vec<(Pinned, PathBuf)>> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for name in names_in(dir)? {
        let path = dir.join(&name);
        let is_file = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
        let Some(pinned) = Pinned::of_wheel(&name).filter(|_| is_file) else {
            return Err(PackageError::Invalid(format!(
                "the installer has left {name:?}, which is no wheel"
            )));
        };
        if !names.insert(pinned.name.clone()) {
            return Err(hostile(&pinned, "it came twice".to_owned()));
        }
        lchown(&path, Some(0), Some(0)).map_err(at("changing the owner of", &path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))
            .map_err(at("setting the mode of", &path))?;
        found.push((pinned, path));
        if found.len() > PACKAGES_MAX {
            return Err(PackageError::Invalid(format!(
                "the requirements take more than {PACKAGES_MAX} packages"
            )));
        }
    }
    Ok(found)
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(at("reading", dir))? {
        let name = entry.map_err(at("reading", dir))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// A base's name becomes that of a directory.
fn check_name(base: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if base.is_empty()
        || base.starts_with('.')
        || !base.bytes().all(plain)
        || base == "incoming"
        || base == "lock"
    {
        return Err(PackageError::Invalid(format!(
            "packages need a base whose name has only letters, digits, dots, dashes and underscores: {base:?} is none"
        )));
    }
    Ok(())
}

fn hostile(pinned: &Pinned, problem: String) -> PackageError {
    PackageError::Hostile {
        package: pinned.text(),
        problem,
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}
