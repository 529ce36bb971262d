//! The block service: sends chunks to authorized clients.
//!
//! ```text
//! connection ── READ ──► Schedule ──► readers (threads) ──► writer of the connection ──► socket
//!    │                   priority, then VMs in turn          at most 512 KiB wait there
//!    ├─ START ──► Prepared (index, plan), then a stream: a job that goes through the schedule
//!    │            again and again
//!    └─ OPEN, GET, PUT, …: answered by the connection itself, one after the other
//! ```
//!
//! Memory is bounded by windows: a VM may have 16 MiB of requests that were not sent yet, over all
//! its connections; more requests get the status *busy*.

mod connection;
mod counters;
mod handshake;
mod hot;
mod link;
mod links;
mod machine;
mod memory;
mod outgoing;
mod prepared;
mod readers;
mod recent;
mod schedule;
mod stream;
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
use serving::connections::{ConnectionCounts, ConnectionPermit};
use serving::load::Load;
use serving::metrics::{Sample, register_samples};
use serving::rate::RateLimiters;
use serving::transport::{Accepted, Listener, PeerAddress};

use counters::ChunkCounters;
use link::Link;
use links::LinkTables;
use machine::{Identity, Vm};
use memory::Memory;
use prepared::Prepared;
use readers::Readers;
use stream::StreamCounters;
use uploads::{Step, Uploads};

/// Refused connections that get an error frame, at a time; others are closed at once.
const TURNED_AWAY: usize = 64;

/// The limits of a service.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Raw bytes that a VM may have requested and not received, over all its connections.
    pub window_bytes: u32,
    /// The same for all VMs together, including boot images in upload, which take half of it at
    /// most.
    pub memory_bytes: u64,
    /// Bytes of an upload, or the rest of it, that must be received within
    /// [`put_step`](Self::put_step): else it is cancelled.
    pub put_step_bytes: u64,
    /// The deadline for these bytes.
    pub put_step: Duration,
    /// Bytes of the cache in memory of chunks that were read. As many as a quarter of it are used
    /// besides for chunks as they are stored.
    pub hot_bytes: u64,
    /// Streams, of all VMs together; a START beyond that gets index and plan only.
    pub streams: usize,
    /// A network with a round trip of at most this is as fast as memory: chunks are sent
    /// decompressed there.
    pub fast_round_trip: Duration,
    /// A network with a lower rate, in bytes per second, gets chunks as stored in any case.
    pub raw_rate: u64,
    /// Connections, of all VMs together.
    pub connections: usize,
    /// Connections of one VM, and of one address.
    pub connections_of_one: usize,
    /// The limit of bytes per second to a VM, if there is one.
    pub send_rate_of_one: Option<NonZeroU64>,
    /// The load of the machine.
    pub load: Arc<Load>,
    /// Threads that read chunks from the store.
    pub readers: usize,
    /// The deadline of the handshake.
    pub handshake: Duration,
    /// How long a client may leave a frame unread.
    pub write: Duration,
    /// How long clients may continue when the service shuts down.
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
            streams: 1024,         // each queues 640 KiB at most
            fast_round_trip: Duration::from_micros(300), // PCIe and loopback; a switch takes more
            raw_rate: 64_000_000,  // half a gigabit: less is not what its processor makes of it
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

/// Statistics of a service since its start, and its current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Chunks that were sent.
    pub chunks: u64,
    /// Bytes of them, as stored.
    pub bytes: u64,
    /// Requests for chunks that are not in the store.
    pub absent: u64,
    /// Reads of chunks, connections and authentications that were refused.
    pub refused: u64,
    /// Chunks that wait to be read from the store.
    pub waiting: u64,
    /// Connections.
    pub connections: u64,
    /// Sources that can be opened.
    pub sources: u64,
    /// Bytes of memory of boot images in upload.
    pub upload_bytes: u64,
}

/// The block service, before and while it listens. Clones are the same service.
#[derive(Clone, Debug)]
pub struct Service {
    shared: Arc<Shared>,
}

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) access: Access,
    pub(crate) limits: Limits,
    pub(crate) readers: Readers,
    pub(crate) counts: Arc<Counts>,
    memory: Arc<Memory>,
    uploads: Arc<Uploads>,
    pub(crate) prepared: Prepared,
    pub(crate) links: LinkTables,
    pub(crate) streams: Arc<Semaphore>,
    paces: Option<RateLimiters<Identity>>,
    by_machine: Arc<ConnectionCounts<Identity>>,
    by_link: Arc<ConnectionCounts<PeerAddress>>,
    vms: Mutex<HashMap<Identity, Arc<Vm>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// The counters of a service.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) chunks: ChunkCounters,
    pub(crate) streams: StreamCounters,
    pub(crate) refused: AtomicU64,
    pub(crate) connections: AtomicU64,
}

impl Service {
    /// Returns a service of the chunks in `store` and the sources in `catalog`.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn new(
        store: Arc<dyn ChunkStore>,
        catalog: Arc<Catalog>,
        access: Access,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let links = LinkTables::start(Arc::clone(&catalog), Arc::clone(&store))?;
        let readers = Readers::start(store, &counts, &limits)?;
        let memory = Arc::new(Memory::new(limits.memory_bytes));
        let shared = Shared {
            uploads: Uploads::new(limits.memory_bytes / 2, &memory),
            memory,
            prepared: Prepared::default(),
            links,
            streams: Arc::new(Semaphore::new(limits.streams.min(Semaphore::MAX_PERMITS))),
            paces: limits.send_rate_of_one.map(RateLimiters::new),
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

    /// Returns its statistics.
    #[must_use]
    pub fn stats(&self) -> ServiceStats {
        self.shared.stats()
    }

    /// Registers the metrics of the service, as `nicfetch_blocks_…`.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("nicfetch_blocks");
        self.shared.counts.chunks.register(registry);
        self.shared.counts.streams.register(registry);
        self.shared.readers.register_metrics(registry);
        let shared = Arc::clone(&self.shared);
        register_samples(registry, move || shared.boot_samples());
    }

    /// Serves clients until `stop` becomes true or is dropped; then announces the shutdown to them,
    /// and returns when they have disconnected or after [`Limits::leave`].
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
                            log::warn!("a connection was refused: too many are open");
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
                        log::warn!("cannot accept a connection: {error}");
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
            Sample::gauge(
                "prepared_bytes",
                "Bytes of memory that packed indexes and plans take.",
                self.prepared.bytes(),
            ),
            Sample::gauge(
                "links_bytes",
                "Bytes of memory that the links of programs take.",
                self.links.bytes(),
            ),
        ]
    }

    pub(crate) fn stats(&self) -> ServiceStats {
        let counts = &self.counts;
        ServiceStats {
            chunks: counts.chunks.total(Status::Here),
            bytes: counts.chunks.bytes(),
            absent: counts.chunks.total(Status::Absent),
            refused: counts.refused.load(Relaxed),
            waiting: self.readers.waiting() as u64,
            connections: counts.connections.load(Relaxed),
            sources: self.catalog.names().len() as u64,
            upload_bytes: self.uploads.taken(),
        }
    }

    /// Returns the minimal rate of an upload.
    const fn put_step(&self) -> Step {
        Step {
            bytes: self.limits.put_step_bytes,
            within: self.limits.put_step,
        }
    }

    /// Counts a connection before its handshake, with `others` open; `None` if there are too many,
    /// in total or from its address.
    fn seat(
        &self,
        accepted: &Accepted,
        others: usize,
    ) -> Option<Option<ConnectionPermit<PeerAddress>>> {
        if others >= self.limits.connections {
            return None;
        }
        let link = match accepted.link() {
            PeerAddress::Address(address) => PeerAddress::Address(address.to_canonical()),
            context @ PeerAddress::Context(_) => context,
            // Who may use a socket in the file system is for its permissions to say.
            PeerAddress::User(_) | PeerAddress::Unknown => return Some(None),
        };
        let most = self.limits.connections_of_one;
        self.by_link.take(link, most).map(Some)
    }

    /// Counts a connection of an authenticated machine; `None` if it has too many.
    fn seat_of(&self, identity: &Identity) -> Option<ConnectionPermit<Identity>> {
        let most = self.limits.connections_of_one;
        self.by_machine.take(identity.clone(), most)
    }

    /// Returns how fast the way to a client is whose answer took so long.
    fn link(&self, peer: &PeerAddress, round_trip: Duration) -> Link {
        match self.paces {
            // What is sent decompressed takes more of a rate.
            Some(_) => Link::Far,
            None => Link::of(peer, round_trip, self.limits.fast_round_trip),
        }
    }

    /// Returns the state of a machine, which all its connections share.
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

/// Waits until `stop` becomes true or is dropped.
async fn ended(stop: &mut watch::Receiver<bool>) {
    // What is borrowed here must not live across a wait of the caller.
    drop(stop.wait_for(|stop| *stop).await);
}
