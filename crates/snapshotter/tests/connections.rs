//! Clients that hold connections and request nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use node::{Node, PATIENCE};

/// The preface of HTTP/2, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// As many as may be connected.
const CONNECTIONS: usize = 256;

fn idle(node: &Node, sends: &[u8]) -> UnixStream {
    let mut stream = UnixStream::connect(node.socket()).unwrap();
    stream.write_all(sends).unwrap();
    stream
}

/// Whether the server has closed it.
fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn idle_connections_keep_nobody_waiting_and_are_bounded() {
    let node = Node::start();
    node.prepare("before", "", &[]).unwrap();
    for sends in [&b""[..], PREFACE] {
        let idle: Vec<_> = (0..2 * CONNECTIONS).map(|_| idle(&node, sends)).collect();
        // One that comes after all of them is answered.
        let mut last = self::idle(&node, PREFACE);
        last.set_read_timeout(Some(PATIENCE)).unwrap();
        last.read_exact(&mut [0; 9]).unwrap();
        let open = idle.iter().filter(|stream| !is_closed(stream)).count();
        assert!(open <= CONNECTIONS, "{open} are open");
        // The client has to connect again: it was the one that was waited for longest.
        node.stat("before").unwrap();
    }
}

#[test]
fn a_client_that_takes_no_part_does_not_hold_up_the_end() {
    let mut node = Node::start();
    let mut idle = idle(&node, PREFACE);
    idle.read_exact(&mut [0; 9]).unwrap(); // the head of the server's settings
    node.stop();
}
