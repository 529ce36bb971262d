//! Temporary files of a command on the store's file system, removed before it ends.
//!
//! They are not in the store's `tmp`, which the `gc` of any other process sweeps. Their names have a random
//! number, and their process holds a lock on a file with that number (`recording-<number>`; the others are
//! `recording-<number>.<what>`), which the kernel releases when the process dies. Process ids would not
//! do: those of two PID namespaces may be equal, and do not show which process is alive.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bootimg::Store;
use rawio::file_lock::is_still;
use rawio::private;

use host::names::{is_number, random_name};

/// What such files begin with.
const RECORDING: &str = "recording-";
/// How long a file without a lock stays: earlier releases named them by their process, and took no
/// lock. None of them wrote for so long.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// Files of this process in a store's directory; removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
    /// What all of them are called, before the first dot.
    name: String,
    _lock: File,
}

impl Scratch {
    /// Takes an unused name, and removes the files of dead processes. The store is created if it is
    /// missing.
    ///
    /// # Errors
    /// If the store cannot be written to.
    pub fn new(store: &Store) -> anyhow::Result<Self> {
        store.make().context("making the store")?;
        let dir = store.dir();
        sweep(dir);
        loop {
            let name = random_name(RECORDING)?;
            let path = dir.join(&name);
            let making = || format!("making {}", path.display());
            let lock = private::create_new(&path).with_context(making)?;
            // Who sweeps may have taken it for a dead one's, between the two steps.
            if lock.try_lock().is_ok() && is_still(&lock, fs::symlink_metadata(&path)) {
                return Ok(Self {
                    dir: dir.to_owned(),
                    name,
                    _lock: lock,
                });
            }
        }
    }

    /// Returns where to write a file.
    #[must_use]
    pub fn file(&self, what: &str) -> PathBuf {
        self.dir.join(format!("{}.{what}", self.name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove_all(&self.dir, &self.name);
    }
}

/// Removes what was left behind by those who were killed while they wrote.
fn sweep(dir: &Path) {
    for name in names(dir) {
        let Some(name) = name.to_str().filter(|name| name.starts_with(RECORDING)) else {
            continue;
        };
        let path = dir.join(name);
        if let Some(owner) = owner_of(name) {
            let lock = File::options().write(true).open(dir.join(owner));
            match lock {
                // It goes with the lock, or went with it just now.
                Ok(lock) if owner == name => match lock.try_lock() {
                    Ok(()) if is_still(&lock, fs::symlink_metadata(&path)) => {
                        remove_all(dir, owner);
                    }
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => {
                        log::warn!("cannot lock {}: {error}", path.display());
                    }
                },
                Ok(_) => {}
                Err(_) => remove_old(&path),
            }
        } else if is_by_process(name) {
            remove_old(&path);
        }
    }
}

/// Returns the name of the lock that a file goes with.
fn owner_of(name: &str) -> Option<&str> {
    let owner = name.split('.').next()?;
    owner
        .strip_prefix(RECORDING)
        .is_some_and(is_number)
        .then_some(owner)
}

/// Returns whether an earlier release named a file: by the number of its process.
fn is_by_process(name: &str) -> bool {
    let number = name.strip_prefix(RECORDING);
    let number = number.and_then(|rest| rest.split('.').next());
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Removes the files that go with a lock, and that last of all: whoever finds it finds the others.
fn remove_all(dir: &Path, owner: &str) {
    let ending = format!("{owner}.");
    let others = names(dir).filter(|name| name.as_bytes().starts_with(ending.as_bytes()));
    for name in others.chain([OsString::from(owner)]) {
        remove(&dir.join(name));
    }
}

fn remove_old(path: &Path) {
    let changed = fs::symlink_metadata(path).and_then(|meta| meta.modified());
    let age = changed.map(|changed| SystemTime::now().duration_since(changed));
    if matches!(age, Ok(Ok(age)) if age > ABANDONED) {
        remove(path);
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("cannot remove {}: {error}", path.display());
        }
        _ => {}
    }
}

fn names(dir: &Path) -> impl Iterator<Item = OsString> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bootimg::StoreConfig;

    fn left(dir: &Path) -> Vec<String> {
        let names = names(dir).map(|name| name.into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.starts_with(RECORDING)).collect();
        names.sort_unstable();
        names
    }

    fn put(path: &Path, age: Duration) {
        let file = File::create(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn the_living_keep_what_they_write_and_the_dead_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), StoreConfig::default()).unwrap();
        let (alive, dead) = (Scratch::new(&store).unwrap(), Scratch::new(&store).unwrap());
        let old = 2 * ABANDONED;
        put(&alive.file("image"), old);
        put(&alive.file("image.7.0.tmp"), old);
        put(&dead.file("image"), Duration::ZERO);
        // What a kill leaves: the files, and nobody who holds the lock.
        let Scratch { name: killed, .. } = &dead;
        let killed = killed.clone();
        let bytes = fs::read(dir.path().join(&killed)).unwrap();
        let aside = dir.path().join("aside");
        fs::rename(dead.file("image"), &aside).unwrap();
        drop(dead);
        fs::write(dir.path().join(&killed), bytes).unwrap();
        fs::rename(&aside, dir.path().join(format!("{killed}.image"))).unwrap();

        let earlier = [
            "recording-1",
            "recording-1.7.0.tmp",
            "recording-4000000.push",
        ];
        for name in earlier {
            put(&dir.path().join(name), old);
        }
        let others = ["recording-2", "recording-notes", "recording-"];
        put(&dir.path().join(others[0]), Duration::ZERO);
        put(&dir.path().join(others[1]), old);
        put(&dir.path().join(others[2]), old);

        let third = Scratch::new(&store).unwrap();
        let alive_files =
            ["", ".image", ".image.7.0.tmp"].map(|end| format!("{}{end}", alive.name));
        let mut want: Vec<String> = others.map(str::to_owned).to_vec();
        want.extend(alive_files);
        want.push(third.name.clone());
        want.sort_unstable();
        assert_eq!(left(dir.path()), want);
        drop((alive, third));
        let mut others = others;
        others.sort_unstable();
        assert_eq!(left(dir.path()), others);
    }

    /// A sweeper that comes between the making of a lock and its taking takes the name with it.
    #[test]
    fn many_at_once_do_not_sweep_each_other() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let store = Store::open(dir.path(), StoreConfig::default()).unwrap();
                    for _ in 0..50 {
                        let scratch = Scratch::new(&store).unwrap();
                        fs::write(scratch.file("image"), &scratch.name).unwrap();
                        let read = fs::read_to_string(scratch.file("image")).unwrap();
                        assert_eq!(read, scratch.name);
                    }
                });
            }
        });
        assert_eq!(left(dir.path()), [""; 0]);
    }
}
