//! Chunks that are being fetched: all other readers wait for them (singleflight).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The result of a flight.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    /// With the chunk's content, as it came.
    Here(Arc<[u8]>),
    /// A failure, which all waiting readers get.
    Failed(io::ErrorKind, Arc<str>),
    /// It was no fetch: look again.
    Again,
}

/// One chunk on its way.
#[derive(Debug, Default)]
pub(super) struct Flight {
    landed: Mutex<Option<Landed>>,
    changed: Condvar,
}

impl Flight {
    /// Waits for the end; `None` if the deadline comes first.
    pub(super) fn wait(&self, deadline: Instant) -> Option<Landed> {
        let mut landed = self.landed.lock();
        while landed.is_none() {
            if self.changed.wait_until(&mut landed, deadline).timed_out() {
                break;
            }
        }
        landed.clone()
    }
}

/// The flights of one blob.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<u32, Arc<Flight>>>);

/// The next step for a chunk.
pub(super) enum Boarding<'a> {
    /// It is being fetched: wait.
    Wait(Arc<Flight>),
    /// The caller must fetch it, up to `landing` it; it is locked meanwhile.
    Fly(Seat<'a>),
}

impl Flights {
    /// Takes a chunk, or joins its flight.
    pub(super) fn board(&self, chunk: u32) -> Boarding<'_> {
        let mut flights = self.0.lock();
        if let Some(flight) = flights.get(&chunk) {
            return Boarding::Wait(Arc::clone(flight));
        }
        let flight = Arc::new(Flight::default());
        flights.insert(chunk, Arc::clone(&flight));
        Boarding::Fly(Seat {
            flights: self,
            chunk,
            flight,
            landed: Landed::Again,
        })
    }
}

/// The right to change a chunk. When it is dropped, all waiting readers are notified.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    flights: &'a Flights,
    pub(super) chunk: u32,
    flight: Arc<Flight>,
    landed: Landed,
}

impl Seat<'_> {
    /// Sets the result for waiting readers.
    pub(super) fn landing(&mut self, landed: Landed) {
        self.landed = landed;
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.chunk);
        let landed = std::mem::replace(&mut self.landed, Landed::Again);
        *self.flight.landed.lock() = Some(landed);
        self.flight.changed.notify_all();
    }
}
