//! Terminals of containers: made inside, and sent to the engine.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::makedev;
use nix::sys::statfs::fstatfs;
use rawio::{terminal, unix_socket};

use crate::error::{Result, at, invalid};
use crate::plan::process::ProcessPlan;

/// `DEVPTS_SUPER_MAGIC`.
const DEVPTS: i64 = 0x1cd1;

/// Connects to a socket, whose path may be longer than the address of a socket: by a descriptor
/// of its directory.
pub(crate) fn connect(path: &Path, patience: Duration) -> Result<UnixStream> {
    use std::os::fd::AsRawFd as _;
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return invalid(format!("{} is no path of a socket", path.display()));
    };
    let dir = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    let dir = File::open(dir).map_err(at("opening", dir))?;
    let short = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name);
    unix_socket::connect_within(&short, patience).map_err(at("connecting to", path))
}

/// Makes a terminal below `root`, sends its master to the engine, and returns the other side, which is the
/// process's streams from now on.
pub(crate) fn open(
    root: BorrowedFd<'_>,
    process: &ProcessPlan,
    engine: &UnixStream,
) -> Result<OwnedFd> {
    let path = "dev/pts/ptmx";
    let how = OpenHow::new()
        .flags(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let master = File::from(openat2(root, path, how).map_err(at("opening", path))?);
    let found = master.metadata().map_err(at("reading", path))?;
    let of_kernel = fstatfs(&master).map_err(at("reading", path))?;
    let is_master = found.file_type().is_char_device() && found.rdev() == makedev(5, 2);
    if !is_master || of_kernel.filesystem_type().0 != DEVPTS {
        return invalid("/dev/pts/ptmx of the container is no master of terminals");
    }
    let other = terminal::open_other_side(master.as_fd()).map_err(at("opening", "a terminal"))?;
    if let Some((rows, columns)) = process.terminal_size {
        terminal::set_size(master.as_fd(), rows, columns).map_err(at("sizing", "a terminal"))?;
    }
    rawio::passing::send(engine.as_fd(), b"/dev/ptmx", &[master.as_fd()])
        .map_err(at("sending", "a terminal"))?;
    Ok(other)
}

/// Has the calling process, which leads a session, have a terminal as its streams.
pub(crate) fn take(other: BorrowedFd<'_>, uid: u32) -> Result<()> {
    let doing = "taking a terminal as";
    terminal::control_by(other).map_err(at(doing, "the session's"))?;
    nix::unistd::dup2_stdin(other).map_err(at(doing, "standard input"))?;
    nix::unistd::dup2_stdout(other).map_err(at(doing, "standard output"))?;
    nix::unistd::dup2_stderr(other).map_err(at(doing, "standard error"))?;
    let owner = nix::unistd::Uid::from_raw(uid);
    nix::unistd::fchown(other, Some(owner), None).map_err(at(doing, "the user's"))
}
