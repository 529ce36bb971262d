//! The disk of a virtual machine: vhost-user-blk over a unix socket.
//!
//! Requests are in the guest's memory, which the front end (QEMU, libblkio) shares; the server reads
//! them from there without a copy through a socket. The requests in flight are recorded in a region that
//! the front end keeps, so that the next server repeats those that this one did not finish when it was
//! killed: the guest notices a delay.
//!
//! A front end is trusted as far as its own guest: it can crash this server by truncating the file
//! of its memory. So one process serves the disk of one machine.

mod backend;
mod inflight;
mod request;
mod ring;
#[cfg(feature = "testing")]
pub mod testing;

use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blocks::{BlockDevice, DeviceInfo};
use vhost::vhost_user::{BackendReqHandler, Error};

use self::backend::Backend;
use self::request::Served;
use crate::accept::Accepted;
use crate::budget::Budget;
use crate::error::ExportError;
use crate::export::{Export, Exporter, Meter, Running, check_shape};
use crate::place::Place;

/// The largest queue that is offered; QEMU uses 128 by default.
const QUEUE_MAX_SIZE: u16 = 1024;

/// The largest read or write: guests send at most some hundred pages.
const REQUEST_MAX_BYTES: usize = 32 << 20;

/// Segments of a request: as many as fit into the smallest common queue.
const SEGMENTS_MAX: u32 = 126;

/// How a device is served to a virtual machine.
#[derive(Clone, Debug)]
pub struct VhostUserConfig {
    /// Queues that are offered; a guest takes one for each of its processors.
    pub queues: u16,
    /// Threads for each queue: requests that are in flight to the device.
    pub threads: usize,
    /// Memory for requests in flight, of all queues together; at least 32 MiB.
    pub memory_bytes: u64,
    /// For the first message of the front end, which makes room for another one before; and for the rest of a message
    /// once it has begun.
    pub message_deadline: Duration,
    /// The disk's serial number, of which the guest sees 20 bytes.
    pub serial: String,
}

impl Default for VhostUserConfig {
    fn default() -> Self {
        Self {
            queues: 4,
            threads: 32,
            memory_bytes: 128 << 20,
            message_deadline: Duration::from_secs(10),
            serial: "yolofs".to_owned(),
        }
    }
}

/// Exports devices as disks of virtual machines.
#[derive(Clone, Debug)]
pub struct VhostUserExporter {
    /// Where the socket is made.
    pub socket: PathBuf,
    /// How the device is served.
    pub config: VhostUserConfig,
}

impl Exporter for VhostUserExporter {
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
        let memory_bytes = self.config.memory_bytes.max(REQUEST_MAX_BYTES as u64);
        let served = Arc::new(Served {
            device,
            meter: Arc::clone(&meter),
            budget: Budget::new(memory_bytes),
            serial: self.config.serial.clone(),
        });
        let address = place.path().display().to_string();
        let config = self.config.clone();
        Running::start(
            place,
            address,
            "vhost-accept",
            meter,
            move |listener, stopped| {
                // One after the other: a disk belongs to one machine.
                while let Some(stream) = stopped.accept(listener) {
                    let _client = served.meter.client();
                    match converse(stream, (stopped, listener), &served, &config) {
                        Ok(()) | Err(Error::Disconnected) => log::info!("a virtual machine left"),
                        Err(error) => {
                            log::warn!("the connection to a virtual machine failed: {error}");
                        }
                    }
                }
            },
        )
    }
}

/// Serves one front end until it leaves or the server is stopped. Queues end with what they have in flight.
fn converse(
    stream: UnixStream,
    (stopped, listener): (&Accepted, &UnixListener),
    served: &Arc<Served>,
    config: &VhostUserConfig,
) -> Result<(), Error> {
    let socket = |error| Error::SocketError(error);
    stream
        .set_read_timeout(Some(config.message_deadline))
        .map_err(socket)?;
    stream
        .set_write_timeout(Some(config.message_deadline))
        .map_err(socket)?;
    let events = stream.try_clone().map_err(socket)?;
    if !stopped.wait_for_first(&events, listener, config.message_deadline) {
        return Err(Error::Disconnected);
    }
    let backend = Backend::new(Arc::clone(served), config.queues, config.threads);
    let mut handler = BackendReqHandler::from_stream(stream, Arc::new(Mutex::new(backend)));
    while stopped.wait(&events) {
        match handler.handle_request() {
            Ok(()) => {}
            // What was refused was answered so, if the front end wants answers.
            Err(
                error @ (Error::InvalidParam
                | Error::InvalidOperation(_)
                | Error::ReqHandlerError(_)),
            ) => log::warn!("a request of a virtual machine was refused: {error}"),
            Err(error) => return Err(error),
        }
    }
    // It fails if the front end left.
    drop(events.shutdown(Shutdown::Both));
    Ok(())
}

/// Encodes what a driver reads of the device (`struct virtio_blk_config`).
fn config_space(info: &DeviceInfo, queues: usize) -> Vec<u8> {
    // 2 GiB less a block at a time: all that a count of sectors in 32 bits allows for any block size.
    let clear_max = (1_u32 << 22) - info.block_size / 512;
    let alignment = info.block_size / 512;
    let mut space = Vec::with_capacity(60);
    space.extend((info.size / 512).to_le_bytes());
    space.extend(0_u32.to_le_bytes()); // largest segment: any
    space.extend(SEGMENTS_MAX.to_le_bytes());
    space.extend([0; 4]); // geometry
    space.extend(info.block_size.to_le_bytes());
    space.extend([0; 8]); // topology
    space.extend([0; 2]); // cache mode, unused
    space.extend(u16::try_from(queues).unwrap_or(1).to_le_bytes());
    for number in [clear_max, SEGMENTS_MAX, alignment, clear_max, SEGMENTS_MAX] {
        space.extend(number.to_le_bytes());
    }
    space.extend([1, 0, 0, 0]); // zeroed ranges may be given back
    space
}
