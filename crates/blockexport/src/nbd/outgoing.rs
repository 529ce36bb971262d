//! Sending to a client, from any thread.

use std::io::{self, IoSlice, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Held while a reply is sent, since replies must not mix. It is a wait for the client of this
    /// connection alone, and has a deadline.
    stream: Mutex<UnixStream>,
    patience: Duration,
}

impl Outgoing {
    /// A client that receives nothing for `patience` is disconnected.
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
    let mut parts = [IoSlice::new(head), IoSlice::new(data)];
    let mut rest = parts.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut rest, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if !rest.is_empty() && Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}
