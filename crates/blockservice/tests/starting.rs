//! START: index, plan and chunks of a source in one exchange.

mod rig;

use blocks::ContentId;
use blockservice::identity::Access;
use blockservice::plan_order;
use blockservice::service::Limits;
use blockservice::wire::{Ask, ErrorCode, Frame, Message, Priority, ReadForm, Status};
use bootimg::decode_plan;
use chunks::index::unpack;
use rig::Rig;
use rig::raw::Raw;
use rig::streams::{CHUNKS, Large, NONE, give, start};

fn serving() -> (Rig, Large) {
    let mut rig = Rig::new();
    let source = Large::add(&rig);
    rig.start(Access::open(), Limits::default());
    (rig, source)
}

#[test]
fn a_start_in_the_packet_of_proof_brings_index_plan_and_chunks() {
    let (rig, source) = serving();
    // The small file, two chunks of the large one from the end of the first, and zeros.
    let plan = source.give_boot(
        &rig,
        &[(2, 0, 1), (1, 80, 16), (1, 32, 3), (3, 0, 64), (1, 96, 1)],
    );
    let mut raw = Raw::connect_and_start(&rig, 7, start(Ask::Chunks, NONE));
    let answers = raw.hear_all(7);
    let started = answers.started;
    let index = unpack(started.codec, &answers.index, started.raw_len).unwrap();
    assert_eq!(index[..], source.index.bytes()[..]);
    assert_eq!(started.id, source.index.id());
    let read = decode_plan(&answers.plan, &started.id, &source.tree).unwrap();
    assert_eq!(read.extents, plan.extents);
    assert_eq!(answers.order(), [CHUNKS, 2, 1, 3]);
    assert_eq!(answers.order(), plan_order(&source.index, &read));
    assert_eq!((answers.end, started.plan_chunks), ((4, 0, 0), 4));
    answers.check(&source.index);
    // The handle is like one of an OPEN.
    let read = Message::Read {
        handle: started.handle,
        priority: Priority::Demand,
        form: ReadForm::Any,
        deadline_ms: 0,
        chunks: vec![5],
    };
    let chunk = raw.ask(read, Vec::new());
    assert!(matches!(
        chunk.message,
        Message::Chunk {
            status: Status::Here,
            ..
        }
    ));
    let counts = [
        "streams_total",
        "streamed_chunks_total",
        "plan_bytes_total",
        "streams_running",
    ];
    let counts = counts.map(|name| rig.metric(name));
    assert_eq!(counts, [1, 4, answers.plan.len() as u64, 0]);
    // The chunk that was read is among them, too.
    assert_eq!(rig.stats().chunks, 5);
}

#[test]
fn what_is_not_asked_for_is_not_sent() {
    let (rig, source) = serving();
    source.give_whole_boot(&rig);
    let mut raw = Raw::connect_2(&rig, "vm");
    let id = source.index.id();
    let lens = |answers: &rig::streams::Answers| {
        let parts = (!answers.index.is_empty(), !answers.plan.is_empty());
        (parts, answers.chunks.len(), answers.started.plan_chunks)
    };
    for (request, ask, have, sent) in [
        (1, Ask::Index, NONE, ((true, false), 0, 0)),
        (2, Ask::Index, id, ((false, false), 0, 0)),
        (3, Ask::Plan, id, ((false, true), 0, 0)),
        (
            4,
            Ask::Plan,
            ContentId::of(b"another"),
            ((true, true), 0, 0),
        ),
        (5, Ask::Chunks, id, ((false, true), 40, 40)),
    ] {
        raw.send(request, start(ask, have), Vec::new()).unwrap();
        let answers = raw.hear_all(request);
        assert_eq!(lens(&answers), sent, "{ask:?} {have:?}");
        answers.check(&source.index);
        assert_eq!(answers.started.raw_len, source.index.bytes().len() as u64);
    }
    assert!(rig.metric("prepared_bytes") > 0);
}

#[test]
fn a_source_without_boot_images_has_no_plan() {
    let (rig, source) = serving();
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, NONE));
    let answers = raw.hear_all(1);
    assert_eq!(
        (answers.started.plan_len, answers.started.plan_chunks),
        (0, 0)
    );
    assert_eq!(
        (answers.plan.len(), answers.chunks.len(), answers.end),
        (0, 0, (0, 0, 0))
    );
    answers.check(&source.index);
    // One comes, and the next who starts gets its plan.
    source.give_whole_boot(&rig);
    raw.send(2, start(Ask::Chunks, source.index.id()), Vec::new())
        .unwrap();
    assert_eq!(raw.hear_all(2).end, (CHUNKS, 0, 0));
}

#[test]
fn a_boot_image_that_is_no_use_gives_way_to_the_one_before() {
    let (rig, source) = serving();
    source.give_boot(&rig, &[(1, 0, 1)]);
    // What fits of it is used: the small file is another now.
    source.give_older_boot(&rig, &[(2, 0, 1), (1, 64, 1), (1, 0, 1)]);
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, NONE));
    assert_eq!(raw.hear_all(1).order(), [2, 0]);
    // Of this nothing fits, this is damaged, and this is no boot image at all.
    source.give_older_boot(&rig, &[(2, 0, 1)]);
    give(&rig, &source.index, b"no boot image");
    let newest = rig.catalog.boots(&source.index.id())[2];
    let piece = rig
        .catalog
        .boot_piece(&source.index.id(), &newest.id, 0, 1 << 20);
    let mut damaged = piece.unwrap().unwrap();
    let middle = damaged.len() / 2;
    damaged[middle..].fill(7);
    give(&rig, &source.index, &damaged);
    raw.send(2, start(Ask::Chunks, NONE), Vec::new()).unwrap();
    assert_eq!(raw.hear_all(2).order(), [2, 0]);
}

#[test]
fn a_boot_image_that_describes_too_much_is_no_use() {
    let (rig, source) = serving();
    let large = rig::streams::image_of_large_tree();
    give(&rig, &source.index, &large);
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Plan, NONE));
    assert_eq!(raw.hear_all(1).started.plan_len, 0);
}

#[test]
fn version_1_goes_on_and_has_no_streams() {
    let (rig, source) = serving();
    let versions = [
        ((1, 1), 1),
        ((1, 2), 2),
        ((2, 2), 2),
        ((1, 3), 3),
        ((1, 4), 4),
        ((1, 5), 5),
        ((1, 6), 6),
        ((1, 9), 6),
    ];
    for (offered, chosen) in versions {
        let (_raw, version) = Raw::connect_with(&rig, "vm", offered);
        assert_eq!(version, chosen, "{offered:?}");
    }
    let skip = Message::Skip { chunks: vec![1] };
    for message in [start(Ask::Index, NONE), skip] {
        let (mut raw, _) = Raw::connect_with(&rig, "vm", (1, 1));
        assert_eq!(raw.open("one"), 1);
        raw.send(5, message, Vec::new()).unwrap();
        let Frame {
            request, message, ..
        } = raw.hear().unwrap();
        let code = ErrorCode::Rule;
        let text = "this frame is of version 2".to_owned();
        assert_eq!((request, message), (0, Message::Error { code, text }));
        assert!(raw.hear().is_err(), "the connection is over");
    }
    let mut raw = Raw::connect_2(&rig, "vm");
    raw.send(6, start(Ask::Index, NONE), Vec::new()).unwrap();
    raw.hear_all(6).check(&source.index);
}

#[test]
fn what_may_not_be_opened_looks_like_what_is_not_there() {
    let mut rig = Rig::new();
    Large::add(&rig);
    let list = format!("vm {} two\n", "07".repeat(32));
    rig.start(Access::parse(&list).unwrap(), Limits::default());
    let mut raw = Raw::connect_with_key(&rig, "vm", &[7; 32]);
    let answers = [&b"one"[..], b"two", b"three", b""].map(|name| {
        let (ask, have, name) = (Ask::Chunks, NONE, name.to_vec());
        raw.ask(Message::Start { ask, have, name }, Vec::new())
            .message
    });
    for answer in &answers {
        assert_eq!(*answer, answers[0]);
    }
    assert!(
        matches!(
            &answers[0],
            Message::Error {
                code: ErrorCode::NoSource,
                ..
            }
        ),
        "{:?}",
        answers[0]
    );
    assert_eq!(rig.metric("streams_total"), 0);
}

#[test]
fn malformed_bodies_end_the_connection() {
    let (rig, _source) = serving();
    let skip = Message::Skip { chunks: Vec::new() };
    // Only services send these.
    let streamed = Message::StreamEnd {
        sent: 0,
        skipped: 0,
        failed: 0,
    };
    for message in [skip, streamed, Message::Plan] {
        let mut raw = Raw::connect_2(&rig, "vm");
        raw.send(3, message.clone(), Vec::new()).unwrap();
        let answer = raw.hear().unwrap().message;
        assert!(
            matches!(
                answer,
                Message::Error {
                    code: ErrorCode::Rule,
                    ..
                }
            ),
            "{message:?}: {answer:?}"
        );
        assert!(raw.hear().is_err());
    }
    // The seal is right, and the lengths lie: what is asked for, and how long the name is.
    for (at, byte) in [(0, 3), (1, 1), (36, 200)] {
        let mut raw = Raw::connect_2(&rig, "vm");
        let mut bytes = raw.sealed(&Frame::new(1, start(Ask::Index, NONE)));
        bytes[32 + at] = byte;
        rig::streams::reseal(&mut bytes, b'c', 2);
        std::io::Write::write_all(&mut raw.stream, &bytes).unwrap();
        let answer = raw.hear().unwrap().message;
        let Message::Error { code, text } = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(code, ErrorCode::Rule, "{text}");
        assert!(!text.contains("authentication"), "{text}");
    }
}
