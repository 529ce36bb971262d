//! Who is refused hears why, however much it has sent by then: the service reads, within bounds,
//! what it throws away. A socket that is closed over unread bytes takes the answer with it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{Direction, ErrorCode, Frame, HEAD_BYTES, Head, Message, Seal};
use rig::raw::{PIECE, Raw};
use rig::{Rig, sample, until};
use serving::transport::{TlsFiles, TlsServer};

const MIB: usize = 1 << 20;

fn serving(limits: Limits) -> (Rig, SocketAddr) {
    let mut rig = Rig::new();
    let sample = sample("one", 1, &*rig.store);
    rig.catalog.add(b"one", &sample.index).unwrap();
    let service = rig.start_at_port(Access::open(), limits);
    (rig, service)
}

/// Sends all of it, and only then reads: what was answered must be there still, and then the end.
fn refusal(mut stream: &TcpStream, bytes: &[u8], mut seal: Seal) -> Message {
    let deadline = Some(Duration::from_secs(60));
    stream.set_read_timeout(deadline).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = Head::parse(answer.first_chunk().expect("it says why")).unwrap();
    let body = &answer[HEAD_BYTES..];
    Frame::parse(&head, body, Vec::new(), &mut seal)
        .unwrap()
        .message
}

fn is(message: &Message, wanted: ErrorCode) -> bool {
    matches!(message, Message::Error { code, .. } if *code == wanted)
}

#[test]
fn who_speaks_another_protocol_at_length_hears_so() {
    let (rig, service) = serving(Limits::default());
    for round in 0..20 {
        let stream = TcpStream::connect(service).unwrap();
        let bytes = vec![b'x'; 2 * MIB];
        let said = refusal(&stream, &bytes, Seal::open(Direction::ToClient));
        assert!(is(&said, ErrorCode::Rule), "round {round}: {said:?}");
    }
    until("they have left", || rig.stats().connections == 0);
}

#[test]
fn who_breaks_a_rule_and_goes_on_hears_of_it() {
    let (_rig, service) = serving(Limits::default());
    for round in 0..20 {
        let mut raw = Raw::connect_from([127, 0, 0, 1], service, "vm");
        let handle = raw.open("one");
        // The first of these follows nothing.
        let mut bytes = Vec::new();
        for number in 1..48 {
            let put = Message::Put {
                handle,
                id: blocks::ContentId::of(b"id"),
                total: 100 * MIB as u64,
                offset: number * PIECE as u64,
            };
            let mut frame = Frame::new(number, put);
            frame.data = vec![7; PIECE];
            bytes.extend(raw.sealed(&frame));
        }
        let seal = raw.incoming_seal();
        let said = refusal(&raw.stream, &bytes, seal);
        assert!(is(&said, ErrorCode::Rule), "round {round}: {said:?}");
    }
}

#[test]
fn who_has_too_many_connections_hears_so() {
    let (rig, service) = serving(Limits {
        connections_of_one: 2,
        ..Limits::default()
    });
    let connect = || Raw::connect_from([127, 0, 0, 1], service, "vm");
    let _both = [connect(), connect()];
    for _ in 0..20 {
        let stream = TcpStream::connect(service).unwrap();
        let mut raw = Raw::silent(stream);
        let hello = Message::Hello {
            versions: (1, 1),
            nonce: [1; 32],
            name: b"vm".to_vec(),
        };
        let mut bytes = raw.sealed(&Frame::new(0, hello));
        bytes.resize(MIB, 0);
        let said = refusal(&raw.stream, &bytes, Seal::open(Direction::ToClient));
        assert!(is(&said, ErrorCode::Busy), "{said:?}");
    }
    assert_eq!(rig.stats().connections, 2);
}

/// The same where it takes a handshake before anything can be said.
#[test]
fn who_has_too_many_connections_hears_so_through_tls() {
    let mut rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    testkit::certificates::make(dir.path(), "DNS:vm");
    let at = |name: &str| dir.path().join(name);
    let files = TlsFiles {
        certificate: at("certificate"),
        key: at("key"),
        authority: at("authority"),
    };
    let limits = Limits {
        connections_of_one: 2,
        ..Limits::default()
    };
    let service = rig.start_with_tls(limits, TlsServer::open(&files).unwrap());
    let connect = || {
        let mut program = Command::new("openssl");
        program.args(["s_client", "-quiet", "-tls1_3", "-cert", "certificate"]);
        program.args(["-key", "key", "-connect", &service.to_string()]);
        program.current_dir(&dir).stdin(Stdio::piped());
        program.stdout(Stdio::piped()).stderr(Stdio::null());
        program.spawn().unwrap()
    };
    let two = [TcpStream::connect(service), TcpStream::connect(service)];
    for _ in 0..5 {
        let mut refused = connect();
        let mut said = Vec::new();
        let output = refused.stdout.as_mut().unwrap();
        output.take(1 << 10).read_to_end(&mut said).unwrap();
        refused.kill().unwrap();
        refused.wait().unwrap();
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("too many connections"), "{said:?}");
    }
    assert_eq!(rig.stats().refused, 5);
    drop(two);
}

/// Reading what is thrown away has an end: who never stops is cut off.
#[test]
fn who_sends_without_end_is_cut_off() {
    let (rig, service) = serving(Limits::default());
    let mut stream = TcpStream::connect(service).unwrap();
    let deadline = Some(Duration::from_secs(60));
    stream.set_write_timeout(deadline).unwrap();
    let mut sent: u64 = 0;
    while stream.write_all(&[b'x'; MIB]).is_ok() {
        sent += MIB as u64;
        assert!(sent < 1 << 30, "it reads for ever");
    }
    assert_eq!(rig.stats().refused, 1);
}
