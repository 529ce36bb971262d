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
mod outgoing;
mod readers;
mod schedule;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::identity::Access;
use crate::transport::Listener;
use crate::{Catalog, ChunkStore};

use readers::Readers;

/// What a service allows.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Raw bytes that a VM may have asked for and not been sent, over all its connections.
    pub window_bytes: u32,
    /// Connections, of all VMs together.
    pub connections: usize,
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
            connections: 4096, // two for each of some thousand VMs
            readers: 4,        // half of a BlueField's cores
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

/// The block service, before and while it listens.
#[derive(Debug)]
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
    pub(crate) chunks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) absent: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) connections: AtomicU64,
}

/// A virtual machine, over all its connections.
#[derive(Debug)]
pub(crate) struct Vm {
    pub(crate) name: Vec<u8>,
    /// Raw bytes that were asked for and not sent yet.
    asked: AtomicU64,
}

impl Vm {
    /// Takes `bytes` of the window until the credit is dropped, or `None` if it is used up.
    pub(crate) fn credit(self: &Arc<Self>, bytes: u32, window: u32) -> Option<Credit> {
        let bytes = u64::from(bytes);
        let add = |asked: u64| (asked + bytes <= u64::from(window)).then_some(asked + bytes);
        self.asked.fetch_update(Relaxed, Relaxed, add).ok()?;
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
        let readers = Readers::start(store, &counts, limits.readers)?;
        let shared = Shared {
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
                    Ok(accepted) if connections.len() < self.shared.limits.connections => {
                        let shared = Arc::clone(&self.shared);
                        let (listener, stop) = (Arc::clone(&listener), stop.clone());
                        connections.spawn(async move {
                            let stream = accepted.finish(listener.tls());
                            connection::serve(&shared, stream, stop).await;
                        });
                    }
                    Ok(_) => {
                        self.shared.counts.refused.fetch_add(1, Relaxed);
                        log::warn!("a connection was refused: there are too many");
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
            chunks: counts.chunks.load(Relaxed),
            bytes: counts.bytes.load(Relaxed),
            absent: counts.absent.load(Relaxed),
            refused: counts.refused.load(Relaxed),
            waiting: self.readers.waiting() as u64,
            connections: counts.connections.load(Relaxed),
            sources: self.catalog.names().len() as u64,
        }
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
