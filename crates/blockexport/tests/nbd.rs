//! NBD keeps the promises of an export, says what it is, and outlives hostile clients.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod clients {
    pub(crate) mod nbd;
}
mod conformance;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::MemDevice;
use blocks::{BlockDevice, Durability, Space};
use clients::nbd::{NbdClient, NbdRig};
use conformance::Rig;

const SIZE: u64 = 1 << 20;

#[test]
fn it_conforms() {
    conformance::run(&NbdRig::new());
}

#[test]
fn forced_unit_access_survives_a_crash_without_a_flush() {
    let rig = NbdRig::new();
    let device = Arc::new(MemDevice::new(SIZE, 512));
    let export = rig.exporter().export(Arc::clone(&device) as _).unwrap();
    let mut client = NbdClient::go(&rig.socket());
    client.ask(1, 1, 0..512, &[1; 512]).unwrap();
    client.ask(1, 0, 512..1024, &[2; 512]).unwrap();
    client.ask(1, 1, 1024..2048, &[3; 1024]).unwrap();
    client.ask(6, 1, 1024..1536, &[]).unwrap();
    client.ask(4, 1, 1536..2048, &[]).unwrap();
    device.crash();
    let expected = [vec![1; 512], vec![0; 1536]].concat();
    assert_eq!(client.ask(0, 0, 0..2048, &[]).unwrap(), expected);
    export.stop();
}

#[test]
fn it_says_what_lies_where() {
    let rig = NbdRig::new();
    let device = MemDevice::new(SIZE, 512);
    device
        .write_at(4096, &[7; 8192], Durability::Flushed)
        .unwrap();
    let kept = 12_288..16_384;
    device
        .write_zeroes(kept, Space::Keep, Durability::Flushed)
        .unwrap();
    let export = rig.exporter().export(Arc::new(device)).unwrap();
    let mut client = NbdClient::go(&rig.socket());
    let mut status = |flags, range| -> Vec<(u32, u32)> {
        #[expect(clippy::big_endian_bytes, reason = "NBD is big-endian")]
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let entries = client.ask(7, flags, range, &[]).unwrap();
        let entries = entries
            .chunks(8)
            .map(|e| (number(&e[..4]), number(&e[4..])));
        entries.collect()
    };
    let all = [(4096, 3), (8192, 0), (4096, 2), (SIZE as u32 - 16_384, 3)];
    assert_eq!(status(0, 0..SIZE), all);
    assert_eq!(status(8, 512..SIZE), [(3584, 3)], "one is enough");
    assert_eq!(
        status(0, 8192..12_800),
        [(4096, 0), (512, 2)],
        "cut to what was asked for"
    );
    assert_eq!(client.ask(7, 0, 512..512, &[]), Err(22));
    export.stop();
}

#[test]
fn options_are_answered_whatever_they_are() {
    let rig = NbdRig::new();
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 4096)))
        .unwrap();
    let mut client = NbdClient::greet(&rig.socket());
    let unsupported = 0x8000_0001;
    let (invalid, unknown) = (0x8000_0003, 0x8000_0006);
    let mut kinds = |option, data: &[u8]| -> Vec<u32> {
        let replies = client.option(option, data).unwrap();
        replies.iter().map(|(kind, _)| *kind).collect()
    };
    assert_eq!(kinds(5, &[]), [unsupported], "TLS");
    assert_eq!(kinds(99, &[1; 1000]), [unsupported]);
    assert_eq!(
        kinds(10, &[0; 8]),
        [invalid],
        "no metadata without structured replies"
    );
    assert_eq!(kinds(3, &[]), [2, 1], "the list has one name");
    assert_eq!(kinds(3, &[1]), [invalid]);
    assert_eq!(kinds(6, &[0, 0, 0, 1, b'x', 0, 0]), [unknown]);
    assert_eq!(kinds(6, &[0, 0, 0, 9, b'x', 0, 0]), [invalid]);
    assert_eq!(kinds(8, &[]), [1]);
    assert_eq!(kinds(9, &[0; 8]), [4, 1]);
    let informed = client
        .option(6, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 1, 0, 1])
        .unwrap();
    // Size and flags; then the least, preferred and largest size of requests; then the name.
    let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;
    let size = [0, 0, 0, 0, 0, 0, 0, 0x10, 0];
    assert_eq!(
        informed[0].1,
        [&size[..], &[0, (flags >> 8) as u8, flags as u8]].concat()
    );
    assert_eq!(
        informed[1].1,
        [0, 3, 0, 0, 0x10, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]
    );
    assert_eq!(informed[2].1, [&[0, 1], &b"disk"[..]].concat());
    assert_eq!(client.option(2, &[]).unwrap(), [(1, vec![])], "abort");
    export.stop();
}

#[test]
fn the_oldest_way_to_connect_works_without_structure() {
    let rig = NbdRig::new();
    let content: Vec<u8> = (0..SIZE).map(|i| (i / 512) as u8).collect();
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::read_only(&content, 512)))
        .unwrap();
    let mut client = NbdClient::greet(&rig.socket());
    client
        .stream
        .write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")
        .unwrap();
    let mut answer = [0; 10];
    client.stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0, 0, 0, 0, 0, 0x10, 0, 0, 1, 0x83], "read-only");
    // Such clients know nothing of block sizes.
    for range in [0..100, 511..513, 1..SIZE, SIZE - 1..SIZE] {
        let cookie = client.send(0, 0, range.clone(), &[]);
        assert_eq!(client.receive().unwrap(), (cookie, Ok(vec![])));
        let mut data = vec![0; (range.end - range.start) as usize];
        client.stream.read_exact(&mut data).unwrap();
        assert_eq!(data, &content[range.start as usize..range.end as usize]);
    }
    assert_eq!(client.ask(1, 0, 0..512, &[1; 512]), Err(1), "not permitted");
    assert_eq!(client.ask(0, 0, SIZE..SIZE + 1, &[]), Err(22));
    assert_eq!(client.ask(7, 0, 0..512, &[]), Err(22), "no block status");
    assert_eq!(client.ask(55, 0, 0..512, &[]), Err(22), "no such request");
    export.stop();
}

/// Returns what the server still sends when it was told `bytes`, up to its end of the connection.
fn told(rig: &NbdRig, bytes: &[u8]) -> usize {
    let mut stream = UnixStream::connect(rig.socket()).unwrap();
    stream.write_all(bytes).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    rest.len()
}

#[test]
fn hostile_clients_are_dropped_and_nobody_else() {
    let mut rig = NbdRig::new();
    rig.config.handshake_deadline = Duration::from_secs(1);
    rig.config.io_deadline = Duration::from_secs(1);
    rig.config.clients = 3;
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    let mut good = NbdClient::go(&rig.socket());
    let greeting = 18;
    assert_eq!(told(&rig, &[0xFF; 4]), greeting, "unknown flags");
    assert_eq!(told(&rig, b"\0\0\0\x03GARBAGEGARBAGE99"), greeting);
    assert_eq!(
        told(&rig, b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff"),
        greeting + 20
    );
    assert_eq!(
        told(&rig, b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01x"),
        greeting,
        "unknown name"
    );
    assert_eq!(told(&rig, b""), greeting, "a handshake that never comes");
    let half = &b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\x08half"[..];
    for length in [2, half.len()] {
        assert_eq!(told(&rig, &half[..length]), greeting, "half a handshake");
    }
    // In transmission: garbage, a payload of 4 GiB, one that never comes.
    let to_go = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0";
    let after = |bytes: &[u8]| told(&rig, &[to_go, bytes].concat());
    assert_eq!(after(&[7; 28]), greeting + 10);
    let write = b"\x25\x60\x95\x13\0\0\0\x01cookies!\0\0\0\0\0\0\0\0";
    assert_eq!(after(&[&write[..], &[0xFF; 4]].concat()), greeting + 10);
    assert_eq!(
        after(&[&write[..], &[0, 0, 2, 0, 1]].concat()),
        greeting + 10
    );
    // More options than anybody needs.
    let list = b"IHAVEOPT\0\0\0\x03\0\0\0\0".repeat(70);
    assert!(told(&rig, &[b"\0\0\0\x03", &list[..]].concat()) > greeting);
    // One after another, each gives its place back.
    for _ in 0..10 {
        let client = NbdClient::go(&rig.socket());
        client.stream.shutdown(Shutdown::Both).unwrap();
        while export.counts().clients > 1 {
            std::thread::yield_now();
        }
    }
    let _second = NbdClient::go(&rig.socket());
    let _third = NbdClient::go(&rig.socket());
    assert_eq!(told(&rig, b""), 0, "a fourth is one too many");
    good.ask(1, 0, 0..512, &[5; 512]).unwrap();
    assert_eq!(good.ask(0, 0, 0..512, &[]).unwrap(), [5; 512]);
    assert!(good.ask(0, 0, 0..0, &[]).is_err());
    assert_eq!(good.ask(0, 0x80, 0..512, &[]), Err(22), "an unknown flag");
    export.stop();
}

/// Silent ones, and those that do not end their handshake, several times as many as there may be.
#[test]
fn clients_without_a_handshake_keep_nobody_out() {
    let mut rig = NbdRig::new();
    rig.config.handshake_deadline = Duration::from_secs(3600);
    rig.config.clients = 4;
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    let mut first = NbdClient::go(&rig.socket());
    let half = b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\x08half";
    let silent: Vec<_> = (0..24)
        .map(|number| {
            let mut stream = UnixStream::connect(rig.socket()).unwrap();
            // One that has made room already takes nothing.
            drop(stream.write_all(&half[..number]));
            stream
        })
        .collect();
    let mut last = NbdClient::go(&rig.socket());
    last.ask(1, 0, 0..512, &[5; 512]).unwrap();
    // Who was through with its handshake before them has its place.
    assert_eq!(first.ask(0, 0, 0..512, &[]).unwrap(), [5; 512]);
    assert!(export.counts().clients <= 4);
    drop(silent);
    export.stop();
}

#[test]
fn a_client_that_takes_a_reply_byte_by_byte_is_dropped() {
    let mut rig = NbdRig::new();
    rig.config.io_deadline = Duration::from_millis(500);
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(64 << 20, 512)))
        .unwrap();
    let mut slow = NbdClient::go(&rig.socket());
    slow.send(0, 0, 0..32 << 20, &[]);
    let mut taken = 0;
    while taken < 32 << 20
        && let Ok(more @ 1..) = slow.stream.read(&mut [0; 4 << 10])
    {
        taken += more;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(taken < 32 << 20, "it was waited for: {taken}");
    export.stop();
}

#[test]
fn a_client_that_takes_no_replies_is_dropped_and_memory_is_bounded() {
    let mut rig = NbdRig::new();
    rig.config.io_deadline = Duration::from_secs(1);
    rig.config.memory_bytes = 0; // The least, which is one request of the largest size.
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(64 << 20, 512)))
        .unwrap();
    let mut greedy = NbdClient::go(&rig.socket());
    for _ in 0..4 {
        greedy.send(0, 0, 0..32 << 20, &[]);
    }
    // Its first reply fills the memory; the next client waits until the greedy one is given up.
    let mut good = NbdClient::go(&rig.socket());
    assert_eq!(good.ask(0, 0, 0..32 << 20, &[]).unwrap().len(), 32 << 20);
    while export.counts().clients > 1 {
        std::thread::yield_now();
    }
    export.stop();
}
