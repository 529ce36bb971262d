//! The threads that serve requests.
//!
//! fuser performs the handshake itself, and a device has that only once. So the session
//! starts on one end of a pair of sockets, with us on the other end in the place of the kernel;
//! then its descriptor is made to lead to the device.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};

use super::{End, ServeOptions, State};
use crate::connection::{Connection, Hello};
use crate::fuse::Adapter;
use crate::mount::MountError;
use crate::notify::Notifier;

/// Longer than any answer.
const ANSWER_LEN: usize = 4096;

/// Whether a connection was served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedBefore {
    No,
    Yes,
}

/// A session that knows what was sent to the kernel, and serves nothing yet.
pub(super) struct Agreed {
    session: fuser::Session<Adapter>,
    pub(super) hello: Hello,
    pub(super) served_before: ServedBefore,
}

/// The threads that serve a mount; they end when its last user is gone.
#[derive(Debug)]
pub(super) struct Session(JoinHandle<()>);

impl Agreed {
    /// Agrees with the kernel on what both can do, now or as agreed earlier.
    pub(super) fn on(
        connection: &Connection,
        adapter: Adapter,
        options: &ServeOptions,
    ) -> Result<Self, MountError> {
        let talk = || {
            let (kernel, ours) = socketpair(
                AddressFamily::Unix,
                SockType::SeqPacket,
                None,
                SockFlag::SOCK_CLOEXEC,
            )?;
            let shown = connection.hello().for_server();
            send(kernel.as_raw_fd(), &shown, MsgFlags::MSG_NOSIGNAL)?;
            let session = start(adapter, ours, options);
            // A session that would not start has said so.
            let mut answer = vec![0; ANSWER_LEN];
            let len = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT);
            if let Ok(len) = len {
                answer.truncate(len);
            }
            let session = session?;
            len?;
            let hello = connection.hello().answered(answer)?;
            let served_before = tell(connection.device(), &hello)?;
            rawio::fd::replace(session.as_fd(), connection.device())?;
            Ok(Self {
                session,
                hello,
                served_before,
            })
        };
        talk().map_err(MountError::step(
            "the handshake with the kernel (FUSE_INIT)",
        ))
    }

    /// Starts to serve.
    pub(super) fn run(
        self,
        state: &Arc<State>,
        notifier: &Arc<Notifier>,
        options: &ServeOptions,
    ) -> Result<Session, MountError> {
        let (state, notifier) = (Arc::clone(state), Arc::clone(notifier));
        let ended = options.ended.clone();
        let session = self.session;
        let thread = std::thread::Builder::new()
            .name("yolofs-session".to_owned())
            .spawn(move || {
                let end = end_of(session.run());
                // A device that stays open would leave those who use a failed mount waiting.
                notifier.close();
                state.session_ended(end.clone());
                if let Some(ended) = ended {
                    ended.tell(&end);
                }
            })
            .map_err(MountError::step("starting the session"))?;
        Ok(Session(thread))
    }
}

impl Session {
    /// Waits for the threads, which must be at their end.
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            log::error!("the session thread panicked");
        }
    }
}

fn start(
    adapter: Adapter,
    device: OwnedFd,
    options: &ServeOptions,
) -> io::Result<fuser::Session<Adapter>> {
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.threads.get());
    // Permissions are the kernel's to check; fuser would shut out everybody but the owner.
    fuser::Session::from_fd(adapter, device, fuser::SessionACL::All, config)
}

/// Gives the kernel its answer. If it had one before, it knows of no such request any more; the
/// same holds if the connection was aborted, which the session will find out.
fn tell(device: BorrowedFd<'_>, hello: &Hello) -> io::Result<ServedBefore> {
    let answer = hello.answer().unwrap_or_default();
    match nix::unistd::write(device, answer) {
        Ok(_) => Ok(ServedBefore::No),
        Err(Errno::ENOENT) => Ok(ServedBefore::Yes),
        Err(errno) => Err(errno.into()),
    }
}

fn end_of(result: io::Result<()>) -> End {
    match result {
        Ok(()) => End::SessionOver,
        Err(error) => {
            log::error!("the session failed: {error}");
            End::Failed(error.to_string())
        }
    }
}
