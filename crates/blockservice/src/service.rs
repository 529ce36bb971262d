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
mod machine;
mod memory;
mod outgoing;
mod readers;
mod schedule;
mod tally;
mod uploads;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::identity::Access;
use crate::wire::Status;
use chunks::{Catalog, ChunkStore};
use serving::load::Load;
use serving::metrics::{Sample, register_samples};
use serving::pace::Paces;
use serving::seats::{Seat, Seats};
use serving::transport::{Accepted, Link, Listener};

use machine::{Identity, Vm};
use memory::Memory;
use readers::Readers;
use tally::Tally;
use uploads::{Step, Uploads};

/// Connections beyond the last that are told at a time that they are; others are closed at once.
const TURNED_AWAY: usize = 64;

/// What a service allows.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Raw bytes that a VM may have asked for and not been sent, over all its connections.
    pub window_bytes: u32,
    /// Raw bytes that all VMs together may have asked for and not been sent, and bytes of boot
    /// images that are on their way from them, which take half of it at most.
    pub memory_bytes: u64,
    /// Bytes of a boot image on its way that have to come, or the rest of it, within
    /// [`put_step`](Self::put_step): else it is given up.
    pub put_step_bytes: u64,
    /// How long these may take.
    pub put_step: Duration,
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
            put_step_bytes: 1 << 20, // one who is slower takes three hours for the longest
            put_step: Duration::from_secs(10), // as a frame
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
    /// Bytes of memory that boot images on their way take.
    pub upload_bytes: u64,
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
    memory: Arc<Memory>,
    uploads: Arc<Uploads>,
    paces: Option<Paces<Identity>>,
    by_machine: Arc<Seats<Identity>>,
    by_link: Arc<Seats<Link>>,
    vms: Mutex<HashMap<Identity, Arc<Vm>>>,
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
        let memory = Arc::new(Memory::new(limits.memory_bytes));
        let shared = Shared {
            uploads: Uploads::new(limits.memory_bytes / 2, &memory),
            memory,
            paces: limits.send_rate_of_one.map(Paces::new),
            by_machine: Arc::default(),
            by_link: Arc::default(),
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

    /// Has exposed what was asked of the service, as `nicfetch_blocks_…`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("nicfetch_blocks");
        self.shared.counts.tally.register(registry);
        self.shared.readers.register_metrics(registry);
        let shared = Arc::clone(&self.shared);
        register_samples(registry, move || shared.boot_samples());
    }

    /// Serves who connects until `stop` says true or is gone; then tells those who are connected,
    /// and ends when they have left or their time is over.
    pub async fn serve(&self, listener: Listener, mut stop: watch::Receiver<bool>) {
        let listener = Arc::new(listener);
        let mut connections = JoinSet::new();
        let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
        loop {
            tokio::select! {
                () = ended(&mut stop) => break,
                Some(_done) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        let Some(seat) = self.shared.seat(&accepted, connections.len()) else {
                            self.shared.counts.refused.fetch_add(1, Relaxed);
                            log::warn!("a connection was refused: there are too many");
                            if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                                let listener = Arc::clone(&listener);
                                tokio::spawn(async move {
                                    connection::turn_away(accepted.finish(listener.tls())).await;
                                    drop(place);
                                });
                            }
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
    fn boot_samples(&self) -> Vec<Sample> {
        let (bytes, budget) = self.catalog.boot_room();
        vec![
            Sample::gauge(
                "boot_bytes",
                "Bytes of the boot images that machines uploaded.",
                bytes,
            ),
            Sample::gauge("boot_budget_bytes", "Bytes that these may take.", budget),
            Sample::gauge(
                "upload_bytes",
                "Bytes of memory that boot images take while they are uploaded.",
                self.uploads.taken(),
            ),
        ]
    }

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
            upload_bytes: self.uploads.taken(),
        }
    }

    /// Returns how quickly a boot image on its way has to come.
    const fn put_step(&self) -> Step {
        Step {
            bytes: self.limits.put_step_bytes,
            within: self.limits.put_step,
        }
    }

    /// Takes a place for a connection of which `others` are there already, before it is known
    /// whose it is; `None` if there are too many, of all or from its place.
    fn seat(&self, accepted: &Accepted, others: usize) -> Option<Option<Seat<Link>>> {
        if others >= self.limits.connections {
            return None;
        }
        let link = match accepted.link() {
            Link::Address(address) => Link::Address(address.to_canonical()),
            context @ Link::Context(_) => context,
            // Who may use a socket in the file system is for its permissions to say.
            Link::User(_) | Link::Unknown => return Some(None),
        };
        let most = self.limits.connections_of_one;
        self.by_link.take(link, most).map(Some)
    }

    /// Takes a place for a connection of a machine; `None` if it has too many.
    fn seat_of(&self, identity: &Identity) -> Option<Seat<Identity>> {
        let most = self.limits.connections_of_one;
        self.by_machine.take(identity.clone(), most)
    }

    /// Returns the machine that is this; one for all its connections.
    fn vm(&self, identity: &Identity) -> Arc<Vm> {
        let mut vms = self.vms.lock();
        // Who has gone is forgotten when the next one comes.
        vms.retain(|_, vm| Arc::strong_count(vm) > 1);
        let new = || {
            let paces = self.paces.as_ref();
            let pace = paces.map(|paces| paces.of(identity.clone()));
            Arc::new(Vm::new(identity.clone(), &self.memory, pace))
        };
        Arc::clone(vms.entry(identity.clone()).or_insert_with(new))
    }
}

/// Waits until `stop` says true, or nobody is left to say anything.
async fn ended(stop: &mut watch::Receiver<bool>) {
    // What is borrowed here must not live across a wait of the caller.
    drop(stop.wait_for(|stop| *stop).await);
}
