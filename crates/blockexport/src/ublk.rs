//! ublk: a block device of this machine, `/dev/ublkbN`, that this process serves.
//!
//! Its place is a symbolic link to the device. When the server dies, users of the device wait, and the next server
//! of the place goes on: what was in flight is requested again. A device is never reused for another image, whose
//! users would find what the page cache has of the one before: it is made for one image, and removed when its export
//! ends.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use blocks::testing::MemDevice;
//! use blockexport::Exporter as _;
//! use blockexport::ublk::{UblkConfig, UblkExporter};
//!
//! let config = UblkConfig { identity: "scratch".to_owned(), ..UblkConfig::default() };
//! let exporter = UblkExporter { link: "/run/scratch".into(), config };
//! let export = exporter.export(Arc::new(MemDevice::new(1 << 20, 512)))?;
//! println!("mkfs.ext4 {}", export.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod made;
mod queues;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use blocks::{BlockDevice, DeviceAccess, DeviceInfo};
use rawio::ublk::{Attributes, Shape};

pub use self::made::{Channel, KernelDevice};
use self::queues::Queues;
pub use self::queues::Rings;
use self::request::Served;
use crate::budget::Budget;
use crate::error::ExportError;
use crate::export::{ClientGuard, Counts, Export, Exporter, Meter, check_shape};
use crate::place::Place;

/// The largest read or write; the kernel divides larger ones.
const REQUEST_MAX_BYTES: u32 = 512 << 10;

/// What is discarded or zeroed at once: the kernel counts its sectors with 32 bits.
const CLEAR_MAX_BYTES: u64 = 1 << 40;

/// The largest block: the kernel takes none that is larger than a page.
const BLOCK_MAX_BYTES: u32 = 4096;

/// Queues are worth a thread each for processors that request at the same time.
const QUEUES_MAX: usize = 4;

/// How a device is served.
#[derive(Clone, Debug)]
pub struct UblkConfig {
    /// What is served, in words that no other image has. A device that a dead server left is only served on with the
    /// same words.
    pub identity: String,
    /// Queues, each with a thread; the kernel makes no more of them than there are processors.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
    /// Threads for each queue: requests that are in flight to the image.
    pub threads: usize,
    /// Memory for requests in flight, of all queues together; at least 512 KiB.
    pub memory_bytes: u64,
}

impl Default for UblkConfig {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self {
            identity: String::new(),
            queues: u16::try_from(processors.min(QUEUES_MAX)).unwrap_or(1),
            depth: 64,
            threads: 32,
            memory_bytes: 128 << 20,
        }
    }
}

/// Exports images as block devices of this machine.
#[derive(Clone, Debug)]
pub struct UblkExporter {
    /// Where the symbolic link to the device is made.
    pub link: PathBuf,
    /// How the device is served.
    pub config: UblkConfig,
}

impl Exporter for UblkExporter {
    fn claim(&self) -> Result<Place, ExportError> {
        Place::link(&self.link)
    }

    fn serve(
        &self,
        place: Place,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Box<dyn Export>, ExportError> {
        let kernel = KernelDevice::prepare(place.path(), &device.info(), &self.config)?;
        let served = kernel.channel();
        let served = served.and_then(|channel| {
            let rings = Rings::of(&channel).map_err(ExportError::Ublk)?;
            UblkExport::serve(channel, rings, device, &self.config)
        });
        let mut export = served.inspect_err(|_| kernel.give_up())?;
        if let Err(error) = kernel.start(place.path(), std::process::id()) {
            // Its threads end with the device, or with this process.
            export.queues = None;
            kernel.give_up();
            return Err(error);
        }
        export.address = place.path().display().to_string();
        export.owned = Some((kernel, place));
        Ok(Box::new(export))
    }
}

/// Answers the requests of a device that another process [owns](KernelDevice), and starts when this has returned. The
/// export ends when the owner has stopped the device.
///
/// # Errors
/// If its queues cannot be opened.
pub fn serve(
    channel: Channel,
    device: Arc<dyn BlockDevice>,
    config: &UblkConfig,
) -> Result<Box<dyn Export>, ExportError> {
    let rings = Rings::of(&channel).map_err(ExportError::Ublk)?;
    serve_on(channel, rings, device, config)
}

/// Answers requests as [`serve`] does, by rings that were made before this process was confined.
///
/// # Errors
/// As [`serve`], and if the device has more queues, or larger ones, than the rings are for.
pub fn serve_on(
    channel: Channel,
    rings: Rings,
    device: Arc<dyn BlockDevice>,
    config: &UblkConfig,
) -> Result<Box<dyn Export>, ExportError> {
    Ok(Box::new(UblkExport::serve(channel, rings, device, config)?))
}

/// Returns what users see of a device.
///
/// # Errors
/// If the kernel has no devices of this shape.
fn shape(info: &DeviceInfo) -> Result<Shape, ExportError> {
    check_shape(info)?;
    if info.block_size > BLOCK_MAX_BYTES {
        return Err(ExportError::Shape {
            size: info.size,
            block_size: info.block_size,
        });
    }
    let attributes = match (info.access, info.fua) {
        (DeviceAccess::ReadOnly, _) => Attributes::ReadOnly,
        (DeviceAccess::ReadWrite, true) => Attributes::WritableFua,
        (DeviceAccess::ReadWrite, false) => Attributes::Writable,
    };
    let clear_max = |supported| if supported { CLEAR_MAX_BYTES } else { 0 };
    Ok(Shape {
        size: info.size,
        block_size: info.block_size,
        request_max_bytes: REQUEST_MAX_BYTES,
        attributes,
        discard_max_bytes: clear_max(info.trim),
        zero_max_bytes: clear_max(info.write_zeroes),
    })
}

struct UblkExport {
    address: String,
    meter: Arc<Meter>,
    /// There is one client: how many have the device open is the kernel's.
    _kernel: ClientGuard,
    queues: Option<Queues>,
    /// The device, if it is this process's.
    owned: Option<(KernelDevice, Place)>,
}

impl UblkExport {
    fn serve(
        channel: Channel,
        rings: Rings,
        device: Arc<dyn BlockDevice>,
        config: &UblkConfig,
    ) -> Result<Self, ExportError> {
        let meter = Arc::new(Meter::default());
        let served = Served {
            device,
            meter: Arc::clone(&meter),
            budget: Budget::new(config.memory_bytes.max(REQUEST_MAX_BYTES.into())),
        };
        let address = format!("/dev/ublkb{}", channel.id);
        let queues = Queues::start(channel, rings, &Arc::new(served), config.threads);
        Ok(Self {
            address,
            _kernel: meter.client(),
            meter,
            queues: Some(queues.map_err(ExportError::Ublk)?),
            owned: None,
        })
    }
}

impl Export for UblkExport {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn counts(&self) -> Counts {
        self.meter.counts()
    }

    fn stop(self: Box<Self>) {}
}

impl Drop for UblkExport {
    fn drop(&mut self) {
        let owned = self.owned.take();
        if let Some((kernel, place)) = &owned
            && let Err(error) = kernel.stop(place.path())
        {
            // Its threads serve on until the process ends.
            log::error!("{} cannot be ended: {error}", place.path().display());
            return;
        }
        if let Some(queues) = self.queues.take() {
            queues.join();
        }
        if let Some((kernel, _)) = owned {
            kernel.delete();
        }
    }
}
