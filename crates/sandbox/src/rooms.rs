//! What each sandbox of a base needs anew: a namespace of mounts with a `/tmp`, and one of IPC.
//!
//! The kernel takes as long for these as for half of the other steps of a start, so a thread makes a few in advance. Each is
//! for one sandbox, which changes it, and is never used again. Without one that is ready, a sandbox is born in new ones.
//!
//! They also decide who ends the namespace of mounts: the last one that has it, who then waits for all processors. A program
//! that ends at once would be that, before its end can be seen; here its sandbox has a descriptor before the program begins.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use parking_lot::{Condvar, Mutex};
use rawio::child::{Step, take_own_steps};

use crate::base;
use crate::error::{Result, SandboxError, at, step};
use crate::tmp;

/// How many are ready, of each base.
const READY_MAX: usize = 8;

/// How few are ready when more are made: several at a time, as a thread has to wake for them.
const READY_MIN: usize = 4;

/// The namespaces of one sandbox.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) mounts: OwnedFd,
    pub(crate) ipc: OwnedFd,
    /// The size of its `/tmp`.
    pub(crate) tmp_bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Room>,
    /// Whether one was asked for since the last one was made.
    is_wanted: bool,
    is_closing: bool,
}

impl State {
    const fn needs_more(&self) -> bool {
        self.is_wanted && self.ready.len() <= READY_MIN
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Those that are ready, and the thread that makes them.
#[derive(Debug)]
pub(crate) struct Rooms {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Rooms {
    /// Starts the thread, in the namespace of a base. All have a `/tmp` of this size.
    ///
    /// # Errors
    /// If it cannot enter that, or the first one cannot be made.
    pub(crate) fn start(namespace: File, tmp_bytes: u64) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let (send, started) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("sandbox-rooms".to_owned());
        let thread = thread.spawn(move || {
            let maker = Maker::enter(namespace, tmp_bytes).and_then(|maker| {
                let first = maker.make()?;
                theirs.state.lock().ready.push(first);
                Ok(maker)
            });
            match maker {
                Ok(maker) => {
                    let _nobody_waits = send.send(Ok(()));
                    theirs.fill(&maker);
                }
                Err(error) => {
                    let _nobody_waits = send.send(Err(error));
                }
            }
        });
        let thread = Some(thread.map_err(step("starting a thread"))?);
        let rooms = Self { shared, thread };
        started.recv().map_err(|_| SandboxError::Closed)??;
        Ok(rooms)
    }

    /// Takes one that nobody had; `None` if none is ready.
    pub(crate) fn take(&self) -> Option<Room> {
        let mut state = self.shared.state.lock();
        let room = state.ready.pop();
        state.is_wanted = true;
        if state.ready.len() <= READY_MIN {
            self.shared.changed.notify_one();
        }
        room
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        self.shared.state.lock().is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that makes namespaces ended in a panic");
        }
    }
}

impl Shared {
    /// Makes more whenever few are ready.
    fn fill(&self, maker: &Maker) {
        while self.wait_for_few() {
            while self.has_room() {
                match maker.make() {
                    Ok(room) => self.state.lock().ready.push(room),
                    Err(error) => {
                        log::warn!("sandboxes make their own namespaces: {error}");
                        // Not again before the next sandbox, which may find more of what lacks.
                        self.state.lock().is_wanted = false;
                        break;
                    }
                }
            }
        }
    }

    /// Waits until few are ready and one was asked for; `false` at the end.
    fn wait_for_few(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_closing && !state.needs_more() {
            self.changed.wait(&mut state);
        }
        !state.is_closing
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.is_closing && state.ready.len() < READY_MAX
    }
}

/// What a thread needs to make them.
struct Maker {
    /// The namespaces to return to: what is made next is a copy, which must not be one of a sandbox's.
    base: File,
    ipc: OwnedFd,
    /// The machine's `/proc`, which a base does not have.
    proc: OwnedFd,
    tmp_bytes: u64,
}

impl Maker {
    /// Moves the calling thread into the namespace of a base.
    fn enter(base: File, tmp_bytes: u64) -> Result<Self> {
        let proc = File::open("/proc").map_err(at("opening", "/proc"))?.into();
        let ipc = own_namespace(&proc, "ipc")?;
        base::join(&base)?;
        Ok(Self {
            base,
            ipc,
            proc,
            tmp_bytes,
        })
    }

    fn make(&self) -> Result<Room> {
        let new = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
        unshare(new).map_err(step("making namespaces in advance"))?;
        let made = self.furnish();
        // Whoever stays there keeps it when its sandbox has ended.
        let doing = "leaving a namespace";
        setns(&self.base, CloneFlags::CLONE_NEWNS).map_err(step(doing))?;
        setns(self.ipc.as_fd(), CloneFlags::CLONE_NEWIPC).map_err(step(doing))?;
        made
    }

    /// Mounts what a new namespace is to have, and opens it.
    fn furnish(&self) -> Result<Room> {
        let options = tmp::options(self.tmp_bytes);
        let tmp = [Step::Mount(tmp::mount(&options))];
        take_own_steps(&tmp).map_err(at("mounting", "/tmp"))?;
        Ok(Room {
            mounts: own_namespace(&self.proc, "mnt")?,
            ipc: own_namespace(&self.proc, "ipc")?,
            tmp_bytes: self.tmp_bytes,
        })
    }
}

/// Opens a namespace of the calling thread.
fn own_namespace(proc: &OwnedFd, kind: &str) -> Result<OwnedFd> {
    let path = format!("thread-self/ns/{kind}");
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    openat(proc, path.as_str(), flags, Mode::empty()).map_err(at("opening", path))
}

#[cfg(all(test, feature = "privileged"))]
mod tests;
