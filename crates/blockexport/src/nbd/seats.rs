//! The clients that are connected: a bounded number, of which those in their handshake make room for others.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long each has for its handshake, however many others come. Clients have theirs in a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(100);

/// The clients that are connected.
#[derive(Debug)]
pub(super) struct Seats {
    most: usize,
    taken: Mutex<Taken>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    number: u64,
    /// Ends the connection.
    stream: UnixStream,
    /// Since when it is in its handshake, if it is.
    greeted: Option<Instant>,
}

/// A client that is connected, until this is dropped.
#[derive(Debug)]
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    number: u64,
}

impl Seats {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
            left: Condvar::new(),
        }
    }

    /// Takes one more in. Where there is no room, the one that has been longest in its handshake is ended, and its end
    /// waited for.
    ///
    /// # Errors
    /// If there is no room, and all others are through with their handshakes.
    pub(super) fn take(&self, stream: &UnixStream) -> io::Result<Seat<'_>> {
        let stream = stream.try_clone()?;
        let mut taken = self.taken.lock();
        while taken.clients.len() >= self.most {
            let in_handshake = taken.clients.iter().filter_map(|client| client.greeted);
            let Some(since) = in_handshake.min() else {
                return Err(io::Error::other("there are too many already"));
            };
            if since.elapsed() >= PATIENCE {
                let meant = |client: &&Client| client.greeted == Some(since);
                if let Some(longest) = taken.clients.iter().find(meant) {
                    // It fails if the client left.
                    drop(longest.stream.shutdown(Shutdown::Both));
                }
            }
            let look = (since + PATIENCE).max(Instant::now() + PATIENCE / 10);
            let _timed_out = self.left.wait_until(&mut taken, look);
        }
        let number = taken.next;
        taken.next += 1;
        taken.clients.push(Client {
            number,
            stream,
            greeted: Some(Instant::now()),
        });
        Ok(Seat {
            seats: self,
            number,
        })
    }

    /// Ends all, after what they have sent.
    pub(super) fn end(&self) {
        for client in &self.taken.lock().clients {
            // It fails if the client left.
            drop(client.stream.shutdown(Shutdown::Read));
        }
    }
}

impl Seat<'_> {
    /// Notes that its handshake is over.
    pub(super) fn agree(&self) {
        let mut taken = self.seats.taken.lock();
        let own = |client: &&mut Client| client.number == self.number;
        if let Some(client) = taken.clients.iter_mut().find(own) {
            client.greeted = None;
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        taken.clients.retain(|client| client.number != self.number);
        drop(taken);
        self.seats.left.notify_all();
    }
}
