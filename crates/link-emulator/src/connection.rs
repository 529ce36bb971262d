//! One connection over a link: two directions, with a thread that reads and one that writes in each.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::address::Stream;
use crate::fault::{CurrentFault, Fault};
use crate::line::{Line, sleep_until};
use crate::queue::{Piece, Queue, Tap};

/// Bytes that take their turn on the line together: what shares it waits for no more than these.
const PIECE: usize = 16 << 10;

/// A piece that is no shorter than this is not only the head of a message.
const WORTH_A_LIE: usize = 1 << 10;

/// What the connections of a link have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) to_server: Line,
    pub(crate) to_client: Line,
    pub(crate) window: u64,
    pub(crate) delay: std::time::Duration,
    pub(crate) state: CurrentFault,
    pub(crate) tap: Option<Tap>,
}

/// A connection that is being carried.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Arc<Stream>,
    server: Arc<Stream>,
    queues: [Arc<Queue>; 2],
    threads: Vec<JoinHandle<()>>,
}

/// Which direction of which connection.
struct Direction {
    number: u64,
    to_server: bool,
    /// When the first bytes arrive at the earliest: after the handshake.
    open: Instant,
}

impl Connection {
    pub(crate) fn carry(
        shared: &Arc<Shared>,
        number: u64,
        client: Stream,
        server: Stream,
    ) -> io::Result<Self> {
        let (client, server) = (Arc::new(client), Arc::new(server));
        let now = Instant::now();
        let mut connection = Self {
            client: Arc::clone(&client),
            server: Arc::clone(&server),
            queues: [(); 2].map(|()| Arc::new(Queue::new(shared.window))),
            threads: Vec::new(),
        };
        for (to_server, trips) in [(true, 3), (false, 4)] {
            // The kernel has accepted already. On the line, an offer and its acceptance go first.
            let open = now + shared.delay * trips;
            let way = Direction {
                number,
                to_server,
                open,
            };
            let (from, to) = match to_server {
                true => (Arc::clone(&client), Arc::clone(&server)),
                false => (Arc::clone(&server), Arc::clone(&client)),
            };
            let queue = Arc::clone(&connection.queues[usize::from(to_server)]);
            connection.spawn("link-writer", {
                let (shared, queue) = (Arc::clone(shared), Arc::clone(&queue));
                move || write(&shared, &queue, &to)
            })?;
            let shared = Arc::clone(shared);
            connection.spawn("link-reader", move || read(&shared, &way, &queue, &from))?;
        }
        Ok(connection)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(work)?);
        Ok(())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Ends it as if the other side had crashed.
    pub(crate) fn cut(&self) {
        self.queues.iter().for_each(|queue| queue.close());
        self.client.end(Shutdown::Both);
        self.server.end(Shutdown::Both);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.cut();
        for thread in self.threads.drain(..) {
            // One that panicked has carried nothing since.
            let _panicked = thread.join();
        }
    }
}

/// Sends what one side writes.
fn read(shared: &Shared, way: &Direction, queue: &Queue, mut from: &Stream) {
    let line = match way.to_server {
        true => &shared.to_server,
        false => &shared.to_client,
    };
    let mut buffer = vec![0; PIECE];
    while queue.wait_for_room() {
        let len = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(len) => len,
        };
        let mut bytes = buffer[..len].to_vec();
        if shared.state.get() == Fault::Lying && !way.to_server && len >= WORTH_A_LIE {
            bytes[len / 2] ^= 1;
        }
        let sent = Instant::now();
        let arrives = line.send(len as u64).max(way.open);
        if let Some(tap) = &shared.tap {
            tap.show(Piece {
                connection: way.number,
                to_server: way.to_server,
                sent,
                arrives,
                bytes: &bytes,
            });
        }
        queue.push(arrives, bytes);
    }
    queue.end();
}

/// Has the other side read it when it arrives.
fn write(shared: &Shared, queue: &Queue, mut to: &Stream) {
    while let Some((due, bytes)) = queue.pop() {
        sleep_until(due);
        if !shared.state.passes() || to.write_all(&bytes).is_err() {
            break;
        }
        queue.taken(bytes.len() as u64);
    }
    queue.close();
    to.end(Shutdown::Write);
}
