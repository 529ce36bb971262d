//! Networks of sandboxes: a loopback device only, a device on a bridge, or the machine's.
//!
//! A sandbox without a network is in a network namespace of its own that has a loopback device and
//! nothing else. Abstract unix sockets belong to such a namespace, so they end there, too. Making one
//! takes the kernel longer than all the rest of a sandbox, so they are made once and reused. No process
//! in a sandbox has the right to change one, and its sockets end with its last process; connections that were
//! closed, too, as there is no `TIME_WAIT`.
//!
//! A Zygote's child is in a namespace that its Zygote has made. On the bridge, the machine's end is guarded: see [`guard`].
//!
//! A sandbox on the bridge has a namespace that nobody had before: connections that are being closed, and what
//! others still send to it, end with it. Some are made in advance, see [`ports`].

mod bridge;
mod guard;
mod link;
mod ports;
mod settings;
mod subnet;

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};
use parking_lot::Mutex;

pub use bridge::{BridgeConfig, Neighbours};
use ports::Ports;
use settings::set;
pub use subnet::Subnet;

use crate::ahead::{Ahead, Stock};
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
    /// An address of its own: a veth device on the bridge of all sandboxes.
    Veth,
    /// All that the machine reaches, and the services that listen on the machine.
    Host,
}

/// Namespaces that are kept for their next sandbox. More are made when needed.
const READY_MAX: usize = 1024;

/// A network namespace of a sandbox, as long as it runs.
#[derive(Debug)]
pub(crate) enum Lease {
    /// A loopback device only.
    Loopback(OwnedFd),
    /// A device on the bridge.
    Port(Port),
}

/// A device on the bridge, and the namespace that its other end is in.
#[derive(Debug)]
pub(crate) struct Port {
    address: Ipv4Addr,
    /// `None` for a sandbox of a former program: its processes hold it.
    namespace: Option<OwnedFd>,
}

impl Lease {
    /// Returns the namespace, to be entered.
    pub(crate) fn namespace(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Loopback(namespace) => Some(namespace.as_fd()),
            Self::Port(port) => port.namespace.as_ref().map(|namespace| namespace.as_fd()),
        }
    }

    /// Returns the address on the bridge.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Loopback(_) => None,
            Self::Port(port) => Some(port.address),
        }
    }
}

/// How many are made in advance, for when none comes back: the kernel takes the longer for one, the more there are.
const STOCK: Stock = Stock { min: 2, max: 4 };

/// Free network namespaces.
#[derive(Debug)]
pub(crate) struct Networks {
    /// Those that had a sandbox.
    ready: Mutex<Vec<OwnedFd>>,
    /// Those that had none yet.
    ahead: Ahead<OwnedFd>,
    ports: Option<Ports>,
}

impl Networks {
    /// Makes the bridge, if there is to be one, and removes what a former program has left. `run_dir` marks whose
    /// a bridge is; sandboxes with the addresses in `used` run.
    pub(crate) fn open(
        bridge: Option<&BridgeConfig>,
        run_dir: &Path,
        used: &[Ipv4Addr],
    ) -> Result<Self> {
        let bridge = bridge::open(bridge, run_dir, used)?;
        let ports = bridge.map(|bridge| Ports::open(bridge, used));
        Ok(Self {
            ready: Mutex::default(),
            ahead: Ahead::start("sandbox-nets", STOCK, || Ok(make))?,
            ports: ports.transpose()?,
        })
    }

    /// Hands out a namespace; `None` for the machine's.
    pub(crate) fn take(&self, network: Network) -> Result<Option<Lease>> {
        match network {
            Network::Host => Ok(None),
            Network::None => {
                let ready = self.ready.lock().pop();
                let namespace = ready.or_else(|| self.ahead.take());
                let namespace = namespace.map_or_else(make, Ok)?;
                Ok(Some(Lease::Loopback(namespace)))
            }
            Network::Veth => Ok(Some(Lease::Port(self.ports()?.take()?))),
        }
    }

    /// Gives a namespace that a Zygote has made, and that has a loopback device only, an address on the bridge.
    pub(crate) fn connect(&self, namespace: OwnedFd) -> Result<Lease> {
        self.ports()?.connect(namespace).map(Lease::Port)
    }

    fn ports(&self) -> Result<&Ports> {
        self.ports.as_ref().ok_or_else(|| {
            SandboxError::Invalid(
                "there is no bridge for sandboxes with a network of their own: set its addresses, `subnet`"
                    .to_owned(),
            )
        })
    }

    /// Returns what a sandbox of a former program has.
    pub(crate) fn adopt(&self, address: Ipv4Addr) -> Option<Lease> {
        let namespace = None;
        let port = Port { address, namespace };
        self.ports.as_ref().map(|_| Lease::Port(port))
    }

    /// Takes one back whose last process has ended, or may not have.
    pub(crate) fn put_back(&self, lease: Lease, is_empty: bool) {
        match lease {
            Lease::Loopback(namespace) => {
                let mut ready = self.ready.lock();
                // Who is still there still uses it.
                if is_empty && ready.len() < READY_MAX {
                    ready.push(namespace);
                }
            }
            Lease::Port(port) => {
                if let Some(ports) = &self.ports {
                    ports.put_back(port);
                }
            }
        }
    }

    /// Removes devices that no sandbox uses. There are no more of them from now on.
    pub(crate) fn close(&self) {
        if let Some(ports) = &self.ports {
            ports.close();
        }
    }
}

/// Makes a namespace that has a loopback device.
fn make() -> Result<OwnedFd> {
    on_a_thread(|| {
        let namespace = enter_new()?;
        // A closed connection would keep its port for a minute, and the next sandbox could not use that. Nothing can
        // arrive late on a loopback device, which is what the wait is for.
        set("tcp_max_tw_buckets", "0")?;
        Ok(namespace)
    })
}

/// Does something on a thread that ends with it, since a namespace is one of the thread that makes it.
fn on_a_thread<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sandbox-network".to_owned());
        let thread = thread
            .spawn_scoped(scope, act)
            .map_err(step("starting a thread"))?;
        thread.join().map_err(|_| SandboxError::Closed)?
    })
}

/// Moves the calling thread into a new namespace that has nothing but a loopback device.
fn enter_new() -> Result<OwnedFd> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(step("making a network namespace"))?;
    rawio::net::raise_loopback().map_err(step("raising a loopback device"))?;
    // All ports are its own: a server in it needs no rights for port 80.
    set("ip_unprivileged_port_start", "0")?;
    let path = "/proc/thread-self/ns/net";
    let namespace = File::open(path).map_err(at("opening", path))?;
    Ok(namespace.into())
}

/// Moves the calling thread into a namespace in which others have raised the loopback device.
fn enter_made(namespace: OwnedFd) -> Result<OwnedFd> {
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(step("entering a network namespace"))?;
    set("ip_unprivileged_port_start", "0")?;
    Ok(namespace)
}
