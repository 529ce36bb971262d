//! The block service: sends chunks to whoever may have them.
//!
//! ```text
//! connection ── READ ──► Schedule ──► readers (threads) ──► writer of the connection ──► socket
//!    │                   priority, then VMs in turn          at most 512 KiB wait there
//!    └─ OPEN, GET, PUT, …: answered by the connection itself, one after the other
//! ```
//!
//! Memory is bounded by windows: a VM may have asked for 16 MiB that were not sent yet, over all
//! its connections; the rest is answered with *busy*.

mod connection;
mod handshake;
mod hot;
mod memory;
mod outgoing;
mod readers;
mod schedule;
mod tally;

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::identity::Access;
use crate::load::Load;
use crate::pace::{Pace, Paces};
use crate::seats::{Seat, Seats};
use crate::transport::{Accepted, Listener};
use crate::wire::Status;
use crate::{Catalog, ChunkStore};

use memory::Memory;
use readers::Readers;
use tally::{Machine, Tally};

/// What a service allows.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Raw bytes that a VM may have asked for and not been sent, over all its connections.
    pub window_bytes: u32,
    /// Raw bytes that all VMs together may have asked for and not been sent, and bytes of boot
    /// images that are on their way from them.
    pub memory_bytes: u64,
    /// Bytes of chunks that were read and are kept in memory, for who reads them next.
    pub hot_bytes: u64,
    /// Connections, of all VMs together.
    pub connections: usize,
    /// Connections of one VM, and of one address.
    pub connections_of_one: usize,
    /// Bytes in a second that a VM gets; as many as it takes if nothing is said.
    pub send_rate_of_one: Option<NonZeroU64>,
    /// How hard the machine is pressed.
    pub load: Arc<Load>,
    /// Threads that read chunks from the store.
    pub readers: usize,
    /// How long a connection may take to say who it is.
    pub handshake: Duration,
    /// How long a client may leave a frame unread.
    pub write: Duration,
    /// How long those that are connected have left when the service ends.
    pub leave: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window_bytes: 16 << 20,
            memory_bytes: 2 << 30, // of a BlueField's sixteen; the longest boot image twice
            hot_bytes: 256 << 20,  // what some hosts' boots read
            connections: 4096,     // two for each of some thousand VMs
            connections_of_one: 64, // thirty mounts
            send_rate_of_one: None,
            load: Arc::default(),
            readers: 4, // half of a BlueField's cores
            handshake: Duration::from_secs(10),
            write: Duration::from_secs(30),
            leave: Duration::from_secs(2),
        }
    }
}

/// What a service did since it began, and what it has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Chunks that were sent.
    pub chunks: u64,
    /// Bytes of them, as stored.
    pub bytes: u64,
    /// Chunks that were asked for and not there.
    pub absent: u64,
    /// Wants, connections and proofs that were refused.
    pub refused: u64,
    /// Chunks that wait for their turn.
    pub waiting: u64,
    /// Connections.
    pub connections: u64,
    /// Sources that can be opened.
    pub sources: u64,
}

/// The block service, before and while it listens. Clones are the same service.
#[derive(Clone, Debug)]
pub struct Service {
    shared: Arc<Shared>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) readers: Readers,
    pub(crate) counts: Arc<Counts>,
    pub(crate) memory: Arc<Memory>,
    paces: Option<Paces<Vec<u8>>>,
    by_name: Arc<Seats<Vec<u8>>>,
    by_address: Arc<Seats<IpAddr>>,
    vms: Mutex<HashMap<Vec<u8>, Arc<Vm>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What is counted, where it happens.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) tally: Tally,
    pub(crate) refused: AtomicU64,
    pub(crate) connections: AtomicU64,
}

/// A virtual machine, over all its connections.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) name: Vec<u8>,
    /// Raw bytes that were asked for and not sent yet.
    asked: AtomicU64,
    /// What all of them have asked for.
    memory: Arc<Memory>,
    /// How quickly it gets what it asks for.
    pub(crate) pace: Option<Arc<Pace>>,
    /// What it got, over all its lives.
    pub(crate) machine: Arc<Machine>,
}

impl Vm {
    /// Takes `bytes` of the window until the credit is dropped, or `None` if it is used up.
    pub(crate) fn credit(self: &Arc<Self>, bytes: u32, window: u32) -> Option<Credit> {
        let bytes = u64::from(bytes);
        if !self.memory.take(bytes) {
            return None;
        }
        let add = |asked: u64| (asked + bytes <= u64::from(window)).then_some(asked + bytes);
        if self.asked.fetch_update(Relaxed, Relaxed, add).is_err() {
            self.memory.give(bytes);
            return None;
        }
        Some(Credit {
            vm: Arc::clone(self),
            bytes,
        })
    }
}

/// A part of a window that is in use.
#[derive(Debug)]
pub(crate) struct Credit {
    vm: Arc<Vm>,
    bytes: u64,
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.vm.asked.fetch_sub(self.bytes, Relaxed);
        self.vm.memory.give(self.bytes);
    }
}

impl Service {
    /// Returns a service of the chunks in `store` and the sources in `catalog`.
    ///
    /// # Errors
    /// If no threads can be had.
    pub fn new(
        store: Arc<dyn ChunkStore>,
        catalog: Arc<Catalog>,
        access: Access,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let readers = Readers::start(store, &counts, &limits)?;
        let shared = Shared {
            memory: Arc::new(Memory::new(limits.memory_bytes)),
            paces: limits.send_rate_of_one.map(Paces::new),
            by_name: Arc::default(),
            by_address: Arc::default(),
            catalog,
            access,
            limits,
            readers,
            counts,
            vms: Mutex::default(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Returns what it did and has to do.
    #[must_use]
    pub fn stats(&self) -> ServiceStats {
        self.shared.stats()
    }

    /// Returns the page for Prometheus about chunks that were asked for.
    #[must_use]
    pub fn page(&self) -> String {
        self.shared.counts.tally.page() + &self.shared.readers.page()
    }

    /// Serves who connects until `stop` says true or is gone; then tells those who are connected,
    /// and ends when they have left or their time is over.
    pub async fn serve(&self, listener: Listener, mut stop: watch::Receiver<bool>) {
        let listener = Arc::new(listener);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = ended(&mut stop) => break,
                Some(_done) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        let Some(seat) = self.shared.seat(&accepted, connections.len()) else {
                            self.shared.counts.refused.fetch_add(1, Relaxed);
                            log::warn!("a connection was refused: there are too many");
                            continue;
                        };
                        let shared = Arc::clone(&self.shared);
                        let (listener, stop) = (Arc::clone(&listener), stop.clone());
                        connections.spawn(async move {
                            let stream = accepted.finish(listener.tls());
                            connection::serve(&shared, stream, stop).await;
                            drop(seat);
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: some will be free in a while.
                        log::warn!("a connection could not be accepted: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            }
        }
        // Each leaves by itself within its time.
        while connections.join_next().await.is_some() {}
    }
}

impl Shared {
    pub(crate) fn stats(&self) -> ServiceStats {
        let counts = &self.counts;
        ServiceStats {
            chunks: counts.tally.total(Status::Here),
            bytes: counts.tally.bytes(),
            absent: counts.tally.total(Status::Absent),
            refused: counts.refused.load(Relaxed),
            waiting: self.readers.waiting() as u64,
            connections: counts.connections.load(Relaxed),
            sources: self.catalog.names().len() as u64,
        }
    }

    /// Takes a place for a connection of which `others` are there already, before it is known
    /// whose it is; `None` if there are too many, of all or of its address.
    fn seat(&self, accepted: &Accepted, others: usize) -> Option<Option<Seat<IpAddr>>> {
        if others >= self.limits.connections {
            return None;
        }
        match accepted.address() {
            Some(address) => {
                let most = self.limits.connections_of_one;
                self.by_address.take(address, most).map(Some)
            }
            // Who may use a socket in the file system is for its permissions to say.
            None => Some(None),
        }
    }

    /// Takes a place for a connection of a virtual machine; `None` if it has too many.
    pub(crate) fn seat_of(&self, name: &[u8]) -> Option<Seat<Vec<u8>>> {
        self.by_name
            .take(name.to_vec(), self.limits.connections_of_one)
    }

    /// Returns the virtual machine of this name; one for all its connections.
    pub(crate) fn vm(&self, name: &[u8]) -> Arc<Vm> {
        let mut vms = self.vms.lock();
        // Who has gone is forgotten when the next one comes.
        vms.retain(|_, vm| Arc::strong_count(vm) > 1);
        let new = || {
            Arc::new(Vm {
                name: name.to_vec(),
                asked: AtomicU64::new(0),
                memory: Arc::clone(&self.memory),
                pace: self.paces.as_ref().map(|paces| paces.of(name.to_vec())),
                machine: self.counts.tally.machine(name),
            })
        };
        Arc::clone(vms.entry(name.to_vec()).or_insert_with(new))
    }
}

/// Waits until `stop` says true, or nobody is left to say anything.
async fn ended(stop: &mut watch::Receiver<bool>) {
    // What is borrowed here must not live across a wait of the caller.
    drop(stop.wait_for(|stop| *stop).await);
}
