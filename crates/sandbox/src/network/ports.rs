//! Namespaces on the bridge: some are ready, and a thread makes and removes them.
//!
//! Making one takes milliseconds, most of which the kernel waits, and removing one, too. So a sandbox takes one
//! that is ready, and one that has ended leaves its own to the thread.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Port;
use super::bridge::Bridge;
use crate::error::{Result, SandboxError, step};

/// How many are made in advance: as many sandboxes as one client starts at a time.
const READY: usize = 8;

/// How long an address may take to become free while devices are removed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ports of a bridge.
#[derive(Debug)]
pub(super) struct Ports {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    bridge: Bridge,
    state: Mutex<State>,
    /// Something is to be done, or an address is free again.
    changed: Condvar,
}

/// What a sandbox can have.
enum Found {
    /// A port that is ready.
    Ready(Port),
    /// An address without a device.
    Free(Ipv4Addr),
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Port>,
    /// Addresses whose devices are to be removed.
    returned: Vec<Port>,
    /// Whether the thread makes or removes one. An address is free, or a port is ready, afterwards.
    busy: bool,
    /// Addresses that have no device. The one that was used last comes last.
    free: VecDeque<Ipv4Addr>,
    /// Whether making one in advance has failed. It is tried again at the next start.
    failed: bool,
    closing: bool,
}

impl Ports {
    /// Starts the thread. Sandboxes with the addresses in `used` run.
    pub(super) fn open(bridge: Bridge, used: &[Ipv4Addr]) -> Result<Self> {
        let addresses = bridge.config().subnet.addresses();
        let state = State {
            free: addresses.filter(|ip| !used.contains(ip)).collect(),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            bridge,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let thread = {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name("sandbox-ports".to_owned());
            thread
                .spawn(move || shared.run())
                .map_err(step("starting a thread"))?
        };
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Takes one that nobody has used.
    pub(super) fn take(&self) -> Result<Port> {
        self.shared.take()
    }

    /// Gives an address to a namespace that somebody else has made.
    pub(super) fn connect(&self, namespace: OwnedFd) -> Result<Port> {
        self.shared.connect(namespace)
    }

    /// Takes one back. Whoever is still in its namespace reaches nothing any more.
    pub(super) fn put_back(&self, port: Port) {
        self.shared.state.lock().returned.push(port);
        self.shared.changed.notify_all();
    }

    /// Ends the thread, and removes what no sandbox uses.
    pub(super) fn close(&self) {
        self.shared.state.lock().closing = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that makes network devices ended in a panic");
        }
        let state = std::mem::take(&mut *self.shared.state.lock());
        for port in state.ready.into_iter().chain(state.returned) {
            self.shared.remove(port);
        }
        if let Err(error) = self.shared.bridge.remove_if_unused() {
            log::warn!("{error}");
        }
    }
}

impl Shared {
    fn take(&self) -> Result<Port> {
        let found = self.find(|state| {
            let ready = state.ready.pop().map(Found::Ready);
            ready.or_else(|| state.free.pop_front().map(Found::Free))
        });
        match found? {
            Found::Ready(port) => {
                self.changed.notify_all();
                Ok(port)
            }
            Found::Free(address) => self.make(address, |bridge| bridge.make_port(address)),
        }
    }

    fn connect(&self, namespace: OwnedFd) -> Result<Port> {
        let found = self.find(|state| {
            let free = state.free.pop_front().map(Found::Free);
            free.or_else(|| state.ready.pop().map(Found::Ready))
        });
        let address = match found? {
            Found::Free(address) => address,
            Found::Ready(port) => {
                self.bridge.remove_port(port.address)?;
                port.address
            }
        };
        self.make(address, |bridge| {
            bridge.make_guarded_port(address, namespace)
        })
    }

    /// Waits until there is something that a sandbox can have.
    fn find(&self, take: impl Fn(&mut State) -> Option<Found>) -> Result<Found> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        state.failed = false;
        loop {
            if let Some(found) = take(&mut state) {
                return Ok(found);
            }
            // None is free, but one may be about to be.
            let comes = state.busy || !state.returned.is_empty();
            if !comes || self.changed.wait_until(&mut state, deadline).timed_out() {
                let subnet = self.bridge.config().subnet;
                return Err(SandboxError::Invalid(format!(
                    "all addresses of {subnet} are in use: end sandboxes, or set a larger `subnet`; a bridge has at \
                     most 1023 ports"
                )));
            }
        }
    }

    /// Makes a port, or frees its address.
    fn make(
        &self,
        address: Ipv4Addr,
        make: impl FnOnce(&Bridge) -> Result<OwnedFd>,
    ) -> Result<Port> {
        match make(&self.bridge) {
            Ok(namespace) => Ok(Port {
                address,
                namespace: Some(namespace),
            }),
            Err(error) => {
                self.state.lock().free.push_back(address);
                Err(error)
            }
        }
    }

    fn remove(&self, port: Port) {
        let Port { address, namespace } = port;
        match self.bridge.remove_port(address) {
            Ok(()) => self.state.lock().free.push_back(address),
            // The address is not used again.
            Err(error) => log::warn!("the network device of {address} stays behind: {error}"),
        }
        drop(namespace);
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.closing {
            if let Some(port) = state.returned.pop() {
                state.busy = true;
                MutexGuard::unlocked(&mut state, || self.remove(port));
            } else if let Some(address) = to_prepare(&mut state) {
                state.busy = true;
                match MutexGuard::unlocked(&mut state, || {
                    self.make(address, |bridge| bridge.make_port(address))
                }) {
                    Ok(port) => state.ready.push(port),
                    Err(error) => {
                        log::warn!("no network is made in advance: {error}");
                        state.failed = true;
                    }
                }
            } else {
                self.changed.wait(&mut state);
                continue;
            }
            state.busy = false;
            self.changed.notify_all();
        }
    }
}

/// Takes an address to be made ready, if there are too few.
fn to_prepare(state: &mut State) -> Option<Ipv4Addr> {
    let is_enough = state.ready.len() >= READY || state.failed;
    (!is_enough).then(|| state.free.pop_front()).flatten()
}
