//! A service and its clients, over a socket of their own.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of the rig")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub(crate) mod line;
pub(crate) mod raw;
pub(crate) mod streams;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocks::testing::{MemSource, Node, tree};
use blocks::{FileId, Tree};
use blockservice::client::{Client, ClientConfig, Patience};
use blockservice::identity::{Access, Key};
use blockservice::service::{Limits, Service, ServiceStats};
use chunks::index::{CHUNK_BYTES, Index, build};
use chunks::testing::MemStore;
use chunks::{Catalog, ChunkStore};
use prometheus_client::registry::Registry;
use serving::metrics::exposition;
use serving::transport::{Address, Listener, TlsServer};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Sizes of the files of the sample: empty, small, a chunk, three chunks and a bit.
pub(crate) const SIZES: [u64; 5] = [0, 100, CHUNK_BYTES, 3 * CHUNK_BYTES + 5, 9 * CHUNK_BYTES];

/// A source with some files, and its index; its chunks are in `store`.
pub(crate) struct Sample {
    pub(crate) tree: Arc<Tree>,
    pub(crate) source: MemSource,
    pub(crate) index: Index,
}

/// Returns bytes that differ from chunk to chunk and from seed to seed.
pub(crate) fn content(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Connects to a service of others' making. It requests nothing twice, since a busy machine is late.
pub(crate) fn patient_client(address: String) -> Client {
    const LONG: Duration = Duration::from_secs(60);
    let config = ClientConfig {
        address: Address::Tcp(address),
        others: Vec::new(),
        name: b"vm".to_vec(),
        key: None,
        tls: None,
        patience: Patience {
            give_up: LONG,
            hedge: LONG,
            transfer: LONG,
            ..Patience::default()
        },
    };
    let client = Client::start(config).unwrap();
    connected(&client);
    client
}

pub(crate) fn sample(label: &str, seed: u64, store: &dyn ChunkStore) -> Sample {
    let names: Vec<_> = (1..)
        .take(SIZES.len())
        .map(|n| (format!("f{n}"), n))
        .collect();
    let names: Vec<_> = names.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let mut nodes = vec![Node::dir(&names)];
    nodes.extend(SIZES.iter().map(|size| Node::file(*size)));
    let tree = Arc::new(tree(&nodes).unwrap());
    let mut source = MemSource::default();
    for (n, size) in (1_u32..).zip(SIZES) {
        source.insert(
            tree.key(FileId(n)).unwrap(),
            content(seed + u64::from(n), size),
        );
    }
    let go_on = &mut |_| ControlFlow::Continue(());
    let built = build(label.as_bytes(), &tree, &source, store, go_on).unwrap();
    Sample {
        tree,
        source,
        index: built.index,
    }
}

/// A service that listens on a unix socket until it is stopped.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) store: Arc<MemStore>,
    pub(crate) catalog: Arc<Catalog>,
    running: Option<Running>,
}

struct Running {
    service: Arc<Service>,
    stop: watch::Sender<bool>,
    runtime: Runtime,
    serving: tokio::task::JoinHandle<()>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let catalog = Arc::new(Catalog::open(&dir.path().join("catalog")).unwrap());
        let store = Arc::new(MemStore::default());
        Self {
            dir,
            store,
            catalog,
            running: None,
        }
    }

    /// Returns a rig that serves the sample under the name `one`.
    pub(crate) fn serving(access: Access) -> (Self, Sample) {
        let mut rig = Self::new();
        let sample = sample("one", 1, &*rig.store);
        rig.catalog.add(b"one", &sample.index).unwrap();
        rig.start(access, Limits::default());
        (rig, sample)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub(crate) fn start(&mut self, access: Access, limits: Limits) {
        self.start_on(Arc::clone(&self.store) as _, access, limits);
    }

    /// Starts with another store than the rig's.
    pub(crate) fn start_on(&mut self, store: Arc<dyn ChunkStore>, access: Access, limits: Limits) {
        let address = Address::Unix(self.socket());
        self.start_at(&address, store, access, limits);
    }

    /// Starts at a port, and returns which.
    pub(crate) fn start_at_port(&mut self, access: Access, limits: Limits) -> SocketAddr {
        self.start_at_port_on(Arc::clone(&self.store) as _, access, limits)
    }

    /// The same with another store than the rig's.
    pub(crate) fn start_at_port_on(
        &mut self,
        store: Arc<dyn ChunkStore>,
        access: Access,
        limits: Limits,
    ) -> SocketAddr {
        let any = Address::Tcp("127.0.0.1:0".to_owned());
        let address = self.start_at(&any, store, access, limits);
        address.parse().unwrap()
    }

    /// The same with TLS.
    pub(crate) fn start_with_tls(&mut self, limits: Limits, tls: TlsServer) -> SocketAddr {
        let any = Address::Tcp("127.0.0.1:0".to_owned());
        let store = Arc::clone(&self.store) as _;
        let address = self.start_as(&any, store, Access::open(), limits, Some(tls));
        address.parse().unwrap()
    }

    fn start_at(
        &mut self,
        address: &Address,
        store: Arc<dyn ChunkStore>,
        access: Access,
        limits: Limits,
    ) -> String {
        self.start_as(address, store, access, limits, None)
    }

    fn start_as(
        &mut self,
        address: &Address,
        store: Arc<dyn ChunkStore>,
        access: Access,
        limits: Limits,
        tls: Option<TlsServer>,
    ) -> String {
        let service = Service::new(store, Arc::clone(&self.catalog), access, limits).unwrap();
        let service = Arc::new(service);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(Listener::bind(address, tls)).unwrap();
        let bound = listener.address().unwrap();
        let (stop, stopped) = watch::channel(false);
        let serving = Arc::clone(&service);
        let serving = runtime.spawn(async move { serving.serve(listener, stopped).await });
        self.running = Some(Running {
            service,
            stop,
            runtime,
            serving,
        });
        bound
    }

    /// Ends the service as a signal would.
    pub(crate) fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.stop.send(true).unwrap();
        running.runtime.block_on(running.serving).unwrap();
    }

    pub(crate) fn stats(&self) -> ServiceStats {
        self.running.as_ref().unwrap().service.stats()
    }

    /// Returns how many bytes of chunks the service keeps in memory.
    pub(crate) fn hot_bytes(&self) -> u64 {
        self.metric("hot_bytes")
    }

    /// Returns a metric of the service.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut registry = Registry::default();
        let running = self.running.as_ref().unwrap();
        running.service.register_metrics(&mut registry);
        let page = exposition(&registry);
        let line = format!("nicfetch_blocks_{name} ");
        let value = page.lines().find_map(|row| row.strip_prefix(&line));
        value
            .unwrap_or_else(|| panic!("{name}: {page}"))
            .parse()
            .unwrap()
    }

    /// Returns a client that is not connected yet; on a busy machine half a second is nothing.
    pub(crate) fn client(&self, name: &str, key: Option<Key>) -> Client {
        self.client_with(name, key, |patience| {
            patience.give_up = Duration::from_secs(20);
        })
    }

    pub(crate) fn client_with(
        &self,
        name: &str,
        key: Option<Key>,
        change: impl FnOnce(&mut Patience),
    ) -> Client {
        let mut patience = Patience::default();
        change(&mut patience);
        let config = ClientConfig {
            address: Address::Unix(self.socket()),
            others: Vec::new(),
            name: name.as_bytes().to_vec(),
            key,
            tls: None,
            patience,
        };
        Client::start(config).unwrap()
    }
}

/// Waits until `condition` holds; panics if it takes so long that it never will.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the client is connected.
pub(crate) fn connected(client: &Client) {
    assert!(client.wait_until_connected(Duration::from_secs(60)));
}
