//! The client of the block service: connects a mount to the cache on the SmartNIC.
//!
//! ```text
//! NicCache (beside a local source) ─┐
//! NicSource (no local source) ──────┴► Remote ──► Connection 0 (demand) ─┬─► service
//!   local chunks, origin                │  50 ms: hedge            │
//!                                       ├───────► Connection 1 (rest) ───┘
//!                                       └───────► 2, 3: another service with the same sources
//! ```
//!
//! Callers are synchronous threads; connections run on a runtime without threads, which the thread
//! that waits for a response drives meanwhile.
//! Losing the service costs speed: every request completes or fails within half a second.

mod connect;
mod connection;
mod connections;
mod connector;
mod driver;
mod fill;
mod flights;
mod keep;
mod nic_cache;
mod place;
mod planned;
mod read_ahead;
mod registered;
mod remote;
mod source;
mod start;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use blocks::ContentId;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::identity::Key;
use crate::wire::{DATA_MAX, ErrorCode, Frame, Message, What};
use chunks::BOOT_MAX;
use chunks::BootEntry;
use chunks::index::{Index, IndexError};
use serving::transport::{Address, TlsClient};

use connection::Connection;
use connections::Connections;
use driver::{Driver, Keeper};
use flights::Flights;
use registered::RegisteredSource;

pub use connector::{ConnectionRequest, Connector, PendingConnection};
pub use fill::Filled;
pub use nic_cache::NicCache;
pub use planned::{InOrder, Planned};
pub use remote::{Remote, RemoteCounts, ServiceCounts};
pub use source::{NicSource, Origin, SourceCounts};
pub use start::{ServedPlan, Started, Wanted};

pub use crate::wire::Ask;

/// The deadlines of a client.
#[derive(Clone, Debug)]
pub struct Patience {
    /// How long a connection may take to be made.
    pub connect: Duration,
    /// How long a demand read waits before it is requested on the second connection, too.
    pub hedge: Duration,
    /// How long a demand read waits before it fails.
    pub give_up: Duration,
    /// The time between two requests that check whether a silent service is back.
    pub probe: Duration,
    /// How long a service is not asked that sent too many wrong chunks, where there is another source; twice as long each time,
    /// up to 64 times.
    pub doubt: Duration,
    /// How long a service may be silent before its connection is closed.
    pub silent: Duration,
    /// The delay before a lost connection is made again, at first and at most.
    pub again: (Duration, Duration),
    /// How long transfers wait that no read depends on: indexes, boot images.
    pub transfer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            hedge: Duration::from_millis(50),
            give_up: Duration::from_millis(500),
            probe: Duration::from_millis(250),
            doubt: Duration::from_secs(1),
            silent: Duration::from_secs(5),
            again: (Duration::from_millis(50), Duration::from_secs(5)),
            transfer: Duration::from_secs(10),
        }
    }
}

/// Where the services are, and who we are.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Where the first one listens: sources are started there.
    pub address: Address,
    /// Where others listen that have the same sources, and may be asked for everything.
    pub others: Vec<Address>,
    /// Our name.
    pub name: Vec<u8>,
    /// Our key, if we have one.
    pub key: Option<Key>,
    /// Our certificate, if we have one.
    pub tls: Option<TlsClient>,
    /// The deadlines.
    pub patience: Patience,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no connection, or it was lost.
    #[error("the block service at {address} cannot be reached; does it run?")]
    Away {
        /// Its address.
        address: String,
    },
    /// It did not respond in time.
    #[error("the block service at {address} did not answer in time")]
    Late {
        /// Its address.
        address: String,
    },
    /// It refused.
    #[error("the block service refused: {text}")]
    Refused {
        /// The error code.
        code: ErrorCode,
        /// The service's message.
        text: String,
    },
    /// Its response is not valid.
    #[error("unexpected response from the block service: {what}")]
    Wrong {
        /// The invalid part.
        what: &'static str,
    },
    /// The index that it sent cannot be used.
    #[error("the index of the source cannot be used")]
    Index(#[from] IndexError),
    /// A boot image is too large to travel.
    #[error("a boot image has 1 to {BOOT_MAX} bytes, not {bytes}")]
    BootLength {
        /// Its size.
        bytes: u64,
    },
}

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    /// Makes the connections; this process does if absent.
    pub(crate) connector: Option<Arc<dyn Connector>>,
    sources: parking_lot::Mutex<Vec<Arc<RegisteredSource>>>,
    /// The bytes that may be requested at a time, of the service that allows least; 0 until one has sent its limit.
    pub(crate) window: AtomicU64,
    /// The source of unique numbers.
    numbers: AtomicU64,
}

impl Shared {
    /// Notes how many bytes a service allows to be requested at a time.
    pub(crate) fn allows(&self, bytes: u64) {
        let known = self.window.load(Relaxed);
        let least = if known == 0 || self.config.others.is_empty() {
            bytes
        } else {
            known.min(bytes)
        };
        self.window.store(least, Relaxed);
    }
}

/// A client of a block service, or of several that have the same sources.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    connections: Connections,
    driver: Arc<Driver>,
    _keeper: Keeper,
}

/// The bytes of a chunk, verified.
type Chunk = Arc<Vec<u8>>;

/// Pieces of an index or a boot image that are asked for at a time: 1 MiB.
const PIECES: usize = 8;

impl Client {
    /// Returns a client, which starts to connect; the service need not be there yet.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn start(config: ClientConfig) -> io::Result<Self> {
        Self::start_by(config, None)
    }

    /// Returns a client for which `connector` makes the connections, where there is one.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn start_by(
        config: ClientConfig,
        connector: Option<Arc<dyn Connector>>,
    ) -> io::Result<Self> {
        let (driver, keeper) = Driver::start()?;
        let shared = Arc::new(Shared {
            config,
            connector,
            sources: parking_lot::Mutex::default(),
            window: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
        });
        let config = &shared.config;
        let addresses: Vec<_> = [&config.address]
            .into_iter()
            .chain(&config.others)
            .cloned()
            .collect();
        let connections = Connections::new(&addresses, |place| {
            let (connection, commands) = Connection::new(place, Arc::clone(&shared));
            let _task = driver.spawn(connect::keep(Arc::clone(&connection), commands));
            connection
        });
        let _task = driver.spawn(connect::probe(
            shared.config.patience.clone(),
            connections.clone(),
        ));
        Ok(Self {
            shared,
            connections,
            driver,
            _keeper: keeper,
        })
    }

    /// Waits until the first service is connected, and returns whether it is.
    #[must_use]
    pub fn wait_until_connected(&self, patience: Duration) -> bool {
        self.wait_for(self.connections.demand(0), patience)
    }

    fn wait_for(&self, connection: &Connection, patience: Duration) -> bool {
        let up = async {
            while !connection.is_up() {
                connection.changed().await;
            }
        };
        self.within(patience, up).is_some()
    }

    /// Returns whether reads are asked of a service now.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.connections
            .iter()
            .any(|connection| connection.responds())
    }

    /// Opens the source `name`. Its index is fetched unless `have` returns the one of this id.
    ///
    /// # Errors
    /// If there is no such source, `wanted` is another index than the service has, or the service
    /// is not reachable.
    pub fn open(
        &self,
        name: &[u8],
        wanted: Option<ContentId>,
        have: impl FnOnce(&ContentId) -> Option<Arc<Index>>,
    ) -> Result<Remote, ClientError> {
        let asked = self.connections.asked();
        let (remote, _) = self.open_at(asked, name, wanted, have)?;
        Ok(remote)
    }

    /// Opens a source at the service of a connection, and returns it with its number.
    fn open_at(
        &self,
        asked: &Arc<Connection>,
        name: &[u8],
        wanted: Option<ContentId>,
        have: impl FnOnce(&ContentId) -> Option<Arc<Index>>,
    ) -> Result<(Remote, u64), ClientError> {
        let open = Message::Open {
            name: name.to_vec(),
        };
        let opened = self.ask(asked, open, Vec::new())?;
        let Message::Opened { handle, len, id } = opened.message else {
            return Err(ClientError::Wrong { what: "no OPENED" });
        };
        if wanted.is_some_and(|wanted| wanted != id) {
            return Err(ClientError::Wrong {
                what: "another index than the one that is wanted",
            });
        }
        let index = match have(&id) {
            Some(index) => index,
            None => {
                let limit = chunks::index::INDEX_MAX;
                let bytes = self.fetch(asked, handle, What::Index, &id, len, limit)?;
                let index = Index::decode(&bytes)?;
                if index.id() != id {
                    return Err(ClientError::Wrong { what: "an index" });
                }
                Arc::new(index)
            }
        };
        Ok(self.numbered(name, index))
    }

    /// Returns the source `name`, whose index is known already, whether the service is reachable or
    /// not. While it is not, or has another index under this name, every read is a miss.
    #[must_use]
    pub fn remote(&self, name: &[u8], index: Arc<Index>) -> Remote {
        self.numbered(name, index).0
    }

    fn numbered(&self, name: &[u8], index: Arc<Index>) -> (Remote, u64) {
        let source = self.register(name);
        source.name_index(index.id());
        for connection in self.connections.iter() {
            connection.open(&source);
        }
        let (driver, shared) = (&self.driver, &self.shared);
        let flights = Flights::new(driver, shared, &self.connections, &source, index);
        (Remote::new(flights), source.number)
    }

    /// Notes a source that all connections open whenever they are made.
    fn register(&self, name: &[u8]) -> Arc<RegisteredSource> {
        let number = self.shared.numbers.fetch_add(1, Relaxed);
        let source = Arc::new(RegisteredSource::new(number, name));
        let mut sources = self.shared.sources.lock();
        sources.retain(|source| !source.is_over());
        sources.push(Arc::clone(&source));
        source
    }

    /// Forgets a source that could not be had.
    fn unregister(&self, source: &Arc<RegisteredSource>) {
        let mut sources = self.shared.sources.lock();
        sources.retain(|known| known.number != source.number);
    }

    /// Returns the boot images that the service keeps of a source, newest first.
    ///
    /// # Errors
    /// If the service is not reachable or refuses.
    pub fn boots(&self, name: &[u8]) -> Result<Vec<BootEntry>, ClientError> {
        let asked = self.connections.asked();
        let handle = self.handle_of(asked, name)?;
        let list = self.ask(asked, Message::Boots { handle }, Vec::new())?;
        match list.message {
            Message::BootList { boots } => Ok(boots),
            _ => Err(ClientError::Wrong {
                what: "no list of boot images",
            }),
        }
    }

    /// Returns a boot image of a source, verified.
    ///
    /// # Errors
    /// If the service is not reachable or refuses, or its response is not valid.
    pub fn boot(&self, name: &[u8], boot: &BootEntry) -> Result<Vec<u8>, ClientError> {
        let asked = self.connections.asked();
        let handle = self.handle_of(asked, name)?;
        let bytes = self.fetch(asked, handle, What::Boot, &boot.id, boot.len, BOOT_MAX)?;
        if ContentId::of(&bytes) != boot.id {
            return Err(ClientError::Wrong {
                what: "a boot image",
            });
        }
        Ok(bytes)
    }

    /// Gives the first service that responds a boot image of a source, for the next boot.
    ///
    /// # Errors
    /// If the service is not reachable or refuses.
    pub fn keep_boot(&self, name: &[u8], bytes: &[u8]) -> Result<ContentId, ClientError> {
        let total = bytes.len() as u64;
        if total == 0 || total > BOOT_MAX {
            return Err(ClientError::BootLength { bytes: total });
        }
        let asked = self.connections.asked();
        let (handle, id) = (self.handle_of(asked, name)?, ContentId::of(bytes));
        let mut offset = 0;
        for piece in bytes.chunks(DATA_MAX) {
            let put = Message::Put {
                handle,
                id,
                total,
                offset,
            };
            let answer = self.ask(asked, put, piece.to_vec())?;
            offset += piece.len() as u64;
            let whole = offset == total;
            if answer.message != (Message::PutDone { whole }) {
                return Err(ClientError::Wrong {
                    what: "no PUT_DONE",
                });
            }
        }
        Ok(id)
    }

    /// Fetches all of something, a few pieces at a time: one after the other, each would cost a
    /// way there and back.
    fn fetch(
        &self,
        asked: &Arc<Connection>,
        handle: u32,
        what: What,
        id: &ContentId,
        len: u64,
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        if len > limit {
            return Err(ClientError::Wrong {
                what: "a length beyond its limit",
            });
        }
        // Grows with what comes, not with what was promised.
        let mut bytes = Vec::new();
        let mut begun = VecDeque::new();
        let mut next = 0;
        while (bytes.len() as u64) < len {
            while next < len && begun.len() < PIECES {
                let wanted = (len - next).min(DATA_MAX as u64);
                let get = Message::Get {
                    handle,
                    what,
                    id: *id,
                    offset: next,
                    len: u32::try_from(wanted).unwrap_or(0),
                };
                begun.push_back((wanted, self.begin(asked, get)));
                next += wanted;
            }
            let Some((wanted, answer)) = begun.pop_front() else {
                break;
            };
            let piece = self.finish(asked, async { answer?.await.ok().flatten() })?;
            if piece.data.len() as u64 != wanted {
                return Err(ClientError::Wrong { what: "a piece" });
            }
            bytes.extend_from_slice(&piece.data);
        }
        Ok(bytes)
    }

    /// Asks on a connection; what is returned waits for the answer.
    fn begin(
        &self,
        connection: &Arc<Connection>,
        message: Message,
    ) -> Option<JoinHandle<Option<Frame>>> {
        let connection = Arc::clone(connection);
        let ask = async move { connection.ask(message, Vec::new()).await };
        self.driver.spawn(ask)
    }

    /// Opens a source for what is asked on a connection.
    fn handle_of(&self, connection: &Arc<Connection>, name: &[u8]) -> Result<u32, ClientError> {
        let open = Message::Open {
            name: name.to_vec(),
        };
        let opened = self.ask(connection, open, Vec::new())?;
        match opened.message {
            Message::Opened { handle, .. } => Ok(handle),
            _ => Err(ClientError::Wrong { what: "no OPENED" }),
        }
    }

    /// Asks on a connection, and waits for the answer.
    fn ask(
        &self,
        connection: &Arc<Connection>,
        message: Message,
        data: Vec<u8>,
    ) -> Result<Frame, ClientError> {
        self.finish(connection, connection.ask(message, data))
    }

    /// Waits for an answer on a connection.
    fn finish(
        &self,
        connection: &Connection,
        answer: impl Future<Output = Option<Frame>>,
    ) -> Result<Frame, ClientError> {
        let patience = self.shared.config.patience.transfer;
        let address = || connection.address().to_string();
        let answer = match self.within(patience, answer) {
            None => return Err(ClientError::Late { address: address() }),
            Some(None) => return Err(ClientError::Away { address: address() }),
            Some(Some(answer)) => answer,
        };
        match answer.message {
            Message::Error { code, text } => Err(ClientError::Refused { code, text }),
            _ => Ok(answer),
        }
    }

    /// Waits for something, on the calling thread; `None` if it takes longer than `patience`.
    fn within<T>(&self, patience: Duration, what: impl Future<Output = T>) -> Option<T> {
        let wait = async { timeout(patience, what).await.ok() };
        self.driver.block_on(wait).flatten()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // What waits for a connection waits in vain.
        self.connections.iter().for_each(|c| c.close());
    }
}
