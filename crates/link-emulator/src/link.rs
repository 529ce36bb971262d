//! A line, and its connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::address::{Address, Listener, Stream};
use crate::connection::{Connection, Shared};
use crate::fault::{CurrentFault, Fault};
use crate::line::Line;
use crate::queue::Tap;
use crate::shape::Shape;

/// Connections at a time: each has four threads.
const CONNECTIONS: usize = 256;

/// A line between programs of this machine. Its connections end when it is dropped.
#[derive(Debug)]
pub struct Link {
    carrier: Arc<Carrier>,
    listeners: Vec<(Address, JoinHandle<()>)>,
}

/// Why a link cannot carry.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {address}")]
pub struct LinkError {
    /// Where it was to listen.
    pub address: Address,
    source: io::Error,
}

/// What went over a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Of these, connections that were refused: too many at a time, a dead line, or no listener.
    pub refused: u64,
    /// Bytes to servers.
    pub to_server: u64,
    /// Bytes to clients.
    pub to_client: u64,
}

#[derive(Debug)]
struct Carrier {
    shared: Arc<Shared>,
    connections: Mutex<Vec<Connection>>,
    accepted: AtomicU64,
    refused: AtomicU64,
}

impl Link {
    /// Makes a line.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self::with(shape, None)
    }

    /// Makes a line of which `tap` sees everything.
    #[must_use]
    pub fn tapped(shape: Shape, tap: Tap) -> Self {
        Self::with(shape, Some(tap))
    }

    fn with(shape: Shape, tap: Option<Tap>) -> Self {
        let shared = Shared {
            to_server: Line::new(shape),
            to_client: Line::new(shape),
            window: shape.window(),
            delay: shape.delay,
            state: CurrentFault::default(),
            tap,
        };
        let carrier = Carrier {
            shared: Arc::new(shared),
            connections: Mutex::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Self {
            carrier: Arc::new(carrier),
            listeners: Vec::new(),
        }
    }

    /// Listens at `listen`, and carries connections to `server`. Returns where it listens.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub fn carry(&mut self, listen: &Address, server: Address) -> Result<Address, LinkError> {
        let failed = |source| LinkError {
            address: listen.clone(),
            source,
        };
        let (listener, address) = Listener::bind(listen).map_err(failed)?;
        let carrier = Arc::clone(&self.carrier);
        let thread = std::thread::Builder::new()
            .name("link-listener".to_owned())
            .spawn(move || carrier.accept_all(&listener, &server))
            .map_err(failed)?;
        self.listeners.push((address.clone(), thread));
        Ok(address)
    }

    /// Sets the fault of the line, or removes it.
    pub fn set_fault(&self, fault: Fault) {
        self.carrier.shared.state.set(fault);
        if fault == Fault::Dead {
            self.carrier.cut_all();
        }
    }

    /// Returns what went over it so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            connections: self.carrier.accepted.load(Relaxed),
            refused: self.carrier.refused.load(Relaxed),
            to_server: self.carrier.shared.to_server.bytes(),
            to_client: self.carrier.shared.to_client.bytes(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.carrier.shared.state.close();
        for (address, thread) in self.listeners.drain(..) {
            // It looks whether the link is closed when somebody comes.
            if Stream::connect(&address).is_ok() {
                let _panicked = thread.join();
            }
            if let Address::Unix(path) = address {
                // Whoever took the directory away took the socket, too.
                let _gone = std::fs::remove_file(path);
            }
        }
        self.carrier.cut_all();
        let connections = std::mem::take(&mut *self.carrier.connections.lock());
        drop(connections);
    }
}

impl Carrier {
    fn accept_all(&self, listener: &Listener, server: &Address) {
        loop {
            let client = listener.accept();
            if self.shared.state.is_closed() {
                return;
            }
            let Ok(client) = client else {
                // There may be no descriptor left for now.
                std::thread::sleep(std::time::Duration::from_millis(10));
                continue;
            };
            let number = self.accepted.fetch_add(1, Relaxed);
            if self.carry(number, client, server).is_none() {
                self.refused.fetch_add(1, Relaxed);
            }
        }
    }

    /// Carries a connection; `None` if it cannot. The client sees an end then.
    fn carry(&self, number: u64, client: Stream, server: &Address) -> Option<()> {
        let mut connections = self.connections.lock();
        let over: Vec<_> = connections.extract_if(.., |one| one.is_over()).collect();
        drop(over);
        if connections.len() >= CONNECTIONS || self.shared.state.get() == Fault::Dead {
            return None;
        }
        let server = Stream::connect(server).ok()?;
        connections.push(Connection::carry(&self.shared, number, client, server).ok()?);
        Some(())
    }

    fn cut_all(&self) {
        self.connections.lock().iter().for_each(Connection::cut);
    }
}
