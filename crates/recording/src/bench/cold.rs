//! Emptying the caches of what a source has, and of nothing else that a host needs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use nix::unistd::syncfs;

use host::interrupt::Interrupt;

/// Has the kernel drop names and unused inodes. Inodes with pages stay: the programs of the host are
/// not read again.
const DROP: (&str, &str) = ("/proc/sys/vm/drop_caches", "2");

/// Drops the content of all files of some places, and then what the kernel knows of names and inodes.
///
/// # Errors
/// If a place cannot be read, or the process may not write `drop_caches`;
/// [`Interrupted`](host::interrupt::Interrupted) on Ctrl-C.
pub(super) fn forget(places: &[PathBuf], interrupt: &Interrupt) -> anyhow::Result<()> {
    for place in places {
        let doing = || format!("dropping {} from the page cache", place.display());
        let opened = File::open(place).with_context(doing)?;
        // What was not written yet is not dropped.
        syncfs(&opened).with_context(doing)?;
        let device = opened.metadata().with_context(doing)?.dev();
        forget_below(place, device, interrupt).with_context(doing)?;
    }
    let (file, word) = DROP;
    fs::write(file, word)
        .with_context(|| format!("writing to {file} (are you root on the host itself?)"))
}

/// Goes through a tree without following links, and without leaving its file system.
fn forget_below(top: &Path, device: u64, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut waiting = vec![top.to_owned()];
    while let Some(path) = waiting.pop() {
        interrupt.check()?;
        // What is gone meanwhile has no pages.
        let Ok(about) = fs::symlink_metadata(&path) else {
            continue;
        };
        if about.dev() != device {
            continue;
        }
        if about.is_file() {
            forget_file(&path);
        } else if about.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        }
    }
    Ok(())
}

/// What cannot be opened cannot be dropped: it stays as warm as it is, in each way.
fn forget_file(path: &Path) {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let dropped = opened.and_then(|file| {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).map_err(Into::into)
    });
    if let Err(error) = dropped {
        log::debug!("{} is not dropped: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rawio::resident::Resident;

    #[test]
    fn the_content_of_a_tree_is_dropped() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let path = below.join("file");
        fs::write(&path, vec![7; 100_000]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let pages = || {
            let file = File::open(&path).unwrap();
            Resident::look(&file, 0..100_000).unwrap().count()
        };
        assert!(pages() > 0);
        let device = dir.path().metadata().unwrap().dev();
        forget_below(dir.path(), device, &Interrupt::unarmed().unwrap()).unwrap();
        assert_eq!(pages(), 0);
    }
}
