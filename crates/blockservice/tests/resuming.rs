//! RESUME: the rest of a plan that the client has, in one request.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use blocks::{BlockSource as _, ContentId, FileId};
use blockservice::client::{
    Ask, Client, ClientConfig, NicSource, Patience, ServedPlan, Started, Wanted,
};
use blockservice::identity::Access;
use blockservice::service::Limits;
use blockservice::wire::{ErrorCode, Message};
use chunks::ChunkStore as _;
use chunks::index::CHUNK_BYTES;
use chunks::testing::MemStore;
use link_emulator::{Fault, Link, Shape};
use rig::line::Line;
use rig::raw::Raw;
use rig::streams::{Answers, CHUNKS, Large, NONE, start};
use rig::{Rig, connected, until};
use serving::transport::Address;

const LONG: Duration = Duration::from_secs(60);
/// Kinds of frames.
const READ: u8 = 7;
const START: u8 = 23;
const RESUME: u8 = 31;

/// A service with a source whose plan names all chunks, the last first.
fn serving(limits: Limits) -> (Rig, Large) {
    let mut rig = Rig::new();
    let source = Large::add(&rig);
    source.give_whole_boot(&rig);
    rig.start(Access::open(), limits);
    (rig, source)
}

/// A stream of 5 MiB takes a second: a chunk comes each 26 ms, of 100 in which nothing may come before a reader asks by itself.
fn slow() -> Limits {
    Limits {
        send_rate_of_one: NonZeroU64::new(5_000_000),
        ..Limits::default()
    }
}

/// Returns the id of the plan that the service sends.
fn plan_id(rig: &Rig) -> ContentId {
    let mut raw = Raw::connect_and_start(rig, 1, start(Ask::Plan, NONE));
    ContentId::of(&raw.hear_all(1).plan)
}

fn resume(have: ContentId, plan: ContentId, first: u32) -> Message {
    let name = b"one".to_vec();
    Message::Resume {
        have,
        plan,
        first,
        name,
    }
}

/// What the service sends for a RESUME, and what was sent right behind it.
fn resumed(rig: &Rig, message: Message, behind: &[Message]) -> Answers {
    let (mut raw, version) = Raw::connect_with(rig, "vm", (1, 4));
    assert_eq!(version, 4);
    raw.send(1, message, Vec::new()).unwrap();
    for message in behind {
        raw.send(1, message.clone(), Vec::new()).unwrap();
    }
    raw.hear_all(1)
}

#[test]
fn the_rest_of_a_plan_comes_from_the_named_chunk_on() {
    let (rig, source) = serving(Limits::default());
    let (index, plan) = (source.index.id(), plan_id(&rig));
    for first in [0, 1, CHUNKS - 1, CHUNKS, u32::MAX] {
        let answers = resumed(&rig, resume(index, plan, first), &[]);
        let count = CHUNKS.saturating_sub(first);
        assert_eq!(answers.order(), (0..count).rev().collect::<Vec<_>>());
        assert_eq!(answers.started.plan_chunks, count);
        assert_eq!(answers.end, (count, 0, 0));
        // Neither index nor plan.
        assert_eq!((answers.index.len(), answers.plan.len()), (0, 0));
        answers.check(&source.index);
    }
}

#[test]
fn who_has_another_index_or_plan_gets_nothing() {
    let (rig, source) = serving(Limits::default());
    let (index, plan) = (source.index.id(), plan_id(&rig));
    let other = ContentId::of(b"another");
    for (have, plan) in [(other, plan), (index, other), (NONE, NONE)] {
        let answers = resumed(&rig, resume(have, plan, 0), &[]);
        assert_eq!((answers.started.plan_chunks, answers.end), (0, (0, 0, 0)));
        assert_eq!(answers.started.id, index);
    }
}

#[test]
fn the_plan_of_an_older_boot_image_is_known_as_long_as_that_is_kept() {
    let (rig, source) = serving(Limits::default());
    let (index, plan) = (source.index.id(), plan_id(&rig));
    source.give_boot(&rig, &[(1, 0, 1)]);
    assert_ne!(plan_id(&rig), plan);
    let answers = resumed(&rig, resume(index, plan, 30), &[]);
    assert_eq!(answers.end, (CHUNKS - 30, 0, 0));
}

#[test]
fn what_is_said_before_the_stream_begins_holds() {
    let (known, _source) = serving(Limits::default());
    let plan = plan_id(&known);
    // This one has to make the plan first.
    let (rig, source) = serving(Limits::default());
    let skip = Message::Skip {
        chunks: (0..10).collect(),
    };
    let promote = Message::Promote {
        chunks: vec![11, 5],
    };
    let resume = resume(source.index.id(), plan, 0);
    let answers = resumed(&rig, resume, &[skip, promote]);
    let order = answers.order();
    assert_eq!(order[..2], [11, CHUNKS - 1], "{order:?}");
    assert_eq!(answers.end, (CHUNKS - 10, 10, 0));
}

#[test]
fn earlier_versions_do_not_have_it() {
    let (rig, source) = serving(Limits::default());
    let (index, plan) = (source.index.id(), plan_id(&rig));
    let (mut raw, version) = Raw::connect_with(&rig, "vm", (1, 3));
    assert_eq!(version, 3);
    raw.send(5, resume(index, plan, 0), Vec::new()).unwrap();
    let code = ErrorCode::Rule;
    let text = "this frame is of version 4".to_owned();
    assert_eq!(raw.hear().unwrap().message, Message::Error { code, text });
}

fn started(client: &Client, ask: Ask) -> Started {
    let wanted = Wanted {
        name: b"one",
        id: None,
        have: None,
        ask,
    };
    client.start_source(&wanted, LONG).unwrap()
}

/// Reads all chunks, the last first, as the plan has them.
fn read_all(source: &NicSource, large: &Large) {
    let key = large.tree.key(FileId(1)).unwrap();
    let mut out = vec![0; usize::try_from(CHUNK_BYTES).unwrap()];
    for chunk in (0..u64::from(CHUNKS)).rev() {
        let len = source.read_at(&key, chunk * CHUNK_BYTES, &mut out);
        assert_eq!(len.unwrap(), out.len());
        assert!(out == rig::content(chunk + 1, CHUNK_BYTES), "chunk {chunk}");
    }
}

/// The plan of the source, as a mount keeps it.
fn plan(rig: &Rig) -> ServedPlan {
    let client = rig.client("vm0", None);
    started(&client, Ask::Plan).plan.unwrap()
}

#[test]
fn who_has_a_plan_makes_one_request_for_what_it_lacks() {
    let (rig, large) = serving(Limits::default());
    let plan = plan(&rig);
    let (line, local) = (Line::start(&rig), Arc::new(MemStore::default()));
    // The first ten of the plan, and one in the middle.
    for chunk in (30..40).chain([7]) {
        let bytes = rig::content(chunk + 1, CHUNK_BYTES);
        let id = ContentId::of(&bytes);
        local.put(&id, &bytes, chunks::Class::Demand).unwrap();
    }
    let client = line.client(|_| {});
    let index = Arc::new(chunks::index::Index::decode(large.index.bytes()).unwrap());
    let remote = client.remote(b"one", index);
    let source = NicSource::new(remote, Some(local), None, LONG);
    source.expect(&plan);
    until("the rest is asked for", || line.sent(RESUME) > 0);
    read_all(&source, &large);
    let counts = source.remote().counts();
    assert_eq!((counts.streams, counts.requests), (1, 0), "{counts:?}");
    assert_eq!(counts.duplicate_bytes, 0, "{counts:?}");
    assert_eq!(rig.metric("streamed_chunks_total"), u64::from(CHUNKS) - 11);
    let sent = [START, RESUME, READ].map(|kind| line.sent(kind));
    assert_eq!(sent, [0, 1, 0]);
}

#[test]
fn who_has_all_of_a_plan_makes_no_request() {
    let (rig, large) = serving(Limits::default());
    let plan = plan(&rig);
    let line = Line::start(&rig);
    let client = line.client(|_| {});
    let index = Arc::new(chunks::index::Index::decode(large.index.bytes()).unwrap());
    let remote = client.remote(b"one", index);
    let local = Arc::clone(&rig.store) as Arc<dyn chunks::ChunkStore>;
    let source = NicSource::new(remote, Some(local), None, LONG);
    source.expect(&plan);
    connected(&client);
    read_all(&source, &large);
    assert_eq!([START, RESUME, READ].map(|kind| line.sent(kind)), [0, 0, 0]);
    assert_eq!(rig.stats().chunks, 0);
}

#[test]
fn a_plan_goes_on_where_it_was_when_the_connection_is_made_again() {
    let (rig, large) = serving(slow());
    let line = Line::start(&rig);
    let client = line.client(|_| {});
    let start = started(&client, Ask::Chunks);
    let source = NicSource::new(start.remote, None, None, LONG);
    let came = || source.remote().counts().wire_bytes / CHUNK_BYTES;
    until("some of it is here", || came() >= 5);
    line.cut();
    until("the client has noticed", || !source.remote().is_there());
    let before = came();
    line.mend();
    until("the rest is asked for", || line.sent(RESUME) > 0);
    read_all(&source, &large);
    let counts = source.remote().counts();
    assert_eq!(counts.streams, 2, "{counts:?}");
    assert_eq!(counts.requests, 0, "{counts:?}");
    assert_eq!(counts.duplicate_bytes, 0, "{counts:?}");
    assert_eq!(came(), u64::from(CHUNKS));
    // Not those that had come.
    let sent = rig.metric("streamed_chunks_total");
    assert!(sent < u64::from(CHUNKS) + before, "{sent}, {before} before");
    assert_eq!((line.sent(START), line.sent(RESUME)), (1, 1));
}

#[test]
fn a_service_of_an_earlier_release_is_read_from() {
    let (rig, large) = serving(Limits::default());
    let plan = plan(&rig);
    let line = Line::to(&rig, 3);
    let client = line.client(|_| {});
    let index = Arc::new(chunks::index::Index::decode(large.index.bytes()).unwrap());
    let source = NicSource::new(client.remote(b"one", index), None, None, LONG);
    source.expect(&plan);
    connected(&client);
    read_all(&source, &large);
    assert_eq!(line.sent(RESUME), 0);
    assert!(line.sent(READ) > 0);
}

/// All that comes until a reader finds it out has to come again.
#[test]
fn what_a_stream_brings_wrong_is_found_out_before_anybody_reads() {
    let mut rig = Rig::new();
    let large = Large::add(&rig);
    large.give_whole_boot(&rig);
    let port = rig.start_at_port(Access::open(), slow()).to_string();
    let any = "127.0.0.1:0".parse().unwrap();
    let line = || {
        let mut line = Link::new(Shape::new(Duration::from_millis(20), 1000));
        let address = line.carry(&any, port.parse().unwrap()).unwrap();
        (line, Address::Tcp(address.to_string()))
    };
    let ((first, address), (_second, other)) = (line(), line());
    let config = ClientConfig {
        address,
        others: vec![other],
        name: b"vm".to_vec(),
        key: None,
        tls: None,
        patience: Patience::default(),
    };
    let client = Client::start(config).unwrap();
    let remote = started(&client, Ask::Chunks).remote;
    first.set_fault(Fault::Lying);
    until("it is found out", || remote.counts().lies > 0);
    // The other service has all of it.
    read_all(&NicSource::new(remote, None, None, LONG), &large);
}
