//! What a broken node or worker may send, for the fuzz target of this crate.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use host::framed::{receive, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::{WorkerRequest, WorkerResponse};

/// For a fuzzer that runs beside other work: nothing in it waits for long.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Reads `bytes`, at most as many as a socket takes at once, as a worker reads a request and as a node reads a
/// response. Returns how many of the two they are.
///
/// # Panics
/// If a message that was read differs after it was encoded again.
#[must_use]
pub fn read_messages(bytes: &[u8]) -> usize {
    usize::from(read_one::<WorkerRequest>(bytes)) + usize::from(read_one::<WorkerResponse>(bytes))
}

fn read_one<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let (mut sender, receiver) = UnixStream::pair().expect("a pair of sockets");
    sender.write_all(bytes).expect("the socket takes the bytes");
    sender
        .shutdown(Shutdown::Write)
        .expect("the socket is connected");
    let deadline = Instant::now() + PATIENCE;
    let Ok((message, _)) = receive::<T>(&receiver, deadline) else {
        return false;
    };
    let (sender, receiver) = UnixStream::pair().expect("a pair of sockets");
    send(&sender, &message, &[], deadline).expect("a message that was received can be sent");
    let (again, _) = receive::<T>(&receiver, deadline).expect("a message that was sent is read");
    let json = |message: &T| serde_json::to_value(message).expect("messages are JSON");
    assert_eq!(json(&again), json(&message));
    true
}
