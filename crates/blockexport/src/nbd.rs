//! NBD, the network block device, over a unix socket.
//!
//! The server supports the fixed newstyle with structured replies, trim, write zeroes, forced unit access
//! and the metadata context `base:allocation`. It may be restarted: clients that reconnect (QEMU's
//! `reconnect-delay`) repeat requests without a response, and all requests can be repeated.
//!
//! No client can use more than its share: handshakes, requests that have begun and
//! replies have deadlines, and memory for requests in flight is bounded. Of as many clients as there may be, the one whose
//! handshake has taken longest makes room for another; one that is through with it stays.

mod handshake;
mod incoming;
mod outgoing;
mod seats;
mod transmission;
mod wire;

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::Duration;

use blocks::BlockDevice;

use self::incoming::Incoming;
use self::outgoing::Outgoing;
use self::seats::{Seat, Seats};
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
    let server = Server::new(device, config.clone(), Arc::default());
    let seat = server.seats.take(&stream)?;
    server.converse(stream, &seat)
}

struct Server {
    device: Arc<dyn BlockDevice>,
    config: NbdConfig,
    budget: Budget,
    meter: Arc<Meter>,
    seats: Seats,
}

impl Server {
    fn new(device: Arc<dyn BlockDevice>, config: NbdConfig, meter: Arc<Meter>) -> Self {
        Self {
            device,
            budget: Budget::new(config.memory_bytes.max(u64::from(REQUEST_MAX_BYTES))),
            seats: Seats::new(config.clients),
            config,
            meter,
        }
    }

    fn serve(&self, listener: &UnixListener, stopped: &Accepted) {
        thread::scope(|scope| {
            while let Some(stream) = stopped.accept(listener) {
                if let Err(error) = self.connect(scope, stream) {
                    log::warn!("cannot serve an NBD client: {error}");
                }
            }
            self.seats.end();
        });
    }

    fn connect<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        stream: UnixStream,
    ) -> io::Result<()> {
        let seat = self.seats.take(&stream)?;
        let builder = thread::Builder::new().name("nbd-client".to_owned());
        let spawned = builder.spawn_scoped(scope, move || {
            let _client = self.meter.client();
            match self.converse(stream, &seat) {
                Ok(()) => log::debug!("an NBD client left"),
                Err(error) => log::info!("an NBD client was dropped: {error}"),
            }
            // While it is counted: who sees that it has left finds its place free.
            drop(seat);
        });
        spawned.map(drop)
    }

    fn converse(&self, stream: UnixStream, seat: &Seat<'_>) -> io::Result<()> {
        let outgoing = Outgoing::new(stream.try_clone()?, self.config.io_deadline)?;
        let mut incoming = Incoming::new(stream)?;
        let device = &*self.device;
        let agreed = handshake::shake_hands(&mut incoming, &outgoing, device, &self.config)?;
        let Some(session) = agreed else {
            return Ok(());
        };
        seat.agree();
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
