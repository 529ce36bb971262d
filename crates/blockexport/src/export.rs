//! What all ways of exporting a device have in common.

use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use blocks::{BlockDevice, DeviceError, DeviceErrorKind, DeviceInfo};

use crate::accept::{Accepted, Stop};
use crate::error::ExportError;
use crate::place::Place;

/// A way to export devices to clients.
///
/// The guarantees for clients of all exporters are tested in `tests/conformance`, which runs on each: reads
/// return what was written, errors are reported and end nothing else, flushed data survives a crash, and
/// requests in flight when the server dies are done by the next one.
pub trait Exporter {
    /// Claims the place where clients find the device.
    ///
    /// # Errors
    /// If another process has it, or it cannot be made.
    fn claim(&self) -> Result<Place, ExportError>;

    /// Makes `device` reachable at a place; at once, and until the export is stopped or dropped.
    ///
    /// The place may be [that of another process](Place::handed), which gives it to the next server when this one
    /// dies: clients that reconnect meanwhile wait.
    ///
    /// # Errors
    /// If the device cannot be exported in this way, or a system call fails.
    fn serve(
        &self,
        place: Place,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Box<dyn Export>, ExportError>;

    /// Makes `device` reachable at a place of its own.
    ///
    /// # Errors
    /// As [`Self::claim`] and [`Self::serve`].
    fn export(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Export>, ExportError> {
        self.serve(self.claim()?, device)
    }
}

/// An exported device.
pub trait Export: Send {
    /// Returns how clients name it.
    fn address(&self) -> String;

    /// Returns the counters.
    fn counts(&self) -> Counts;

    /// Ends it: no new clients are accepted, and requests in flight are completed. Dropping does the same.
    fn stop(self: Box<Self>);
}

/// What an export has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients that are connected.
    pub clients: u64,
    /// Requests that were answered, the failed ones included.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written, zeroed or trimmed.
    pub bytes_written: u64,
}

/// The counters behind [`Counts`].
#[derive(Debug, Default)]
pub(crate) struct Meter {
    clients: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// The data that a request transferred.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moved {
    /// Nothing.
    None,
    /// So many bytes to the client.
    Read(u64),
    /// So many bytes to the device.
    Written(u64),
}

impl Meter {
    pub(crate) fn client(self: &Arc<Self>) -> ClientGuard {
        self.clients.fetch_add(1, Relaxed);
        ClientGuard(Arc::clone(self))
    }

    pub(crate) fn note(&self, result: Result<Moved, DeviceErrorKind>) {
        self.requests.fetch_add(1, Relaxed);
        match result {
            Ok(Moved::None) => {}
            Ok(Moved::Read(bytes)) => _ = self.bytes_read.fetch_add(bytes, Relaxed),
            Ok(Moved::Written(bytes)) => _ = self.bytes_written.fetch_add(bytes, Relaxed),
            Err(_) => _ = self.errors.fetch_add(1, Relaxed),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            clients: self.clients.load(Relaxed),
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
        }
    }
}

/// A connected client, counted as long as this lives.
#[derive(Debug)]
pub(crate) struct ClientGuard(Arc<Meter>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Relaxed);
    }
}

/// A device that a thread serves, which ends when `stop` is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    address: String,
    meter: Arc<Meter>,
    stop: Option<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts the thread, which accepts clients at the place until the export is stopped.
    pub(crate) fn start(
        place: Place,
        address: String,
        name: &str,
        meter: Arc<Meter>,
        serve: impl FnOnce(&UnixListener, &Accepted) + Send + 'static,
    ) -> Result<Box<dyn Export>, ExportError> {
        let path = place.path().to_owned();
        if place.listener().is_none() {
            return Err(ExportError::NoSocket(path));
        }
        let system = |source| ExportError::System {
            doing: "serving",
            path,
            source,
        };
        let started = Stop::new().and_then(|(stop, stopped)| {
            let builder = thread::Builder::new().name(name.to_owned());
            let thread = builder.spawn(move || {
                if let Some(listener) = place.listener() {
                    serve(listener, &stopped);
                }
            })?;
            Ok((stop, thread))
        });
        let (stop, thread) = started.map_err(system)?;
        Ok(Box::new(Self {
            address,
            meter,
            stop: Some(stop),
            thread: Some(thread),
        }))
    }
}

impl Export for Running {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn counts(&self) -> Counts {
        self.meter.counts()
    }

    fn stop(self: Box<Self>) {}
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if ended.is_some_and(|ended| ended.is_err()) {
            log::error!("the server of {} panicked", self.address);
        }
    }
}

/// Calls a device such that a panic in it fails one request, and not all that are in flight.
pub(crate) fn guarded<T>(
    call: impl FnOnce() -> Result<T, DeviceError>,
) -> Result<T, DeviceErrorKind> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            log::warn!("a request failed: {error}{}", causes(&error));
            Err(error.kind())
        }
        Err(_) => {
            log::error!("a request failed: the device panicked");
            Err(DeviceErrorKind::Io)
        }
    }
}

fn causes(error: &DeviceError) -> String {
    let first = std::error::Error::source(error);
    let chain = std::iter::successors(first, |error| error.source());
    chain.map(|error| format!(": {error}")).collect()
}

/// Checks that the protocol supports the shape of a device.
pub(crate) fn check_shape(info: &DeviceInfo) -> Result<(), ExportError> {
    let sizes = 512..=65_536;
    let valid = sizes.contains(&info.block_size)
        && info.block_size.is_power_of_two()
        && info.size.is_multiple_of(u64::from(info.block_size))
        && i64::try_from(info.size).is_ok();
    if valid {
        return Ok(());
    }
    Err(ExportError::Shape {
        size: info.size,
        block_size: info.block_size,
    })
}
