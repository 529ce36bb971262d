//! Both sides of the pair, and a worker that was broken into on one of them.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use mounting::nic::{ConnectionRequest, Connector as _};

use super::*;

/// Asks for a connection, and waits for it.
fn wait_for(connector: &NodeConnector) -> io::Result<UnixStream> {
    wait_for_service(connector, 0)
}

fn wait_for_service(connector: &NodeConnector, service: usize) -> io::Result<UnixStream> {
    let (request, pending) = ConnectionRequest::new(service);
    connector.connect(request);
    pending.wait()
}

/// A service that listens, and a connector with a link to it.
struct Bed {
    dir: tempfile::TempDir,
    connector: NodeConnector,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let connector = NodeConnector::start().unwrap();
        Self { dir, connector }
    }

    fn service(&self) -> PathBuf {
        self.dir.path().join("nic.sock")
    }

    fn second(&self) -> PathBuf {
        self.dir.path().join("second.sock")
    }

    fn link(&self) -> OwnedFd {
        serve(&[&self.service(), &self.second()]).unwrap()
    }
}

/// Sends a record to the node, and returns the response, if there is one.
fn says(link: &OwnedFd, record: &[u8], beside: &[std::os::fd::BorrowedFd<'_>]) -> Option<Vec<u8>> {
    rawio::passing::send(link.as_fd(), record, beside).ok()?;
    let mut response = [0; RESPONSE];
    let (len, _) = rawio::passing::receive(link.as_fd(), &mut response).unwrap();
    (len > 0).then(|| response[..len].to_vec())
}

#[test]
fn a_worker_is_connected_again_whenever_the_service_is_back() {
    let bed = Bed::new();
    let error = wait_for(&bed.connector).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotConnected, "no node so far");
    bed.connector.set_link(bed.link());
    for _ in 0..2 {
        let error = wait_for(&bed.connector).unwrap_err();
        let kind = error.kind();
        assert!(
            matches!(
                kind,
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ),
            "{error}"
        );
        let _old = std::fs::remove_file(bed.service());
        let service = UnixListener::bind(bed.service()).unwrap();
        let mut worker = wait_for(&bed.connector).unwrap();
        let (mut accepted, _) = service.accept().unwrap();
        accepted.write_all(b"chunk").unwrap();
        let mut read = [0; 5];
        worker.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"chunk");
    }
}

#[test]
fn the_link_of_the_next_node_takes_the_place_of_the_one_before() {
    let bed = Bed::new();
    let _service = UnixListener::bind(bed.service()).unwrap();
    let (gone, ended) = nix::sys::socket::socketpair(
        nix::sys::socket::AddressFamily::Unix,
        nix::sys::socket::SockType::SeqPacket,
        None,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
    )
    .unwrap();
    drop(gone);
    bed.connector.set_link(ended);
    let error = wait_for(&bed.connector).unwrap_err();
    assert!(error.to_string().contains("the node has ended"), "{error}");
    bed.connector.set_link(bed.link());
    wait_for(&bed.connector).unwrap();
}

#[test]
fn each_service_of_the_mount_is_connected_to_and_no_other() {
    let bed = Bed::new();
    bed.connector.set_link(bed.link());
    let [first, second] = [bed.service(), bed.second()].map(|at| UnixListener::bind(at).unwrap());
    for (number, listener) in [(1, &second), (0, &first)] {
        let mut worker = wait_for_service(&bed.connector, number).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.write_all(&[7]).unwrap();
        worker.read_exact(&mut [0]).unwrap();
    }
    // Who asks for another one is broken.
    wait_for_service(&bed.connector, 2).unwrap_err();
    wait_for(&bed.connector).unwrap_err();
}

#[test]
fn what_is_no_request_ends_the_link_and_opens_nothing() {
    for record in [&b"/run/docker.sock"[..], b"abc"] {
        let bed = Bed::new();
        let service = UnixListener::bind(bed.service()).unwrap();
        service.set_nonblocking(true).unwrap();
        assert_eq!(says(&bed.link(), record, &[]), None);
        assert_eq!(
            service.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
    }
}

/// Were they received, a descriptor of the worker's own mount could hang the node when it is closed.
#[test]
fn descriptors_that_a_worker_sends_are_dropped() {
    let bed = Bed::new();
    let _service = UnixListener::bind(bed.service()).unwrap();
    let link = bed.link();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let response = says(&link, &7_u32.to_le_bytes(), &[theirs.as_fd()]).unwrap();
    assert_eq!(response, [7, 0, 0, 0, 0, 0, 0, 0]);
    drop(theirs);
    // Nobody has the other end any more.
    assert_eq!(ours.read(&mut [0; 1]).unwrap(), 0);
}
