//! Detects that a file is replaced, changed or removed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

/// The most directories that are watched; what lies in others is looked at now and then only.
const DIRS_MAX: usize = 4096;

/// Watches the directories that files lie in: a package manager puts a new file in place of the old one.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Inotify,
    dirs: HashMap<PathBuf, WatchDescriptor>,
    names: HashSet<OsString>,
}

impl Watch {
    /// Returns one that watches no files yet.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        Ok(Self {
            inotify: Inotify::init(flags).context("watching directories (inotify)")?,
            dirs: HashMap::new(),
            names: HashSet::new(),
        })
    }

    /// Watches these files, and no others.
    pub(crate) fn set(&mut self, paths: &BTreeSet<PathBuf>) {
        self.names = paths
            .iter()
            .filter_map(|path| path.file_name())
            .map(OsString::from)
            .collect();
        let wanted: BTreeSet<&Path> = paths
            .iter()
            .filter_map(|path| path.parent())
            .take(DIRS_MAX)
            .collect();
        let obsolete: Vec<_> = self
            .dirs
            .keys()
            .filter(|dir| !wanted.contains(dir.as_path()))
            .cloned()
            .collect();
        for dir in obsolete {
            if let Some(watch) = self.dirs.remove(&dir) {
                // The directory may be gone, and its watch with it.
                let _removed = self.inotify.rm_watch(watch);
            }
        }
        let changes = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        for dir in wanted {
            if self.dirs.contains_key(dir) {
                continue;
            }
            match self.inotify.add_watch(dir, changes) {
                Ok(watch) => {
                    self.dirs.insert(dir.to_owned(), watch);
                }
                Err(Errno::ENOENT) => {}
                Err(error) => log::warn!(
                    "changes in {} are seen late: watching it: {error}",
                    dir.display()
                ),
            }
        }
    }

    /// Takes the pending events, and returns whether any may concern one of the files.
    pub(crate) fn heard(&mut self) -> bool {
        let mut about_ours = false;
        // What is not read now is heard the next time.
        for _ in 0..64 {
            let Ok(events) = self.inotify.read_events() else {
                break;
            };
            for event in events {
                about_ours |= self.is_about_ours(&event);
            }
        }
        about_ours
    }

    fn is_about_ours(&mut self, event: &InotifyEvent) -> bool {
        // The kernel takes the watch away; one at the same path would be another's.
        if event
            .mask
            .intersects(AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF)
        {
            self.dirs.retain(|_, watch| *watch != event.wd);
        }
        match &event.name {
            Some(name) => self.names.contains(name),
            None => true, // the directory itself, or events were lost
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
