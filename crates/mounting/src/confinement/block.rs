//! Confinement of commands that read block images and disks, which anybody may have made.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use blockimages::{CONFIG_NAME, DeviceConfig};
use confine::{Capability, ConfineError, Files, Programs, Reads, Rings, Sockets};

use super::intake::{Asks, Rights};
use super::{FUSE, READAHEAD, is_off};

/// Where programs of the system are, and what they load.
const SYSTEM: [&str; 7] = [
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/alternatives",
];
/// What a program is started with, and writes to if it has nobody to tell.
const NOTHING: &str = "/dev/null";
/// Where a new image gets its name.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// What a command may touch once it reads the first byte of an image: the only access that it keeps.
#[derive(Debug, Default)]
pub struct BlockAccess {
    /// Paths that are read, with all below them, besides those that are written.
    pub reads: Vec<PathBuf>,
    /// Paths that are written; those that do not exist yet are skipped.
    pub writes: Vec<PathBuf>,
    /// Directories in which a socket or a directory of its own is removed at the end.
    pub removes: Vec<PathBuf>,
    /// Its network access. It calls nobody by a name on this machine.
    pub asks: Asks,
    /// A program that reads the image for it, with the same access. Without one, it executes nothing.
    pub program: Option<PathBuf>,
    /// Whether it makes a mount, which another process puts to its place.
    pub mounts: bool,
    /// Whether it uses rings, which it has made.
    pub rings: bool,
}

/// Returns whether a path names a block image, and no raw disk.
pub(super) fn is_image(path: &Path) -> bool {
    path.is_dir() || path.file_name().is_some_and(|name| name == CONFIG_NAME)
}

impl BlockAccess {
    /// Returns the access that it takes to read an image, or a raw disk; `is_writable` is whether clients may write to a raw
    /// disk. What is written to the writable layer of an image is.
    #[must_use]
    pub fn to(image: &Path, is_writable: bool) -> Self {
        let mut access = Self::default();
        let config = is_image(image).then(|| DeviceConfig::read(image).ok());
        match config.flatten() {
            Some((config, path)) => {
                let base = path.parent().unwrap_or(Path::new("/")).to_owned();
                access.writes = config.written_places(&base);
                access.reads = config.read_places(&base);
                access.reads.push(path);
            }
            None if is_writable => access.writes.push(image.to_owned()),
            // What cannot be read is refused by who opens it.
            None => access.reads.push(image.to_owned()),
        }
        access
    }

    /// Confines the process, before it reads the first byte of an image. Whoever knows a login was asked before, and what it
    /// serves at was made. To be called before it starts a thread.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn confine(self) -> anyhow::Result<()> {
        if is_off()? {
            return Ok(());
        }
        let (mounts, sockets) = (self.mounts, sockets(self.asks));
        let (programs, rings) = match &self.program {
            None if self.rings => (Programs::Never, Rings::Made),
            None => (Programs::Never, Rings::Never),
            Some(_) => (Programs::Executed, Rings::Refused),
        };
        self.confine_to_files()
            .and_then(|()| confine::calls::deny_intrusion(programs, rings))
            .and_then(|()| match mounts {
                // Once it has mounted.
                true => Ok(()),
                false => confine::calls::deny_mounting(sockets),
            })
            .context("confining the command")
    }

    /// Confines the calling thread, and the program of the system that it starts, to these files and capabilities, and to the
    /// system calls of reading and writing files.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn confine_thread(self) -> anyhow::Result<()> {
        if is_off()? {
            return Ok(());
        }
        self.confine_to_files()
            .and_then(|()| confine::calls::allow_program())
            .context("confining a thread")
    }

    fn confine_to_files(self) -> Result<(), ConfineError> {
        let (reads, ports) = self.asks.takes();
        let mut files = Files {
            reads: Reads::Beneath([self.reads, reads, vec![RANDOM.into()]].concat()),
            writes: self.writes,
            clears: self.removes.clone(),
            removes: self.removes,
            ports,
            ..Files::default()
        };
        let mut keep = Rights::Keeps.capabilities().to_vec();
        if self.mounts {
            keep.push(Capability::CAP_SYS_ADMIN);
            files.writes.extend([FUSE.into(), READAHEAD.into()]);
        }
        if let Some(program) = self.program {
            files.executes = SYSTEM.iter().map(PathBuf::from).collect();
            files.executes.push(program);
            files.writes.push(NOTHING.into());
        }
        confine::capabilities::keep_only(&keep)?;
        files.confine()
    }
}

/// Removes from a command what it does not need once it has mounted.
///
/// # Errors
/// If the kernel refuses.
pub fn block_mounted(asks: Asks) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    confine::calls::deny_mounting(sockets(asks)).context("confining the command")
}

const fn sockets(asks: Asks) -> Sockets {
    match asks {
        Asks::Nobody => Sockets::Given,
        Asks::Port(_) | Asks::Registry => Sockets::OfNetwork,
    }
}
