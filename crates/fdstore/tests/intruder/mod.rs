//! What a process that has `CAP_SYS_ADMIN` may do to a keeper: send to whatever has a name, as
//! whatever process it likes.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::libc::ucred;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, UnixCredentials, sendmsg};
use nix::unistd::{getgid, getuid};

/// The names of the unix sockets that a process has open.
pub(crate) fn names(process: u32) -> Vec<PathBuf> {
    let open: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.to_owned()))
        .collect();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let named = sockets.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [.., inode, name] = fields.as_slice() else {
            return None;
        };
        open.contains(&format!("{inode}]")).then(|| name.into())
    });
    named.collect()
}

/// Sends a message and a file to a name, as if the process `pid` did. Without `CAP_SYS_ADMIN` the
/// kernel refuses that, and where nobody listens it comes to nothing.
pub(crate) fn forge(place: &Path, pid: u32, message: &str, file: &File) {
    let socket = UnixDatagram::unbound().unwrap();
    let who = UnixCredentials::from(ucred {
        pid: pid.try_into().unwrap(),
        uid: getuid().as_raw(),
        gid: getgid().as_raw(),
    });
    let files = [file.as_raw_fd()];
    let beside = [
        ControlMessage::ScmCredentials(&who),
        ControlMessage::ScmRights(&files),
    ];
    let address = UnixAddr::new(place).unwrap();
    let sent = sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(message.as_bytes())],
        &beside,
        MsgFlags::empty(),
        Some(&address),
    );
    println!("{}: {message:?}: {sent:?}", place.display());
}
