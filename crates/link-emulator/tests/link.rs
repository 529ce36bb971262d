//! Connections over a link: bytes, delay, rate and faults.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use link_emulator::{Address, Fault, Link, Shape, Tap};

/// No test waits for longer.
const DEADLINE: Duration = Duration::from_secs(60);

fn anywhere() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Starts a server that sends back what it gets, for so many connections, and returns where.
fn echo(connections: usize) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let stream = stream.unwrap();
            thread::spawn(move || copy(&stream));
        }
    });
    address
}

/// Sends back what comes until it ends.
fn copy(mut stream: &TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
    // The client may be gone.
    let _over = stream.shutdown(std::net::Shutdown::Write);
}

fn connect(address: &Address) -> TcpStream {
    let Address::Tcp(address) = address else {
        panic!("not a TCP address")
    };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect()
}

/// Sends `bytes`, and returns what comes back of them.
fn round(stream: &TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut back = vec![0; bytes.len()];
    thread::scope(|scope| {
        let sent = scope.spawn(|| (&*stream).write_all(bytes));
        (&*stream).read_exact(&mut back)?;
        sent.join().unwrap()
    })?;
    Ok(back)
}

#[test]
fn bytes_arrive_as_they_were_sent_and_are_counted() {
    let mut link = Link::new(Shape::new(Duration::from_millis(2), 0));
    let address = link.carry(&anywhere(), echo(2)).unwrap();
    let (one, other) = (connect(&address), connect(&address));
    let bytes = pattern(3 << 20);
    assert!(round(&one, &bytes).unwrap() == bytes);
    assert!(round(&other, &bytes[..100]).unwrap() == bytes[..100]);
    let counts = link.counts();
    let expected = (3 << 20) + 100;
    assert_eq!((counts.to_server, counts.to_client), (expected, expected));
    assert_eq!((counts.connections, counts.refused), (2, 0));
}

#[test]
fn the_end_of_a_side_is_carried_behind_its_bytes() {
    let mut link = Link::new(Shape::default());
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    let mut stream = connect(&address);
    stream.write_all(b"last words").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "last words");
}

#[test]
fn each_way_takes_the_delay_and_a_connection_a_round_trip_more() {
    let delay = Duration::from_millis(15);
    let mut link = Link::new(Shape::new(2 * delay, 0));
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    let began = Instant::now();
    let stream = connect(&address);
    round(&stream, b"x").unwrap();
    assert!(began.elapsed() >= 4 * delay);
    let began = Instant::now();
    round(&stream, b"x").unwrap();
    assert!(began.elapsed() >= 2 * delay);
}

#[test]
fn all_connections_share_the_rate() {
    // 2 MB/s: two connections with 100 kB each take 100 ms in one direction, however they are mixed.
    let mut link = Link::new(Shape::new(Duration::ZERO, 16));
    let address = link.carry(&anywhere(), echo(2)).unwrap();
    let streams = [connect(&address), connect(&address)];
    let bytes = pattern(100_000);
    let began = Instant::now();
    thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| assert!(round(stream, &bytes).unwrap() == bytes));
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_sender_whom_nobody_reads_is_made_to_wait() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Address::Tcp(silent.local_addr().unwrap());
    let mut link = Link::new(Shape::new(Duration::ZERO, 1_000));
    let address = link.carry(&anywhere(), server).unwrap();
    let stream = connect(&address);
    let _never_read = silent.accept().unwrap();
    // The window, and what the kernel holds in sockets, are less than this by far.
    let bytes = vec![0; 256 << 20];
    stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    assert!((&stream).write_all(&bytes).is_err(), "it took everything");
    assert!(link.counts().to_server < 64 << 20);
}

#[test]
fn a_stall_ends_with_nothing_lost() {
    let mut link = Link::new(Shape::default());
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    let stream = connect(&address);
    round(&stream, b"before").unwrap();
    link.set_fault(Fault::Stalled);
    (&stream).write_all(b"during").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!((&stream).read(&mut [0; 16]).is_err(), "it is not stalled");
    link.set_fault(Fault::None);
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut back = [0; 6];
    (&stream).read_exact(&mut back).unwrap();
    assert_eq!(&back, b"during");
}

#[test]
fn a_dead_line_ends_connections_until_it_is_mended() {
    let mut link = Link::new(Shape::default());
    let address = link.carry(&anywhere(), echo(2)).unwrap();
    let stream = connect(&address);
    round(&stream, b"before").unwrap();
    link.set_fault(Fault::Dead);
    assert!(round(&stream, b"after").is_err());
    assert!(round(&connect(&address), b"after").is_err());
    link.set_fault(Fault::None);
    assert_eq!(round(&connect(&address), b"again").unwrap(), b"again");
    assert_eq!(link.counts().refused, 1);
}

#[test]
fn a_lying_line_changes_what_clients_get() {
    let mut link = Link::new(Shape::default());
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    link.set_fault(Fault::Lying);
    let bytes = pattern(100_000);
    assert!(round(&connect(&address), &bytes).unwrap() != bytes);
}

#[test]
fn a_tap_sees_everything() {
    let (there, back) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tap = {
        let (there, back) = (Arc::clone(&there), Arc::clone(&back));
        Tap::new(move |piece| {
            assert!(piece.arrives >= piece.sent);
            let count = if piece.to_server { &there } else { &back };
            count.fetch_add(piece.bytes.len() as u64, Relaxed);
        })
    };
    let mut link = Link::tapped(Shape::default(), tap);
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    round(&connect(&address), &pattern(70_000)).unwrap();
    assert_eq!((there.load(Relaxed), back.load(Relaxed)), (70_000, 70_000));
}

#[test]
fn unix_sockets_are_carried_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| Address::Unix(dir.path().join(name));
    let server = UnixListener::bind(dir.path().join("server")).unwrap();
    let mut link = Link::new(Shape::default());
    link.carry(&path("link"), path("server")).unwrap();
    let mut client = UnixStream::connect(dir.path().join("link")).unwrap();
    client.write_all(b"hello").unwrap();
    let mut got = [0; 5];
    server.accept().unwrap().0.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    drop(link);
    assert!(!dir.path().join("link").exists());
    assert_eq!(client.read(&mut got).unwrap(), 0);
}

#[test]
fn a_link_that_is_stalled_can_be_dropped() {
    let mut link = Link::new(Shape::default());
    let address = link.carry(&anywhere(), echo(1)).unwrap();
    let stream = connect(&address);
    round(&stream, b"before").unwrap();
    link.set_fault(Fault::Stalled);
    (&stream).write_all(b"during").unwrap();
    drop(link);
    assert!(matches!((&stream).read(&mut [0; 16]), Ok(0) | Err(_)));
}
