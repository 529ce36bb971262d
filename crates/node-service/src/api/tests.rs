//! The API over a real socket, in front of a node that is a list.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::Value;

use super::context::ApiContext;
use super::{Api, listen};
use host::admission::Admission;
use node_api::boot_choice::BootChoice;
use node_api::client::{CallError, NodeClient, Received};
use node_api::control::WhenInUse;
use node_api::memory::MemoryNode;
use node_api::spec::MountSpec;

/// Generous: nothing here waits for it to pass.
const DEADLINE: Duration = Duration::from_secs(60);

struct Served {
    socket: PathBuf,
    client: NodeClient,
    _api: Api,
    _dir: tempfile::TempDir,
}

fn served() -> Served {
    served_to(Admission::own())
}

fn served_to(admission: Admission) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("node.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap()); // left behind
    let listener = listen(&socket).unwrap();
    let context = ApiContext::new(Arc::new(MemoryNode::default()), admission);
    Served {
        client: NodeClient::at(&socket),
        _api: Api::serve_to(listener, context).unwrap(),
        socket,
        _dir: dir,
    }
}

impl Served {
    fn send(&self, method: Method, path: &str, body: &str) -> Received {
        self.client
            .exchange(DEADLINE, method, path, body.into())
            .unwrap()
    }

    /// Sends what no client of ours would, and returns all that comes back.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // What the server does not want it reads, too, before it closes.
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }
}

/// Returns the code of an answer that is an error of this status.
fn code(received: &Received, status: u16) -> String {
    let body: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(received.status.as_u16(), status, "{body}");
    let error = body["error"].as_object().unwrap();
    assert!(error["message"].as_str().unwrap().len() > 8, "{body}");
    error["code"].as_str().unwrap().to_owned()
}

fn spec(mountpoint: &str) -> MountSpec {
    let text = format!(r#"{{"source": "/srv/a", "mountpoint": "{mountpoint}", "store": "/s"}}"#);
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_mount_lives_through_the_client() {
    let node = served();
    let made = node.client.make(&spec("/mnt/a")).unwrap();
    assert!(made.new);
    let id = made.mount.status.id;
    assert!(!node.client.make(&spec("/mnt/a")).unwrap().new);
    assert_eq!(node.client.mounts().unwrap().len(), 1);
    assert_eq!(node.client.node().unwrap().mounts, 1);
    let path = format!("/v1/mounts/{id}");
    let shown: Value = serde_json::from_slice(&node.send(Method::GET, &path, "").body).unwrap();
    assert_eq!(shown["mountpoint"], "/mnt/a");
    let all = node.client.prewarm(&id, None).unwrap();
    assert_eq!(all.injected_bytes, 484 * 4096);
    assert_eq!(
        node.client.prewarm(&id, Some(8192)).unwrap().injected_bytes,
        8192
    );
    assert!(
        node.client
            .swap(&id, BootChoice::None)
            .unwrap()
            .status
            .boot
            .is_none()
    );
    let error = node.client.prewarm(&id, None).unwrap_err();
    assert!(matches!(&error, CallError::Refused { status: 409, code, .. } if code == "conflict"));
    assert_eq!(error.to_string(), "it has no boot image");
    node.client.unmount(&id, WhenInUse::Refuse).unwrap();
    assert_eq!(
        code(&node.send(Method::GET, &path, ""), 404),
        "unknown_mount"
    );
    let error = node.client.unmount(&id, WhenInUse::Refuse).unwrap_err();
    assert!(
        matches!(&error, CallError::Refused { status: 404, code, .. } if code == "unknown_mount")
    );
}

#[test]
fn what_is_in_use_goes_lazily() {
    let node = served();
    let id = node
        .client
        .make(&spec("/mnt/busy"))
        .unwrap()
        .mount
        .status
        .id;
    let error = node.client.unmount(&id, WhenInUse::Refuse).unwrap_err();
    assert!(matches!(error, CallError::Refused { status: 409, .. }));
    node.client.unmount(&id, WhenInUse::Detach).unwrap();
    assert!(node.client.mounts().unwrap().is_empty());
}

#[test]
fn a_drained_node_takes_no_mounts_and_says_so() {
    let node = served();
    node.client.make(&spec("/mnt/a")).unwrap();
    let ready = node.send(Method::GET, "/readyz", "");
    assert_eq!(
        (ready.status, &ready.body[..]),
        (StatusCode::OK, &b"ok\n"[..])
    );
    assert_eq!(node.client.drain().unwrap().unmounted, 1);
    assert_eq!(
        code(&node.send(Method::GET, "/readyz", ""), 503),
        "unavailable"
    );
    assert_eq!(
        node.send(Method::GET, "/healthz", "").status,
        StatusCode::OK
    );
    let error = node.client.make(&spec("/mnt/a")).unwrap_err();
    assert!(matches!(error, CallError::Refused { status: 409, .. }));
}

#[test]
fn upgrades_name_a_program() {
    let node = served();
    let upgraded = node.client.upgrade(Path::new("/usr/bin/yolofs")).unwrap();
    assert_eq!(upgraded.workers, 1);
    let error = node.client.upgrade(Path::new("yolofs")).unwrap_err();
    assert!(matches!(error, CallError::Refused { status: 400, .. }));
    let error = node.client.upgrade(Path::new("/bin/false")).unwrap_err();
    assert_eq!(error.to_string(), "it does not run: root cause");
    assert!(matches!(error, CallError::Refused { status: 500, .. }));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let node = served();
    let id = node.client.make(&spec("/mnt/a")).unwrap().mount.status.id;
    let boot = format!("/v1/mounts/{id}/boot");
    let prewarm = format!("/v1/mounts/{id}/prewarm");
    let mount = format!("/v1/mounts/{id}");
    let extra = r#"{"source": "/a", "mountpoint": "/b", "store": "/s", "colour": "red"}"#;
    let cases: [(Method, &str, &str, u16, &str); 18] = [
        (Method::GET, "/", "", 404, "no_such_path"),
        (Method::GET, "/v1", "", 404, "no_such_path"),
        (Method::GET, "/v2/node", "", 404, "no_such_path"),
        (Method::GET, "/v1/mounts/", "", 404, "no_such_path"),
        (Method::GET, "/v1/mounts/../node", "", 404, "no_such_path"),
        (Method::GET, "/v1/mounts/0000", "", 404, "unknown_mount"),
        (Method::POST, "/v1/node", "", 405, "method_not_allowed"),
        (Method::PATCH, &mount, "", 405, "method_not_allowed"),
        (Method::GET, "/v1/node?x=1", "", 400, "invalid"),
        (Method::GET, "/v1/node", "{}", 400, "invalid"),
        (Method::POST, "/v1/mounts", "", 400, "invalid"),
        (Method::POST, "/v1/mounts", "{", 400, "invalid"),
        (Method::POST, "/v1/mounts", extra, 400, "invalid"),
        (Method::PUT, &boot, r#"{"boot": 7}"#, 400, "invalid"),
        (Method::PUT, &boot, r#"{"boot": "nope"}"#, 400, "invalid"),
        (Method::POST, &prewarm, r#"{"budget": 1}"#, 400, "invalid"),
        (
            Method::DELETE,
            &format!("{mount}?lazy=1"),
            "",
            400,
            "invalid",
        ),
        (Method::POST, "/v1/upgrade", "{}", 400, "invalid"),
    ];
    for (method, path, body, status, wanted) in cases {
        let received = node.send(method.clone(), path, body);
        assert_eq!(code(&received, status), wanted, "{method} {path} {body}");
    }
    assert_eq!(
        node.client.mounts().unwrap().len(),
        1,
        "nothing has changed"
    );
}

#[test]
fn other_methods_are_named() {
    let node = served();
    let answer = node.raw(b"PUT /v1/mounts HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("\r\nallow: GET, POST\r\n"), "{answer}");
    assert!(answer.contains("it takes GET, POST"), "{answer}");
}

#[test]
fn long_bodies_and_heads_are_refused() {
    let node = served();
    let long = format!(r#"{{"boot": "{}"}}"#, "x".repeat(64 << 10));
    let received = node.send(Method::POST, "/v1/upgrade", &long);
    assert_eq!(code(&received, 413), "too_large");
    // One that does not say how long it will be.
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000)).repeat(3);
    let head = "POST /v1/upgrade HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = node.raw(format!("{head}{chunk}0\r\n\r\n").as_bytes());
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let answer = node.raw(format!("GET /{} HTTP/1.1\r\n", "x".repeat(9 << 10)).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(node.client.node().is_ok());
}

#[test]
fn nonsense_ends_its_connection_only() {
    let node = served();
    for nonsense in [
        &b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"[..],
        b"hello\r\n\r\n",
    ] {
        let answer = node.raw(nonsense);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
            "{answer}"
        );
    }
    assert!(node.client.node().is_ok());
}

#[test]
fn a_client_that_says_nothing_takes_no_place_from_others() {
    let node = served();
    let silent: Vec<_> = (0..70)
        .map(|_| UnixStream::connect(&node.socket).unwrap())
        .collect();
    // More than there are places: whoever comes next waits until the silent ones are sent away.
    let received = node.send(Method::GET, "/v1/node", "");
    assert_eq!(received.status, StatusCode::OK);
    drop(silent);
}

#[test]
fn many_clients_are_answered() {
    let node = served();
    let ask = |n: u32| {
        let client = node.client.clone();
        move || {
            client
                .make(&spec(&format!("/mnt/{n}")))
                .map(|made| made.new)
        }
    };
    let clients: Vec<_> = (0..40).map(|n| std::thread::spawn(ask(n))).collect();
    for client in clients {
        assert!(client.join().unwrap().unwrap());
    }
    assert_eq!(node.client.mounts().unwrap().len(), 40);
}

#[test]
fn strangers_are_told_why_not() {
    let node = served_to(Admission::of(vec![4_000_000_000]));
    let received = node.send(Method::GET, "/v1/node", "");
    assert_eq!(code(&received, 403), "forbidden");
    let error = node.client.drain().unwrap_err();
    assert!(error.to_string().contains("may not ask"), "{error}");
}

#[test]
fn who_sends_much_and_is_refused_gets_the_answer() {
    let body = "x".repeat(6 << 20);
    let length = body.len();
    let ask = |node: &Served, line: &str| {
        let head = format!("{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        node.raw(format!("{head}{body}").as_bytes())
    };
    let node = served();
    for (line, status) in [
        ("POST /v1/nothing", "404"),
        ("POST /metrics", "405"),
        ("POST /v1/upgrade", "413"),
    ] {
        let answer = ask(&node, line);
        let wanted = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&wanted), "{line}: {answer}");
    }
    let node = served_to(Admission::of(vec![4_000_000_000]));
    let answer = ask(&node, "POST /v1/upgrade");
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[test]
fn nobody_there_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("node.sock");
    let client = NodeClient::at(&socket);
    assert!(matches!(client.node(), Err(CallError::Nobody(path)) if path == socket));
    // A socket that nobody listens on any more.
    drop(listen(&socket).unwrap());
    assert!(socket.exists());
    assert!(matches!(client.node(), Err(CallError::Nobody(_))));
    // Somebody listens, and does not answer.
    let _listener = listen(&socket).unwrap();
    let soon = Duration::from_millis(50);
    let error = client.exchange(soon, Method::GET, "/v1/node", Vec::new());
    assert!(matches!(error, Err(CallError::TimedOut { .. })));
}

#[test]
fn only_the_owner_opens_the_socket() {
    let node = served();
    let mode = std::fs::metadata(&node.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let dir = std::fs::read_dir(node.socket.parent().unwrap()).unwrap();
    assert_eq!(dir.count(), 1, "nothing is left aside");
}
