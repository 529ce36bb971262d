//! Who is refused by a server of ours gets the answer, however much it has sent by then. A socket
//! that is closed over unread bytes takes the answer with it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// More than sockets take in by themselves, and less than what a server throws away.
const BODY: usize = 6 << 20;

struct Server {
    process: Child,
    clients: String,
    admin: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill().and_then(|()| self.process.wait());
    }
}

impl Server {
    /// Starts one whose registry is nowhere.
    fn start(dir: &Path, admin: &[&str]) -> Self {
        let mut server = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        server
            .args(["serve", "--upstream", "http://127.0.0.1:1"])
            .args(["--listen", "127.0.0.1:0", "--blocks", "127.0.0.1:0"])
            .args(["--blocks-open", "--size", "1G", "--admin"])
            .args(admin)
            .arg("--store")
            .arg(dir.join("nic"))
            .env_remove("YOLOFS_LOG");
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut said = |what: &str| {
            let line = lines.next().expect("it ended at once").unwrap();
            line.strip_prefix(what).unwrap().trim().to_owned()
        };
        Self {
            process,
            clients: said("clients"),
            admin: said("admin"),
        }
    }
}

/// Sends a request with a long body, all of it, and returns the answer, which must come whole.
fn answer(mut stream: impl Read + Write, line: &str, headers: &str) -> String {
    let head = format!("{line} HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n{headers}\r\n");
    let sent = stream.write_all(head.as_bytes());
    sent.and_then(|()| stream.write_all(&vec![b'x'; BODY]))
        .expect(line);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect(line);
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
fn refused(stream: impl Read + Write, line: &str, headers: &str, status: &str) {
    let answer = answer(stream, line, headers);
    let wanted = format!("HTTP/1.1 {status}");
    assert!(answer.starts_with(&wanted), "{line}: {answer:?}");
    assert!(answer.contains("\r\n\r\n{"), "{line}: {answer:?}");
}

fn tcp(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let deadline = Some(Duration::from_secs(60));
    stream.set_read_timeout(deadline).unwrap();
    stream
}

#[test]
fn who_sends_much_to_the_mirror_gets_its_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let admin = format!("unix:{}", dir.path().join("admin.sock").display());
    let server = Server::start(dir.path(), &[&admin]);
    for _ in 0..5 {
        let push = "POST /v2/library/a/blobs/uploads/";
        refused(tcp(&server.clients), push, "", "40");
        let put = "PUT /v2/library/a/manifests/latest";
        refused(tcp(&server.clients), put, "", "40");
        // A head that is too long, with all that follows it.
        let headers = format!("Long: {}\r\n", "x".repeat(200 << 10));
        let said = answer(tcp(&server.clients), "GET /v2/", &headers);
        assert!(said.starts_with("HTTP/1.1 431 "), "{said:?}");
    }
}

#[test]
fn who_sends_much_to_the_operators_door_gets_its_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let server = Server::start(dir.path(), &[&format!("unix:{}", path.display())]);
    let unix = || {
        let stream = UnixStream::connect(&path).unwrap();
        let deadline = Some(Duration::from_secs(60));
        stream.set_read_timeout(deadline).unwrap();
        stream
    };
    for _ in 0..5 {
        let chunk = format!("POST /v1/chunks?id={}", "0".repeat(64));
        refused(unix(), &chunk, "", "400");
        refused(unix(), "POST /v1/chunks?id=none", "", "400");
        refused(unix(), "POST /v1/gc", "Origin: http://evil\r\n", "400");
        // Of what Prometheus asks, too.
        refused(unix(), "POST /metrics", "", "404");
    }
    drop(server);
    let token = dir.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap();
    let server = Server::start(dir.path(), &["127.0.0.1:0", "--token-file", token]);
    for _ in 0..5 {
        refused(tcp(&server.admin), "POST /v1/gc", "", "401");
        let wrong = "Authorization: Bearer no\r\n";
        refused(tcp(&server.admin), "POST /v1/chunks", wrong, "401");
    }
}
