//! Faults of a line.

use parking_lot::{Condvar, Mutex};

/// A fault of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Nothing arrives, in either direction; data in transit arrives later.
    Stalled,
    /// Connections are lost, and new ones end at once.
    Dead,
    /// One byte of each larger piece towards the client is another one.
    Lying,
}

/// The fault that a line has now.
#[derive(Debug, Default)]
pub(crate) struct CurrentFault {
    now: Mutex<FaultState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FaultState {
    fault: Fault,
    closed: bool,
}

impl CurrentFault {
    pub(crate) fn set(&self, fault: Fault) {
        self.now.lock().fault = fault;
        self.changed.notify_all();
    }

    /// Notes that the link is dropped: threads that wait for the end of a stall return.
    pub(crate) fn close(&self) {
        self.now.lock().closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.now.lock().closed
    }

    pub(crate) fn get(&self) -> Fault {
        self.now.lock().fault
    }

    /// Waits while the line is stalled, and returns whether bytes get through then.
    pub(crate) fn passes(&self) -> bool {
        let mut now = self.now.lock();
        while now.fault == Fault::Stalled && !now.closed {
            self.changed.wait(&mut now);
        }
        now.fault != Fault::Dead && !now.closed
    }
}
