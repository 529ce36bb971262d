//! Where clients find a device, which one process owns, and the next process takes over: a unix socket, or a link.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt as _, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use rawio::{private, unix_socket};

use crate::error::ExportError;

/// The kernel takes 107 bytes; the rest is for the name under which the socket is made.
const PATH_MAX_BYTES: usize = 90;
/// What the link to a device of this driver leads to, without its number.
const UBLK_DEVICE: &[u8] = b"/dev/ublkb";

/// A bound socket, or a symbolic link to a block device, that this process owns; the path of a socket is removed when
/// this is dropped.
///
/// The process that serves it may be another one, which gets the listener of a socket: clients that connect while that
/// one is replaced wait, and are not refused.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// None of a link.
    listener: Option<UnixListener>,
    /// Held as long as the process owns it; the kernel releases it when the process dies. `None` if another
    /// process owns it.
    lock: Option<Flock<File>>,
}

impl Place {
    /// Binds a socket at `path`, which only this user may connect to. The socket of a dead process is
    /// replaced atomically, so that clients that reconnect find the old or the new one.
    ///
    /// # Errors
    /// If another process owns it, or serves anything there, or it cannot be created.
    pub fn bind(path: &Path) -> Result<Self, ExportError> {
        let lock = claim(path)?;
        // Programs that know nothing of the lock listen at sockets, too.
        match unix_socket::is_served(path) {
            Ok(true) => return Err(ExportError::InUse(path.into())),
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(ExportError::System {
                    doing: "asking whether a process serves the socket",
                    path: path.into(),
                    source,
                });
            }
        }
        Self::bind_over(path, lock)
    }

    /// The same where the socket belongs to a process that was ended just now, and may still listen for a moment.
    ///
    /// # Errors
    /// If another process owns it, or it cannot be created.
    pub fn bind_after(path: &Path) -> Result<Self, ExportError> {
        let lock = claim(path)?;
        Self::bind_over(path, lock)
    }

    fn bind_over(path: &Path, lock: Flock<File>) -> Result<Self, ExportError> {
        let fresh = beside(path, ".new");
        let listener = bind_at(&fresh, path).map_err(|source| {
            let path = path.into();
            let doing = "making the socket";
            ExportError::System {
                doing,
                path,
                source,
            }
        })?;
        Self::of(path, listener, Some(lock))
    }

    /// Claims a symbolic link, which whoever serves it makes: the kernel lets its users wait when that one is
    /// replaced.
    ///
    /// # Errors
    /// If another process owns it, or a file is there that is no link to a ublk device.
    pub fn link(path: &Path) -> Result<Self, ExportError> {
        let lock = lock(path)?;
        // The link of another program would be replaced, and removed in the end.
        let is_ours = match fs::read_link(path) {
            Ok(target) => target.as_os_str().as_bytes().starts_with(UBLK_DEVICE),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !is_ours {
            return Err(ExportError::NoLink(path.into()));
        }
        Ok(Self {
            path: path.into(),
            listener: None,
            lock: Some(lock),
        })
    }

    /// Takes over a bound socket: its owner died, and a process that serves it had the listener.
    ///
    /// # Errors
    /// If another process owns it.
    pub fn adopt(path: &Path, listener: UnixListener) -> Result<Self, ExportError> {
        let lock = lock(path)?;
        Self::of(path, listener, Some(lock))
    }

    /// Returns a socket that another process owns, which handed its listener over.
    ///
    /// # Errors
    /// If the listener cannot be prepared.
    pub fn handed(path: &Path, listener: UnixListener) -> Result<Self, ExportError> {
        Self::of(path, listener, None)
    }

    fn of(
        path: &Path,
        listener: UnixListener,
        lock: Option<Flock<File>>,
    ) -> Result<Self, ExportError> {
        // Two processes may wait for the same client.
        let prepared = listener.set_nonblocking(true);
        prepared.map_err(|source| ExportError::System {
            doing: "preparing the socket",
            path: path.into(),
            source,
        })?;
        Ok(Self {
            path: path.into(),
            listener: Some(listener),
            lock,
        })
    }

    /// Releases it without removing it: another process serves it.
    pub fn leave(mut self) {
        self.lock = None;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what clients connect to, if it is a socket.
    #[must_use]
    pub const fn listener(&self) -> Option<&UnixListener> {
        self.listener.as_ref()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A link belongs to its device, which may outlive this process.
        if self.lock.is_none() || self.listener.is_none() {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            log::debug!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Locks the place of a socket, where no other file may be.
fn claim(path: &Path) -> Result<Flock<File>, ExportError> {
    if path.as_os_str().as_bytes().len() > PATH_MAX_BYTES {
        return Err(ExportError::PathTooLong(path.into()));
    }
    let lock = lock(path)?;
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(ExportError::NoSocket(path.into())),
        Ok(_) | Err(_) => Ok(lock),
    }
}

fn bind_at(fresh: &Path, path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(fresh)?;
    close(fresh)?;
    fs::rename(fresh, path)?;
    Ok(listener)
}

/// Lets only its owner connect to a socket; a link that another user put in its place is not followed.
fn close(socket: &Path) -> io::Result<()> {
    let mut options = File::options();
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
    let opened = options.read(true).custom_flags(flags.bits());
    let opened = opened.open(socket)?;
    if !opened.metadata()?.file_type().is_socket() {
        let why = "another user put something else in its place";
        return Err(io::Error::other(why));
    }
    // The mode of what is open, and not of what has the name by now.
    let opened = format!("/proc/self/fd/{}", opened.as_raw_fd());
    fs::set_permissions(opened, Permissions::from_mode(0o600))
}

fn lock(path: &Path) -> Result<Flock<File>, ExportError> {
    let name = beside(path, ".lock");
    let opened = private::open_or_create(&name);
    let file = opened.map_err(|source| ExportError::System {
        doing: "opening the lock file",
        path: name.clone(),
        source,
    })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        if error == nix::errno::Errno::EWOULDBLOCK {
            return ExportError::InUse(path.into());
        }
        ExportError::System {
            doing: "locking",
            path: name,
            source: error.into(),
        }
    })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_has_one_owner_and_can_be_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = Place::bind(&path).unwrap();
        let second = Place::bind(&path);
        assert!(matches!(second, Err(ExportError::InUse(_))), "{second:?}");
        UnixStream::connect(&path).unwrap();
        drop(first);
        assert!(!path.exists());
        // What a killed process leaves: a socket that nobody listens on.
        drop(UnixListener::bind(&path).unwrap());
        UnixStream::connect(&path).unwrap_err();
        let third = Place::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, third.path()), (0o600, path.as_path()));
    }

    #[test]
    fn the_socket_of_another_program_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let other = UnixListener::bind(&path).unwrap();
        let bound = Place::bind(&path);
        assert!(matches!(bound, Err(ExportError::InUse(_))), "{bound:?}");
        let _client = UnixStream::connect(&path).unwrap();
        other.set_nonblocking(true).unwrap();
        other.accept().unwrap();
        other.accept().unwrap();
        // One that takes packets.
        let packets = dir.path().join("packets");
        let _datagrams = std::os::unix::net::UnixDatagram::bind(&packets).unwrap();
        let bound = Place::bind(&packets);
        assert!(matches!(bound, Err(ExportError::InUse(_))), "{bound:?}");
        // What the caller has ended is taken over at once.
        drop(Place::bind_after(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_was_handed_over_outlives_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let owner = Place::bind(&path).unwrap();
        let serves = Place::handed(&path, owner.listener().unwrap().try_clone().unwrap()).unwrap();
        assert!(matches!(Place::bind(&path), Err(ExportError::InUse(_))));
        owner.leave();
        let mut client = UnixStream::connect(&path).unwrap();
        let next = Place::adopt(&path, serves.listener().unwrap().try_clone().unwrap()).unwrap();
        drop(serves);
        // Who connected before is found by whoever has the listener.
        let (mut served, _) = next.listener().unwrap().accept().unwrap();
        std::io::Write::write_all(&mut served, b"x").unwrap();
        std::io::Read::read_exact(&mut client, &mut [0]).unwrap();
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn no_link_beside_it_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, victim] = ["s", "victim"].map(|name| dir.path().join(name));
        symlink(&victim, beside(&path, ".lock")).unwrap();
        let bound = Place::bind(&path);
        assert!(
            matches!(bound, Err(ExportError::System { .. })),
            "{bound:?}"
        );
        assert!(!victim.exists());
        // Put there after it was made.
        fs::write(&victim, "data").unwrap();
        fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
        symlink(&victim, &path).unwrap();
        close(&path).unwrap_err();
        let mode = fs::metadata(&victim).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_link_has_one_owner_and_outlives_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let first = Place::link(&path).unwrap();
        assert!(matches!(Place::link(&path), Err(ExportError::InUse(_))));
        symlink("/dev/ublkb7", &path).unwrap();
        drop(first);
        assert!(path.is_symlink());
        drop(Place::link(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "data").unwrap();
        assert!(matches!(Place::link(&path), Err(ExportError::NoLink(_))));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let other = dir.path().join("other");
        symlink("disk", &other).unwrap();
        assert!(matches!(Place::link(&other), Err(ExportError::NoLink(_))));
    }

    #[test]
    fn a_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        fs::write(&path, "data").unwrap();
        let bound = Place::bind(&path);
        assert!(matches!(bound, Err(ExportError::NoSocket(_))), "{bound:?}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
        let long = dir.path().join("x".repeat(200));
        assert!(matches!(
            Place::bind(&long),
            Err(ExportError::PathTooLong(_))
        ));
    }
}
