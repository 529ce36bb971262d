//! Sending to a client, from any thread.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How much is sent at a time: the system waits as long as it may for each part that a socket takes.
const PIECE: usize = 256 << 10;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Held while a reply is sent, since replies must not mix. It is a wait for the client of this
    /// connection alone, and has a deadline.
    stream: Mutex<UnixStream>,
    patience: Duration,
}

impl Outgoing {
    /// A client that has not received a reply within `patience` is disconnected.
    pub(super) fn new(stream: UnixStream, patience: Duration) -> io::Result<Self> {
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            stream: Mutex::new(stream),
            patience,
        })
    }

    /// Sends both parts, one after the other.
    ///
    /// When it fails, the connection is broken, and reading from it ends.
    pub(super) fn send(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
        let stream = self.stream.lock();
        let sent = send(&stream, head, data, Instant::now() + self.patience);
        if sent.is_err() {
            // It fails if it is shut down already.
            drop(stream.shutdown(Shutdown::Both));
        }
        sent
    }
}

fn send(mut stream: &UnixStream, head: &[u8], data: &[u8], deadline: Instant) -> io::Result<()> {
    let mut sent = 0;
    while sent < head.len() + data.len() {
        let of_head = head.get(sent..).unwrap_or_default();
        let of_data = &data[sent.saturating_sub(head.len())..];
        let piece = &of_data[..of_data.len().min(PIECE)];
        match stream.write_vectored(&[IoSlice::new(of_head), IoSlice::new(piece)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => sent += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if sent < head.len() + data.len() && Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}
