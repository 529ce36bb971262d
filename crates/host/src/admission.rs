//! Access control for our unix sockets.
//!
//! The socket's directory is accessible to its owner only, and so is the socket. For peers that still
//! connect, through a directory that was opened up or a descriptor that was passed on, the kernel
//! reports the user, and that user is checked.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use rawio::pidfd::PidFd;

use crate::run_dir::RunDir;

/// The users that are admitted, except workers.
#[derive(Clone, Debug)]
pub struct Admission {
    uids: Vec<u32>,
    /// The run directory whose workers are refused.
    workers: Option<PathBuf>,
}

impl Admission {
    /// Admits root, and the user of this process.
    pub fn own() -> Self {
        Self::of(vec![0, geteuid().as_raw()])
    }

    /// Admits these users.
    pub const fn of(uids: Vec<u32>) -> Self {
        let workers = None;
        Self { uids, workers }
    }

    /// Refuses the workers of a run directory, whatever their user: a worker only responds, and one
    /// that sends requests was compromised.
    pub fn but_workers_of(self, run_dir: impl Into<PathBuf>) -> Self {
        let workers = Some(run_dir.into());
        Self { workers, ..self }
    }

    /// Returns the admitted users.
    pub fn users(self) -> Vec<u32> {
        self.uids
    }

    /// Admits a user, as reported by the kernel, or returns the reason for the refusal.
    pub fn check(&self, uid: Option<u32>) -> Result<(), String> {
        match uid {
            Some(uid) if self.uids.contains(&uid) => Ok(()),
            Some(uid) => Err(format!(
                "user {uid} may not ask: only root and the user of this process may"
            )),
            None => Err("the kernel does not name the user of the client".to_owned()),
        }
    }

    /// Admits the peer of `stream`, or returns the reason for the refusal.
    pub fn check_peer(&self, stream: impl AsFd) -> Result<(), String> {
        let peer = getsockopt(&stream, PeerCredentials).ok();
        self.check(peer.map(|peer| peer.uid()))?;
        match &self.workers {
            Some(run_dir) => refuse_worker(run_dir, stream),
            None => Ok(()),
        }
    }
}

/// Refuses a worker, which has a socket by its number. That of a worker that has died is taken away,
/// so who has died since he asked is refused, too: nobody who waits for an answer has.
fn refuse_worker(run_dir: &Path, stream: impl AsFd) -> Result<(), String> {
    let Some(pid) = peer_pid(&stream) else {
        return Err("the kernel does not name the user of the client".to_owned());
    };
    let is_worker = RunDir::worker_socket(run_dir, pid).exists();
    let peer = match PidFd::of_peer(&stream) {
        // An older kernel: the number may be another's by now.
        Err(error) if error.raw_os_error() == Some(Errno::ENOPROTOOPT as i32) => PidFd::open(pid),
        opened => opened,
    };
    let lives = match peer {
        Err(error) if cannot_be_had(&error) => Ok(true),
        peer => peer.and_then(|peer| Ok(!peer.ended_within(Duration::ZERO)?)),
    };
    match (lives, is_worker) {
        (Ok(true), false) => Ok(()),
        (_, true) => Err("a worker may not ask: it only answers".to_owned()),
        _ => Err("the client's process has ended".to_owned()),
    }
}

/// Whether there is no descriptor of a process to be had, which says nothing of the process: none are
/// left, and who ends what uses them up must be heard; or the kernel gives none for a peer, and its
/// list of system calls keeps this process from asking by the number. Then a worker that died within
/// these moments is heard.
fn cannot_be_had(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOSYS | Errno::EPERM)
    )
}

/// Returns the number of the process at the other end: that which connected, or which listens.
pub fn peer_pid(stream: impl AsFd) -> Option<u32> {
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn only_those_who_are_named_are_admitted() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(Admission::own().check_peer(&ours), Ok(()));
        let others = Admission::of(vec![4_000_000_000]);
        assert!(others.check_peer(&ours).unwrap_err().contains("may not"));
        assert!(others.check(None).is_err());
        assert_eq!(Admission::own().check(Some(0)), Ok(()));
    }

    #[test]
    fn a_worker_is_not_admitted_whoever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let admission = Admission::own().but_workers_of(dir.path());
        assert_eq!(admission.check_peer(&ours), Ok(()));
        std::fs::create_dir(dir.path().join("workers")).unwrap();
        std::fs::write(RunDir::worker_socket(dir.path(), std::process::id()), "").unwrap();
        assert!(
            admission
                .check_peer(&ours)
                .unwrap_err()
                .contains("a worker")
        );
        assert_eq!(Admission::own().check_peer(&ours), Ok(()));
    }
}
