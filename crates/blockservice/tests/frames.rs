//! Frames: what is written is read, and what is hostile is refused before it costs anything.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use blocks::ContentId;
use blockservice::identity::Access;
use blockservice::wire::{
    Ask, BODY_MAX, DATA_MAX, Direction, ErrorCode, Frame, FrameError, HEAD_BYTES, Head, Message,
    Method, Priority, ReadForm, SKIPS_MAX, Seal, Status, What,
};
use chunks::BootEntry;
use proptest::prelude::*;
use rig::{Rig, until};

/// One message of each kind that begins a connection.
fn handshake() -> Vec<Message> {
    vec![
        Message::Hello {
            versions: (1, 1),
            nonce: [1; 32],
            name: b"vm".to_vec(),
        },
        Message::Challenge {
            version: 1,
            method: Method::Key,
            nonce: [2; 32],
            proof: [3; 32],
        },
        Message::Prove { proof: [4; 32] },
        Message::Welcome {
            window: 1 << 24,
            wants: 64,
        },
    ]
}

/// One message of each kind about indexes and boot images.
fn boots(handle: u32, id: ContentId) -> Vec<Message> {
    vec![
        Message::Get {
            handle,
            what: What::Boot,
            id,
            offset: 5,
            len: 6,
        },
        Message::Piece,
        Message::Boots { handle },
        Message::BootList {
            boots: vec![BootEntry { id, len: 10 }],
        },
        Message::Put {
            handle,
            id,
            total: 4,
            offset: 0,
        },
        Message::PutDone { whole: true },
    ]
}

/// One message of each kind about the service, and of those that end something.
fn ends() -> Vec<Message> {
    vec![
        Message::Stat,
        Message::Stats {
            numbers: [1, 2, 3, 4, 5, 6, 7],
        },
        Message::GoAway { within_ms: 2000 },
        Message::Error {
            code: ErrorCode::Busy,
            text: "später".to_owned(),
        },
    ]
}

/// One message of each kind that came with version 2.
fn streams(handle: u32, id: ContentId) -> Vec<Message> {
    vec![
        Message::Start {
            ask: Ask::Chunks,
            have: id,
            name: b"sha256:ab".to_vec(),
        },
        Message::Started {
            handle,
            codec: 1,
            id,
            raw_len: 1000,
            packed_len: 300,
            plan_len: 200,
            plan_chunks: 3,
            links_len: 0,
        },
        Message::Index,
        Message::Plan,
        Message::Streamed {
            chunk: 9,
            status: Status::Here,
            codec: 1,
            raw_len: 4,
        },
        Message::StreamEnd {
            sent: 1,
            skipped: 2,
            failed: 3,
        },
        Message::Skip {
            chunks: vec![3, 1, 2],
        },
    ]
}

fn with_data(message: Message) -> Frame {
    let has = matches!(
        message,
        Message::Chunk { .. }
            | Message::Piece
            | Message::Put { .. }
            | Message::Index
            | Message::Plan
            | Message::Links
            | Message::Streamed { .. }
    );
    let data = if has { b"data".to_vec() } else { Vec::new() };
    Frame {
        request: 0x0102_0304,
        message,
        data,
    }
}

/// One frame of each kind.
fn samples() -> Vec<Frame> {
    [
        samples_of_version_1(),
        samples_of_version_2(),
        samples_of_version_3(),
        samples_of_version_4(),
        samples_of_version_5(),
        samples_of_version_6(),
    ]
    .concat()
}

/// One frame of each kind that has a field since version 6.
fn samples_of_version_6() -> Vec<Frame> {
    vec![with_data(Message::Read {
        handle: 7,
        priority: Priority::Demand,
        form: ReadForm::Stored,
        deadline_ms: 500,
        chunks: vec![1, 2, 9],
    })]
}

/// One frame of each kind that came with version 5, or has a field that did.
fn samples_of_version_5() -> Vec<Frame> {
    let started = Message::Started {
        handle: 7,
        codec: 1,
        id: ContentId::of(b"id"),
        raw_len: 1000,
        packed_len: 300,
        plan_len: 0,
        plan_chunks: 0,
        links_len: 0x0102_0304,
    };
    vec![with_data(started), with_data(Message::Links)]
}

/// One frame of each kind that came with version 4.
fn samples_of_version_4() -> Vec<Frame> {
    vec![with_data(Message::Resume {
        have: ContentId::of(b"id"),
        plan: ContentId::of(b"plan"),
        first: 9,
        name: b"one".to_vec(),
    })]
}

/// One frame of each kind that came with version 3.
fn samples_of_version_3() -> Vec<Frame> {
    let chunks = vec![2, 3, 1];
    vec![with_data(Message::Promote { chunks })]
}

/// One frame of each kind that came with version 2.
fn samples_of_version_2() -> Vec<Frame> {
    let messages = streams(7, ContentId::of(b"id"));
    messages.into_iter().map(with_data).collect()
}

/// One frame of each kind that version 1 has.
fn samples_of_version_1() -> Vec<Frame> {
    let id = ContentId::of(b"id");
    let handle = 7;
    let reads = vec![
        Message::Open {
            name: b"sha256:ab".to_vec(),
        },
        Message::Opened {
            handle,
            len: 99,
            id,
        },
        Message::Read {
            handle,
            priority: Priority::Readahead,
            form: ReadForm::Any,
            deadline_ms: 500,
            chunks: vec![1, 2, 9],
        },
        Message::Chunk {
            place: 2,
            status: Status::Here,
            codec: 1,
            raw_len: 4,
        },
        Message::Cancel,
        Message::Prefetch {
            handle,
            first: 0,
            count: 9,
        },
        Message::Prefetched {
            present: 8,
            absent: 1,
        },
    ];
    let messages = [handshake(), reads, boots(handle, id), ends()];
    messages.into_iter().flatten().map(with_data).collect()
}

fn seal() -> Seal {
    Seal::open(Direction::ToService)
}

fn written(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.encode(&mut seal());
    bytes.extend_from_slice(&frame.data);
    bytes
}

fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
    let head = Head::parse(bytes.first_chunk().ok_or(FrameError::Magic)?)?;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES + head.body_len());
    let rest = bytes.get(HEAD_BYTES + head.body_len()..);
    let data = rest.and_then(|rest| rest.get(..head.data_len()));
    let (Some(body), Some(data)) = (body, data) else {
        return Err(FrameError::Magic); // cut
    };
    Frame::parse(&head, body, data.to_vec(), &mut seal())
}

/// The bytes of each version stay what they are: who talks to an older peer depends on them.
#[test]
fn frames_stay_what_they_are() {
    let hex = |bytes: Vec<u8>| {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>() + "\n"
    };
    for (name, frames) in [
        ("frames-v1.txt", samples_of_version_1()),
        ("frames-v2.txt", samples_of_version_2()),
        ("frames-v3.txt", samples_of_version_3()),
        ("frames-v4.txt", samples_of_version_4()),
        ("frames-v5.txt", samples_of_version_5()),
        ("frames-v6.txt", samples_of_version_6()),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let path = path.join(name);
        let now: String = frames.iter().map(|frame| hex(written(frame))).collect();
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &now).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), now, "{name}");
    }
}

#[test]
fn what_is_written_is_read() {
    for frame in samples() {
        assert_eq!(read(&written(&frame)).unwrap(), frame);
    }
}

#[test]
fn every_byte_of_head_and_body_counts() {
    for frame in samples() {
        let bytes = written(&frame);
        for at in 0..bytes.len() - frame.data.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            assert!(read(&changed).is_err(), "{frame:?}: byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{frame:?}: cut at {len}");
        }
    }
}

#[test]
fn a_frame_that_is_repeated_or_left_out_breaks_the_seal() {
    let frame = Frame::new(1, Message::Stat);
    let (mut ours, mut theirs) = (seal(), seal());
    let first = frame.encode(&mut ours);
    let second = frame.encode(&mut ours);
    let mut take = |bytes: &[u8]| {
        let head = Head::parse(bytes.first_chunk().unwrap()).unwrap();
        Frame::parse(&head, &bytes[HEAD_BYTES..], Vec::new(), &mut theirs)
    };
    assert!(take(&first).is_ok());
    assert_eq!(take(&first), Err(FrameError::Seal));
    assert_eq!(
        take(&second),
        Err(FrameError::Seal),
        "a broken seal stays broken"
    );
}

#[test]
fn lists_of_chunks_have_bounds() {
    let list: [fn(Vec<u32>) -> Message; 2] = [
        |chunks| Message::Skip { chunks },
        |chunks| Message::Promote { chunks },
    ];
    for message in list {
        let named = |count: usize| read(&written(&Frame::new(1, message(vec![1; count]))));
        assert!(named(1).is_ok() && named(SKIPS_MAX).is_ok());
        assert!(named(0).is_err() && named(SKIPS_MAX + 1).is_err());
    }
}

#[test]
fn lengths_are_bounded_before_anything_is_allocated() {
    let bytes = written(&Frame::new(1, Message::Piece));
    let with = |at: usize, len: usize| {
        let mut head: [u8; HEAD_BYTES] = *bytes.first_chunk().unwrap();
        head[at..at + 4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
        Head::parse(&head)
    };
    assert!(with(16, BODY_MAX).is_ok() && with(20, DATA_MAX).is_ok());
    for (at, len) in [
        (16, BODY_MAX + 1),
        (20, DATA_MAX + 1),
        (16, 0xFFFF_FFFF),
        (20, 0xFFFF_FFFF),
    ] {
        assert!(
            matches!(with(at, len), Err(FrameError::TooLarge { .. })),
            "{len} at {at}"
        );
    }
    let mut other = *bytes.first_chunk::<HEAD_BYTES>().unwrap();
    other[4] = 9;
    assert!(matches!(
        Head::parse(&other),
        Err(FrameError::Version { found: 9 })
    ));
}

proptest! {
    /// A forger knows the public seal: then every rule has to hold by itself.
    #[test]
    fn forged_bodies_are_refused_or_read(
        kind in 0_u8..35,
        body in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut bytes = written(&Frame::new(1, Message::Stat));
        bytes[5] = kind;
        bytes[16..20].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(&body);
        let key = blake3::derive_key("nicfetch 2026 frames", b"c");
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&0_u64.to_le_bytes()).update(&bytes[..24]).update(&body);
        bytes[24..32].copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        if let Ok(frame) = read(&bytes) {
            prop_assert_eq!(written(&frame), bytes);
        }
    }
}

/// Sends bytes to a service, and returns what it answers before it closes the connection.
fn talk(rig: &Rig, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(rig.socket()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // It may have closed the connection before it has all.
    let _sent = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _closed = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn hostile_bytes_end_the_connection_and_nothing_else() {
    let (rig, _) = Rig::serving(Access::open());
    let hello = Message::Hello {
        versions: (1, 1),
        nonce: [0; 32],
        name: b"vm".to_vec(),
    };
    let hello = written(&Frame::new(0, hello));
    let mut oversized = hello.clone();
    oversized[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let old = Message::Hello {
        versions: (7, 9),
        nonce: [0; 32],
        name: Vec::new(),
    };
    let old = written(&Frame::new(0, old));
    let early = written(&Frame::new(0, Message::Stat));
    let http = b"GET / HTTP/1.1\r\nHost: nic\r\n\r\n________".to_vec();
    let said = |bytes: &[u8]| {
        let answer = talk(&rig, bytes);
        let head = Head::parse(answer.first_chunk().expect("it says why")).unwrap();
        let mut seal = Seal::open(Direction::ToClient);
        Frame::parse(&head, &answer[HEAD_BYTES..], Vec::new(), &mut seal)
            .unwrap()
            .message
    };
    for bytes in [&oversized, &early, &http] {
        let said = said(bytes);
        assert!(
            matches!(
                said,
                Message::Error {
                    code: ErrorCode::Rule,
                    ..
                }
            ),
            "{said:?}"
        );
    }
    assert!(matches!(
        said(&old),
        Message::Error {
            code: ErrorCode::Version,
            ..
        }
    ));
    until("all were counted", || rig.stats().refused >= 4);
    let client = rig.client("vm", None);
    rig::connected(&client);
}

/// Somebody who connects and says nothing, or a byte now and then.
#[test]
fn who_is_slow_is_cut_off() {
    let mut rig = Rig::new();
    let limits = blockservice::service::Limits {
        handshake: Duration::from_millis(200),
        ..Default::default()
    };
    rig.start(Access::open(), limits);
    assert_eq!(talk(&rig, b"nfbl"), b"", "half a head, and then nothing");
    assert_eq!(talk(&rig, b""), b"");
    until("both were counted", || rig.stats().refused == 2);
}
