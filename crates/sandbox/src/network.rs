//! Networks of sandboxes: loopback only, or the machine's.
//!
//! A sandbox without a network is in a network namespace of its own that has a loopback device and
//! nothing else. Abstract unix sockets belong to such a namespace, so they end there, too. Making one
//! takes the kernel longer than all the rest of a sandbox, so they are made once and reused. No process
//! in a sandbox has the right to change one, and its sockets end with its last process.

use std::fs::File;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};
use parking_lot::Mutex;

use crate::error::{Result, SandboxError, at, step};

/// The network of a sandbox.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Only itself, by a loopback device of its own.
    #[default]
    None,
    /// All that the machine reaches, and the services that listen on the machine.
    Host,
}

/// Namespaces that are kept for their next sandbox. More are made when needed.
const READY_MAX: usize = 1024;

/// Free network namespaces.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    ready: Mutex<Vec<OwnedFd>>,
}

impl Networks {
    /// Hands out a namespace that has nothing but a loopback device.
    pub(crate) fn take(&self) -> Result<OwnedFd> {
        let ready = self.ready.lock().pop();
        ready.map_or_else(make, Ok)
    }

    /// Returns one, after the last process in it has ended.
    pub(crate) fn put_back(&self, network: OwnedFd) {
        let mut ready = self.ready.lock();
        if ready.len() < READY_MAX {
            ready.push(network);
        }
    }
}

/// Makes a namespace, on a thread that ends with it.
fn make() -> Result<OwnedFd> {
    let made = std::thread::Builder::new()
        .name("sandbox-network".to_owned())
        .spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(step("making a network namespace"))?;
            rawio::net::raise_loopback().map_err(step("raising a loopback device"))?;
            let path = "/proc/thread-self/ns/net";
            File::open(path).map_err(at("opening", path))
        })
        .map_err(step("starting a thread"))?;
    let made = made.join().map_err(|_| SandboxError::Closed)?;
    made.map(OwnedFd::from)
}
