//! Data in transit in one direction of one connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A piece of a connection's bytes, as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Number of the connection, from 0.
    pub connection: u64,
    /// Whether it goes to the server.
    pub to_server: bool,
    /// When it was sent.
    pub sent: Instant,
    /// When it arrives.
    pub arrives: Instant,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Is shown all that is sent over a link, in each direction of each connection in order.
#[derive(Clone)]
pub struct Tap(Arc<dyn Fn(Piece<'_>) + Send + Sync>);

impl Tap {
    /// Returns a tap that calls `see`, on the threads of the link: it should be quick.
    pub fn new(see: impl Fn(Piece<'_>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(see))
    }

    pub(crate) fn show(&self, piece: Piece<'_>) {
        (self.0)(piece);
    }
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tap")
    }
}

/// Bytes that are on their way, with the moment at which they arrive.
#[derive(Debug)]
pub(crate) struct Queue {
    window: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes that were sent and have not been taken by the receiver.
    held: u64,
    /// No more will be sent.
    ended: bool,
    /// The receiver accepts no more.
    closed: bool,
}

impl Queue {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until there is space, and returns whether the receiver still accepts data.
    pub(crate) fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        while state.held >= self.window && !state.closed {
            self.changed.wait(&mut state);
        }
        !state.closed
    }

    pub(crate) fn push(&self, due: Instant, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.held += bytes.len() as u64;
        state.pieces.push_back((due, bytes));
        self.changed.notify_all();
    }

    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.pieces.clear();
        self.changed.notify_all();
    }

    /// Waits for the next piece; `None` at the end.
    pub(crate) fn pop(&self) -> Option<(Instant, Vec<u8>)> {
        let mut state = self.state.lock();
        loop {
            if let Some(piece) = state.pieces.pop_front() {
                return Some(piece);
            }
            if state.ended || state.closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Records that the receiver has read so many bytes.
    pub(crate) fn taken(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.held = state.held.saturating_sub(bytes);
        self.changed.notify_all();
    }
}
