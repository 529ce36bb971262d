//! What travels, and what must not.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;

use host::framed::{DESCRIPTORS_MAX, HEADER, PROTOCOL};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use node_records::hello::HelloBytes;

use serde::de::DeserializeOwned;

use super::*;
use crate::descriptors::MountDescriptors;
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(30);
/// For a fuzzer that runs beside others: nothing in it waits.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

fn adoption() -> Adoption {
    let spec = serde_json::json!({"source": "/srv", "mountpoint": "/mnt", "store": "/store"});
    Adoption {
        id: "abc".to_owned(),
        spec: serde_json::from_value(spec).unwrap(),
        hello: HelloBytes {
            request: vec![0, 1, 254, 255],
            answer: Vec::new(),
        },
    }
}

#[test]
fn a_worker_that_accepts_no_connection_is_not_waited_for_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    // There is room for one connection that is not accepted.
    let flags = SockFlag::SOCK_CLOEXEC;
    let busy = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    bind(busy.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&busy, Backlog::new(0).unwrap()).unwrap();
    let _waiting = UnixStream::connect(&path).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let worker = (std::process::id(), &*path);
        let patience = Duration::from_millis(20);
        let name = String::new();
        let asked = ask(worker, &WorkerRequest::Detach { name }, &[], patience);
        let _heard = tell.send(asked);
    });
    let asked = told.recv_timeout(PATIENCE).expect("it waits without end");
    let error = format!("{:#}", asked.unwrap_err());
    assert!(error.contains("accepted no connection"), "{error}");
}

#[test]
fn an_adoption_arrives_with_its_descriptors() {
    let (node, worker) = UnixStream::pair().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    let held = MountDescriptors {
        device: file(),
        source: Some(file()),
        names: file(),
        private: Some(file()),
    };
    let question = WorkerRequest::Adopt(Box::new(adoption()));
    send(&node, &question, &held.in_order(), deadline).unwrap();
    drop(held);
    let (question, files) = receive(&worker, deadline).unwrap();
    let WorkerRequest::Adopt(arrived) = question else {
        panic!("{question:?}")
    };
    assert_eq!(*arrived, adoption());
    let arrived = MountDescriptors::received(&arrived.spec, files).unwrap();
    assert!(arrived.source.is_some() && arrived.private.is_some());
}

#[test]
fn another_protocol_and_nonsense_are_refused_in_words() {
    let deadline = Instant::now() + PATIENCE;
    let said = |bytes: &[u8]| {
        let (node, worker) = UnixStream::pair().unwrap();
        rawio::passing::send(node.as_fd(), bytes, &[]).unwrap();
        drop(node);
        let error = receive::<WorkerRequest>(&worker, deadline).unwrap_err();
        format!("{error:#}")
    };
    assert!(said(&[9, 0, 0, 0, 1, 0, 0, 0]).contains("version 9"));
    assert!(said(&[1, 0, 0, 0, 255, 255, 255, 255]).contains("exceeds the limit"));
    assert!(said(&[1, 0, 0, 0, 2, 0, 0, 0, b'{']).contains("in the middle"));
    assert!(said(&[1, 0, 0, 0, 2, 0, 0, 0, b'{', b'}']).contains("decoding"));
    assert!(said(&[]).contains("in the middle"));
}

#[test]
fn more_descriptors_than_a_mount_has_are_refused() {
    let file = tempfile::tempfile().unwrap();
    let deadline = Instant::now() + PATIENCE;
    for (count, taken) in [(DESCRIPTORS_MAX, true), (DESCRIPTORS_MAX + 1, false)] {
        let (node, worker) = UnixStream::pair().unwrap();
        let question = WorkerRequest::Status { id: None };
        let text = serde_json::to_vec(&question).unwrap();
        let mut bytes = PROTOCOL.to_le_bytes().to_vec();
        bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text);
        // One with each byte: a message may come in as many pieces as it has bytes.
        for (place, byte) in bytes.iter().enumerate() {
            let beside = [file.as_fd()];
            let beside = if place < count { &beside[..] } else { &[] };
            rawio::passing::send(node.as_fd(), &[*byte], beside).unwrap();
        }
        let received = receive::<WorkerRequest>(&worker, deadline);
        assert_eq!(received.is_ok(), taken, "{count}");
    }
}

proptest! {
    /// Whatever a broken worker or node sends: an error, or a message that says the same when it is
    /// sent on. `fuzz/fuzz_targets/wire.rs` asks the same of inputs that it finds itself.
    #[test]
    fn any_bytes_are_a_message_or_an_error(
        header in prop::option::of(any::<[u8; HEADER]>()),
        text in message(),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let length = u32::try_from(text.len()).unwrap();
        let right = [PROTOCOL.to_le_bytes(), length.to_le_bytes()].concat();
        let mut bytes = header.map_or(right, |header| header.to_vec());
        bytes.extend(text);
        if !whole {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let received = || {
            let (node, worker) = UnixStream::pair().unwrap();
            rawio::passing::send(node.as_fd(), &bytes, &[]).unwrap();
            drop(node);
            worker
        };
        let deadline = Instant::now() + FOR_EVER;
        if let Ok((question, _)) = receive::<WorkerRequest>(&received(), deadline) {
            same(&question);
        }
        if let Ok((answer, _)) = receive::<WorkerResponse>(&received(), deadline) {
            same(&answer);
        }
    }
}

/// Bytes, and JSON that is nearly a question or an answer.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "ask",
        "answer",
        "adopt",
        "status",
        "prewarm",
        "swap",
        "heard",
        "let_go",
        "close",
        "hand",
        "adopted",
        "done",
        "handed",
        "refused",
        "prewarmed",
        "\"ask\": \"status\"",
        "\"ask\": \"hand\", \"id\": \"a\"",
        "\"answer\": \"done\"",
        "\"answer\": \"adopted\", \"hello\": \"00ff\"",
        "\"fault\": \"failed\"",
        "\"why\": \"x\"",
        "\"boot\": \"auto\"",
        "\"budget_bytes\": 1e9",
        "null",
        "0",
        "-1",
        "\\ud800",
        "é",
    ]);
    let nearly = prop::collection::vec(words, 0..12).prop_map(|words| words.concat().into_bytes());
    let object = nearly
        .clone()
        .prop_map(|inner| [b"{", &inner[..], b"}"].concat());
    prop_oneof![prop::collection::vec(any::<u8>(), 0..512), nearly, object]
}

/// It is sent and comes as what it was.
fn same<T: Serialize + DeserializeOwned>(message: &T) {
    let (node, worker) = UnixStream::pair().unwrap();
    let deadline = Instant::now() + FOR_EVER;
    send(&node, message, &[], deadline).unwrap();
    let (again, _) = receive::<T>(&worker, deadline).unwrap();
    let text = |message: &T| serde_json::to_value(message).unwrap();
    assert_eq!(text(&again), text(message));
}

#[test]
fn who_does_not_answer_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let said = |pid| {
        let patience = Duration::from_millis(50);
        let error = ask(
            (pid, &path),
            &WorkerRequest::Status { id: None },
            &[],
            patience,
        )
        .unwrap_err();
        format!("{error:#}")
    };
    let waited = said(std::process::id());
    assert!(
        waited.contains("w.sock") && waited.contains("no response"),
        "{waited}"
    );
    // Descriptors are for that process only.
    assert!(said(1).contains("is not the worker 1"));
}

#[test]
fn bytes_are_hexadecimal_digits() {
    let hello = adoption().hello;
    let json = serde_json::to_string(&hello).unwrap();
    assert!(json.contains("0001feff"), "{json}");
    assert_eq!(serde_json::from_str::<HelloBytes>(&json).unwrap(), hello);
    assert!(serde_json::from_str::<HelloBytes>(r#"{"request": "0"}"#).is_err());
    assert!(serde_json::from_str::<HelloBytes>(r#"{"request": "é"}"#).is_err());
}
