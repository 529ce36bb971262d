//! Streams: chunks of a plan that come by themselves.
//!
//! A client that reads nothing holds its stream: of a source of 40 chunks (5 MiB) at most 640 KiB are
//! queued, and what the socket takes.

mod rig;

use std::net::TcpStream;
use std::time::Duration;

use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{Ask, ErrorCode, Frame, Message, Priority, ReadForm, Status};
use chunks::{ChunkStore as _, Codec};
use rig::raw::Raw;
use rig::streams::{CHUNKS, Large, NONE, read_of, start};
use rig::{Rig, until};

fn serving(limits: Limits) -> (Rig, Large) {
    let mut rig = Rig::new();
    let source = Large::add(&rig);
    source.give_whole_boot(&rig);
    rig.start(Access::open(), limits);
    (rig, source)
}

#[test]
fn what_is_skipped_in_time_is_not_sent() {
    let (rig, source) = serving(Limits::default());
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, source.index.id()));
    let started = raw.hear_started(1);
    // The last ten are those with the lowest numbers. One is named twice, one is not in the plan,
    // another request has no stream.
    let chunks = (0..10).chain([3, CHUNKS, 1 << 30]).collect();
    raw.send(1, Message::Skip { chunks }, Vec::new()).unwrap();
    let chunks = vec![10];
    raw.send(2, Message::Skip { chunks }, Vec::new()).unwrap();
    raw.settle(&rig);
    assert_eq!(rig.metric("skipped_chunks_total"), 10);
    let answers = raw.hear_rest(1, started);
    assert_eq!(answers.order(), (10..CHUNKS).rev().collect::<Vec<_>>());
    assert_eq!(answers.end, (CHUNKS - 10, 10, 0));
    answers.check(&source.index);
    // What was sent cannot be skipped.
    let chunks = vec![39, 0];
    raw.send(1, Message::Skip { chunks }, Vec::new()).unwrap();
    raw.send(3, Message::Stat, Vec::new()).unwrap();
    let stats = raw.hear_of(3).message;
    assert!(matches!(stats, Message::Stats { .. }), "{stats:?}");
    assert_eq!(rig.metric("skipped_chunks_total"), 10);
}

#[test]
fn what_is_promoted_comes_next_and_once() {
    let (rig, source) = serving(Limits::default());
    let start = start(Ask::Chunks, source.index.id());
    let (mut raw, version) = Raw::connect_with(&rig, "vm", (1, 3));
    assert_eq!(version, 3);
    raw.send(1, start, Vec::new()).unwrap();
    let started = raw.hear_started(1);
    raw.settle(&rig);
    // The order is from the highest number down. One is named twice, one is not in the plan, one was sent, and
    // another request has no stream.
    let chunks = vec![3, 7, 3, CHUNKS, 39];
    raw.send(1, Message::Promote { chunks }, Vec::new())
        .unwrap();
    let chunks = vec![1];
    raw.send(2, Message::Promote { chunks }, Vec::new())
        .unwrap();
    raw.settle(&rig);
    let answers = raw.hear_rest(1, started);
    let order = answers.order();
    let at = |chunk: u32| order.iter().position(|sent| *sent == chunk).unwrap();
    assert_eq!(at(7), at(3) + 1);
    assert!(at(7) < at(8), "{order:?}");
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..CHUNKS).collect::<Vec<_>>());
    assert_eq!(answers.end, (CHUNKS, 0, 0));
    answers.check(&source.index);
    // Not in a connection of version 2.
    let mut raw = Raw::connect_2(&rig, "vm");
    let chunks = vec![1];
    raw.send(9, Message::Promote { chunks }, Vec::new())
        .unwrap();
    let code = ErrorCode::Rule;
    let text = "this frame is of version 3".to_owned();
    assert_eq!(raw.hear().unwrap().message, Message::Error { code, text });
}

#[test]
fn a_stream_that_is_cancelled_ends_and_another_begins() {
    let (rig, source) = serving(Limits::default());
    let start = start(Ask::Chunks, source.index.id());
    let mut raw = Raw::connect_and_start(&rig, 1, start.clone());
    let started = raw.hear_started(1);
    raw.send(1, Message::Cancel, Vec::new()).unwrap();
    raw.settle(&rig);
    let answers = raw.hear_rest(1, started);
    let sent = answers.end.0;
    assert!(sent < CHUNKS - 10, "{sent} were sent");
    assert_eq!(answers.end, (sent, 0, 0));
    assert_eq!(answers.chunks.len(), sent as usize);
    raw.send(2, start, Vec::new()).unwrap();
    assert_eq!(raw.hear_all(2).end, (CHUNKS, 0, 0));
}

#[test]
fn who_does_not_read_keeps_nobody_waiting() {
    let (rig, source) = serving(Limits {
        readers: 1,
        ..Limits::default()
    });
    let start = start(Ask::Chunks, source.index.id());
    let mut slow = Raw::connect_and_start(&rig, 1, start.clone());
    let started = slow.hear_started(1);
    let mut quick = Raw::connect_and_start(&rig, 1, start);
    assert_eq!(quick.hear_all(1).end, (CHUNKS, 0, 0));
    // No more of it was read than may be queued, and what a socket takes.
    let of_slow = rig.metric("streamed_chunks_total") - u64::from(CHUNKS);
    assert!(of_slow <= u64::from(CHUNKS) - 10, "{of_slow} chunks");
    assert_eq!(slow.hear_rest(1, started).end, (CHUNKS, 0, 0));
}

#[test]
fn what_is_demanded_goes_before_a_stream() {
    let (rig, source) = serving(Limits::default());
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, source.index.id()));
    let started = raw.hear_started(1);
    let read = Message::Read {
        handle: started.handle,
        priority: Priority::Demand,
        form: ReadForm::Any,
        deadline_ms: 0,
        chunks: vec![0],
    };
    raw.send(2, read, Vec::new()).unwrap();
    raw.settle(&rig);
    let answers = raw.hear_rest(1, started);
    assert_eq!(answers.end, (CHUNKS, 0, 0));
    let chunk = answers.others.iter().find(|(_, frame)| frame.request == 2);
    let (before, frame) = chunk.unwrap();
    assert!(*before < answers.chunks.len() - 10, "{before} came first");
    let status = Status::Here;
    assert!(
        matches!(&frame.message, Message::Chunk { status: found, .. } if *found == status),
        "{frame:?}"
    );
}

#[test]
fn a_connection_has_one_stream_at_a_time() {
    let (rig, source) = serving(Limits::default());
    let id = source.index.id();
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, id));
    let started = raw.hear_started(1);
    raw.send(2, start(Ask::Chunks, id), Vec::new()).unwrap();
    raw.send(3, start(Ask::Plan, id), Vec::new()).unwrap();
    raw.settle(&rig);
    let answers = raw.hear_rest(1, started);
    assert_eq!(answers.end, (CHUNKS, 0, 0));
    let of = |request| {
        let others = answers.others.iter();
        let of = others.filter(|(_, frame)| frame.request == request);
        of.map(|(_, frame)| &frame.message).collect::<Vec<_>>()
    };
    assert!(
        matches!(
            of(2)[..],
            [Message::Error {
                code: ErrorCode::Busy,
                ..
            }]
        ),
        "{:?}",
        of(2)
    );
    // Pieces of a plan wait for room: they may come behind the stream.
    if !matches!(of(3).last(), Some(Message::StreamEnd { .. })) {
        while !matches!(
            raw.hear().unwrap(),
            Frame {
                request: 3,
                message: Message::StreamEnd { .. },
                ..
            }
        ) {}
    }
    assert!(
        matches!(of(3)[0], Message::Started { plan_chunks: 0, .. }),
        "{:?}",
        of(3)
    );
    assert_eq!(rig.metric("streams_total"), 1);
}

#[test]
fn what_the_store_lost_is_said_to_be_absent() {
    let (rig, source) = serving(Limits::default());
    for number in [7, 20] {
        rig.store.lose(&source.index.chunk(number).unwrap());
    }
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, source.index.id()));
    let answers = raw.hear_all(1);
    assert_eq!(answers.end, (CHUNKS - 2, 0, 2));
    for (number, found) in &answers.chunks {
        let lost = [7, 20].contains(number);
        assert_eq!(found.as_ref().err(), lost.then_some(&Status::Absent));
    }
    assert_eq!(
        (rig.stats().chunks, rig.stats().absent),
        (u64::from(CHUNKS) - 2, 2)
    );
}

#[test]
fn beyond_the_most_streams_there_are_plans() {
    let (rig, source) = serving(Limits {
        streams: 1,
        ..Limits::default()
    });
    let start = start(Ask::Chunks, source.index.id());
    let mut one = Raw::connect_and_start(&rig, 1, start.clone());
    assert_eq!(one.hear_started(1).plan_chunks, CHUNKS);
    assert_eq!(rig.metric("streams_running"), 1);
    let mut other = Raw::connect_and_start(&rig, 1, start.clone());
    let answers = other.hear_all(1);
    assert!(answers.started.plan_len > 0);
    assert_eq!((answers.started.plan_chunks, answers.end), (0, (0, 0, 0)));
    // Who leaves makes room.
    drop(one);
    until("its stream is over", || rig.metric("streams_running") == 0);
    other.send(2, start.clone(), Vec::new()).unwrap();
    assert_eq!(other.hear_all(2).end, (CHUNKS, 0, 0));
    // So does a stream that is over, although its connection is not.
    let mut third = Raw::connect_and_start(&rig, 1, start);
    assert_eq!(third.hear_all(1).end, (CHUNKS, 0, 0));
}

#[test]
fn chunks_are_compressed_over_a_network_and_not_within_a_machine() {
    for (fast_round_trip, raw_rate, codec) in [
        (Duration::ZERO, 0, Codec::Zstd),
        (Duration::MAX, 0, Codec::Raw),
        // Near and slow: once it was measured.
        (Duration::MAX, u64::MAX, Codec::Zstd),
    ] {
        let mut rig = Rig::new();
        let source = Large::add_compressible(&rig);
        source.give_whole_boot(&rig);
        let limits = Limits {
            fast_round_trip,
            raw_rate,
            ..Limits::default()
        };
        let address = rig.start_at_port(Access::open(), limits);
        let stream = TcpStream::connect(address).unwrap();
        let deadline = Some(Duration::from_secs(60));
        stream.set_read_timeout(deadline).unwrap();
        let (mut raw, _) = Raw::hello(stream, "vm", (1, 2));
        raw.send(0, Message::Prove { proof: [0; 32] }, Vec::new())
            .unwrap();
        assert!(matches!(
            raw.hear().unwrap().message,
            Message::Welcome { .. }
        ));
        let mut request = 0;
        let mut codecs = || {
            request += 1;
            let start = start(Ask::Chunks, source.index.id());
            raw.send(request, start, Vec::new()).unwrap();
            let answers = raw.hear_all(request);
            assert_eq!(answers.end, (CHUNKS, 0, 0));
            answers.check(&source.index);
            let chunks = answers.chunks.into_iter();
            chunks
                .map(|(_, found)| found.unwrap().codec)
                .collect::<Vec<_>>()
        };
        if codec == Codec::Raw {
            // They are decompressed beside the stream.
            until("all are in memory", || {
                codecs().iter().all(|found| *found == codec)
            });
            continue;
        }
        let mut from_memory = || {
            let hits = rig.store.stats().hits;
            let is_it = codecs().iter().all(|found| *found == codec);
            is_it && rig.store.stats().hits == hits
        };
        if raw_rate == 0 {
            assert!(!from_memory(), "nobody has read them before");
            assert!(from_memory(), "they were read twice");
        } else {
            // Before it was measured, they were kept in memory decompressed.
            until("all are in memory as stored", from_memory);
        }
    }
}

#[test]
fn a_client_may_want_chunks_as_stored_since_version_6() {
    let mut rig = Rig::new();
    Large::add_compressible(&rig);
    rig.start(Access::open(), Limits::default());
    let (mut raw, version) = Raw::connect_with(&rig, "vm", (1, 6));
    assert_eq!(version, 6);
    let handle = raw.open("one");
    // Within a machine: decompressed, once that is done.
    until("it is decompressed", || {
        raw.codec_of(handle, 0, ReadForm::Any) == Codec::Raw
    });
    assert_eq!(raw.codec_of(handle, 0, ReadForm::Stored), Codec::Zstd);
    assert_eq!(raw.codec_of(handle, 0, ReadForm::Any), Codec::Raw);

    let (mut old, _) = Raw::connect_with(&rig, "vm", (1, 5));
    let handle = old.open("one");
    let read = read_of(handle, 0, ReadForm::Stored);
    let code = ErrorCode::Rule;
    let text = "this frame is of version 6".to_owned();
    let answer = old.ask(read, Vec::new()).message;
    assert_eq!(answer, Message::Error { code, text });
}

#[test]
fn machines_that_start_at_once_get_each_chunk_once() {
    const MACHINES: u64 = 16;
    let (rig, source) = serving(Limits::default());
    let all = u64::from(CHUNKS);
    std::thread::scope(|scope| {
        for _ in 0..MACHINES {
            scope.spawn(|| {
                let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, NONE));
                let answers = raw.hear_all(1);
                answers.check(&source.index);
                assert_eq!(answers.end, (CHUNKS, 0, 0));
            });
        }
    });
    assert_eq!(rig.stats().chunks, MACHINES * all);
    assert_eq!(rig.metric("streams_total"), MACHINES);
}

/// It tells the clients, and waits for streams no longer than for anything else.
#[test]
fn a_service_that_ends_finishes_streams_that_are_read() {
    let (mut rig, source) = serving(Limits {
        leave: Duration::from_secs(60),
        ..Limits::default()
    });
    let mut raw = Raw::connect_and_start(&rig, 1, start(Ask::Chunks, source.index.id()));
    let started = raw.hear_started(1);
    let reading = std::thread::spawn(move || raw.hear_rest(1, started));
    rig.stop();
    let answers = reading.join().unwrap();
    assert_eq!(answers.end, (CHUNKS, 0, 0));
    let others = answers.others.iter();
    let away = others.filter(|(_, frame)| matches!(frame.message, Message::GoAway { .. }));
    assert!(away.count() <= 1);
}
