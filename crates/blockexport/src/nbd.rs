//! NBD, the network block device, over a unix socket.
//!
//! The server supports the fixed newstyle with structured replies, trim, write zeroes, forced unit access
//! and the metadata context `base:allocation`. It may be restarted: clients that reconnect (QEMU's
//! `reconnect-delay`) repeat requests without a response, and all requests can be repeated.
//!
//! No client can use more than its share: handshakes, requests that have begun and
//! replies have deadlines, and memory for requests in flight is bounded.

mod handshake;
mod incoming;
mod outgoing;
mod transmission;
mod wire;

use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::Duration;

use blocks::BlockDevice;
use parking_lot::Mutex;

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::transmission::Transmission;
use crate::accept::Accepted;
use crate::budget::Budget;
use crate::error::ExportError;
use crate::export::{Export, Exporter, Meter, Running, check_shape};
use crate::place::Place;

/// The largest read or write: what QEMU sends at most, and what the protocol recommends.
const REQUEST_MAX_BYTES: u32 = 32 << 20;

/// How a device is served over NBD.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The export's name; clients may also leave it out.
    pub name: String,
    /// Connections at a time.
    pub clients: usize,
    /// Threads for each connection: requests that are in flight to the device.
    pub threads: usize,
    /// Memory for requests in flight, of all connections together; at least 32 MiB.
    pub memory_bytes: u64,
    /// From the connection to the first request.
    pub handshake_deadline: Duration,
    /// From the first byte of a request to its last; and for a client to receive a reply.
    pub io_deadline: Duration,
}

impl Default for NbdConfig {
    fn default() -> Self {
        Self {
            name: "disk".to_owned(),
            clients: 16,
            threads: 32,
            memory_bytes: 128 << 20,
            handshake_deadline: Duration::from_secs(10),
            io_deadline: Duration::from_secs(30),
        }
    }
}

/// Exports devices over NBD on a socket.
#[derive(Clone, Debug)]
pub struct NbdExporter {
    /// Where the socket is made.
    pub socket: PathBuf,
    /// How the device is served.
    pub config: NbdConfig,
}

impl Exporter for NbdExporter {
    fn claim(&self) -> Result<Place, ExportError> {
        Place::bind(&self.socket)
    }

    fn serve(
        &self,
        place: Place,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Box<dyn Export>, ExportError> {
        check_shape(&device.info())?;
        let meter = Arc::new(Meter::default());
        let server = Server::new(device, self.config.clone(), Arc::clone(&meter));
        let address = format!(
            "nbd+unix:///{}?socket={}",
            self.config.name,
            place.path().display()
        );
        Running::start(
            place,
            address,
            "nbd-accept",
            meter,
            move |listener, stopped| {
                server.serve(listener, stopped);
            },
        )
    }
}

/// Serves one client that is connected already, until it leaves.
///
/// # Errors
/// If it breaks the rules of the protocol, or is late.
///
/// ```
/// use std::io::Write as _;
/// use std::os::unix::net::UnixStream;
/// use std::sync::Arc;
///
/// use blocks::testing::MemDevice;
/// use blockexport::nbd::{NbdConfig, serve_client};
///
/// let (mut client, server) = UnixStream::pair()?;
/// // The flags of a client, and an option that ends the connection in order.
/// client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0")?;
/// serve_client(server, Arc::new(MemDevice::new(1 << 20, 512)), &NbdConfig::default())?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn serve_client(
    stream: UnixStream,
    device: Arc<dyn BlockDevice>,
    config: &NbdConfig,
) -> io::Result<()> {
    Server::new(device, config.clone(), Arc::default()).converse(stream)
}

struct Server {
    device: Arc<dyn BlockDevice>,
    config: NbdConfig,
    budget: Budget,
    meter: Arc<Meter>,
    /// Handles of the connections, to end them; each connection removes its own.
    connections: Mutex<Vec<(u64, UnixStream)>>,
}

impl Server {
    fn new(device: Arc<dyn BlockDevice>, config: NbdConfig, meter: Arc<Meter>) -> Self {
        Self {
            device,
            budget: Budget::new(config.memory_bytes.max(u64::from(REQUEST_MAX_BYTES))),
            config,
            meter,
            connections: Mutex::default(),
        }
    }

    fn serve(&self, listener: &UnixListener, stopped: &Accepted) {
        thread::scope(|scope| {
            let mut number = 0;
            while let Some(stream) = stopped.accept(listener) {
                number += 1;
                if let Err(error) = self.connect(scope, number, stream) {
                    log::warn!("cannot serve an NBD client: {error}");
                }
            }
            for (_, stream) in self.connections.lock().iter() {
                // It fails if the client left.
                drop(stream.shutdown(Shutdown::Read));
            }
        });
    }

    fn connect<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        number: u64,
        stream: UnixStream,
    ) -> io::Result<()> {
        let handle = stream.try_clone()?;
        {
            let mut connections = self.connections.lock();
            if connections.len() >= self.config.clients {
                return Err(io::Error::other("there are too many already"));
            }
            connections.push((number, handle));
        }
        let builder = thread::Builder::new().name("nbd-client".to_owned());
        let spawned = builder.spawn_scoped(scope, move || {
            let _client = self.meter.client();
            match self.converse(stream) {
                Ok(()) => log::debug!("an NBD client left"),
                Err(error) => log::info!("an NBD client was dropped: {error}"),
            }
            self.forget(number);
        });
        if spawned.is_err() {
            self.forget(number);
        }
        spawned.map(drop)
    }

    fn forget(&self, number: u64) {
        let mut connections = self.connections.lock();
        connections.retain(|(other, _)| *other != number);
    }

    fn converse(&self, stream: UnixStream) -> io::Result<()> {
        let outgoing = Outgoing::new(stream.try_clone()?, self.config.io_deadline)?;
        let mut incoming = Incoming::new(stream)?;
        let device = &*self.device;
        let agreed = handshake::shake_hands(&mut incoming, &outgoing, device, &self.config)?;
        let Some(session) = agreed else {
            return Ok(());
        };
        let transmission = Transmission {
            device,
            session,
            budget: &self.budget,
            meter: &self.meter,
            config: &self.config,
        };
        transmission.serve(incoming, &outgoing)
    }
}
