//! What each sandbox of a base needs anew: a namespace of mounts with a `/tmp`, and one of IPC.
//!
//! The kernel takes as long for these as for half of the other steps of a start, so a thread makes a few in advance. Each is
//! for one sandbox, which changes it, and is never used again. Without one that is ready, a sandbox is born in new ones.
//!
//! They also decide who ends the namespace of mounts: the last one that has it, who then waits for all processors. A program
//! that ends at once would be that, before its end can be seen; here its sandbox has a descriptor before the program begins.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use rawio::child::{Step, take_own_steps};

use crate::ahead::{Ahead, Stock};
use crate::base;
use crate::error::{Result, at, step};
use crate::tmp;

/// How many are ready, of each base.
const STOCK: Stock = Stock { min: 4, max: 8 };

/// The namespaces of one sandbox.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) mounts: OwnedFd,
    pub(crate) ipc: OwnedFd,
    /// The size of its `/tmp`.
    pub(crate) tmp_bytes: u64,
}

/// Makes some in advance, of the base with this namespace. All have a `/tmp` of this size.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn ahead(namespace: File, tmp_bytes: u64) -> Result<Ahead<Room>> {
    Ahead::start("sandbox-rooms", STOCK, move || {
        let maker = Maker::enter(namespace, tmp_bytes)?;
        Ok(move || maker.make())
    })
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
