//! The API as clients of any kind meet it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{BaseSpec, Config, Exit, ExitStatus, Phase, Request, ZygoteSpec};
use sandbox_handlers::{Budget, HandlerSpec};
use sandbox_service::Daemon;
use sandbox_service::api::{Api, listen};
use sandbox_service::bodies::{BODY_MAX_BYTES, Create, Exec};
use sandbox_service::client::{CallError, Client};

/// A daemon in this process.
struct Served {
    dir: tempfile::TempDir,
    cgroup: String,
    daemon: Arc<Daemon>,
    _api: Api,
}

impl Served {
    fn start(name: &str) -> Self {
        assert!(nix_is_root(), "this test needs root");
        let dir = tempfile::tempdir().unwrap();
        let cgroup = format!("sandbox-api-test/{}-{name}", std::process::id());
        let config = Config {
            first_uid: 0x7400_0000 + std::process::id() % 1000 * 0x1_0000,
            sandboxes_max: 64,
            ..Config::new(dir.path(), &cgroup)
        };
        let daemon = Arc::new(
            Daemon::open(config, &dir.path().join("packages"), Budget::default()).unwrap(),
        );
        let listener = listen(&dir.path().join("api.sock")).unwrap();
        let served = Self {
            _api: Api::serve(listener, Arc::clone(&daemon)).unwrap(),
            daemon,
            dir,
            cgroup,
        };
        let base = BaseSpec {
            name: "host".to_owned(),
            root: "/".into(),
            hide: vec!["work".to_owned()],
        };
        served.client().add_base(&base).unwrap();
        served
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    fn client(&self) -> Client {
        Client::at(self.socket())
    }

    /// Sends bytes as they are, and returns what comes back.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // The daemon may have answered and closed before it has taken all.
        let _cut_off = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let len = body.len();
        self.raw(
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n\r\n{body}")
                .as_bytes(),
        )
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _others =
            std::fs::remove_dir(PathBuf::from("/sys/fs/cgroup/unified").join(&self.cgroup));
    }
}

fn nix_is_root() -> bool {
    let id = std::process::Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn a_sandbox_is_made_and_told_of() {
    let served = Served::start("made");
    let client = served.client();
    let request = Request::new("host", &["/bin/sh", "-c", "echo 1; exit 4"]);
    let wait_ms = 60_000;
    let create = Create {
        request,
        wait_ms,
        requires: vec![],
    };
    let seen = client.create(&create).unwrap();
    let exit = Exit {
        status: ExitStatus::Code(4),
        cause: None,
    };
    assert_eq!(seen.sandbox.phase, Phase::Ended(exit));
    assert_eq!(seen.output.unwrap().stdout, "1\n");
    assert_eq!(client.list().unwrap(), [seen.sandbox]);
    let page = served.ask("GET", "/metrics", "");
    assert!(page.contains("sandbox_started_total 1\n"), "{page}");
    assert!(served.ask("GET", "/healthz", "").ends_with("ok\n"));
    // It needs a daemon.
    let nobody = Client::at(served.dir.path().join("other.sock"));
    assert!(matches!(nobody.stats(), Err(CallError::Nobody(_))));
}

#[test]
fn what_makes_no_sense_is_refused_and_said_why() {
    let served = Served::start("refused");
    let cases = [
        (
            served.ask("GET", "/nothing", ""),
            "404",
            "there is no GET /nothing",
        ),
        (
            served.ask("PUT", "/v1/sandboxes", "{}"),
            "404",
            "there is no PUT",
        ),
        (
            served.ask("POST", "/v1/sandboxes", "{"),
            "400",
            "the body is no such request",
        ),
        (
            served.ask(
                "POST",
                "/v1/sandboxes",
                r#"{"request": {"base": "host", "command": [], "more": 1}}"#,
            ),
            "400",
            "more",
        ),
        (
            served.ask(
                "POST",
                "/v1/sandboxes",
                r#"{"request": {"base": "host", "command": []}}"#,
            ),
            "400",
            "absolute path",
        ),
        (
            served.ask(
                "POST",
                "/v1/sandboxes",
                r#"{"request": {"base": "none", "command": ["/bin/true"]}}"#,
            ),
            "404",
            "no base none",
        ),
        (
            served.ask("GET", "/v1/sandboxes/x?wait_ms=y", ""),
            "400",
            "wait_ms",
        ),
        (
            served.ask("GET", "/v1/sandboxes/x", ""),
            "404",
            "no sandbox x",
        ),
        (
            served.ask("DELETE", "/v1/zygotes/x", ""),
            "404",
            "no Zygote x",
        ),
        (
            served.ask("POST", "/v1/bases", r#"{"name": "host", "root": "/"}"#),
            "409",
            "already",
        ),
        (
            served.ask("POST", "/v1/bases", r#"{"name": "b", "root": "/nowhere"}"#),
            "500",
            "/nowhere",
        ),
    ];
    for (answer, status, says) in cases {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(answer.contains(says), "{says}: {answer}");
    }
    assert!(served.client().list().unwrap().is_empty());
}

#[test]
fn a_zygote_that_is_evicted_leaves_others_of_its_kind_to_the_next_start() {
    let served = Served::start("equal");
    let add = |module| {
        let spec = ZygoteSpec::new("host", "/usr/bin/python3", &[module]);
        served.daemon.add_zygote(spec).unwrap().id
    };
    let [first, second, _other] = ["json", "json", "ssl"].map(add);
    let kept = || {
        let text = std::fs::read(served.dir.path().join("settings.json")).unwrap();
        let settings: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let zygotes = settings["zygotes"].as_array().unwrap().clone();
        let modules = zygotes.iter().map(|zygote| zygote["modules"].to_string());
        modules.collect::<Vec<_>>()
    };
    served.daemon.evict(&first).unwrap();
    assert_eq!(kept(), [r#"["json"]"#, r#"["ssl"]"#]);
    served.daemon.evict(&second).unwrap();
    assert_eq!(kept(), [r#"["ssl"]"#]);
}

#[test]
fn no_client_keeps_the_others_from_being_answered() {
    let served = Served::start("hostile");
    // Connections that say nothing, and one whose head never ends.
    let silent: Vec<_> = (0..20)
        .map(|_| UnixStream::connect(served.socket()).unwrap())
        .collect();
    let mut endless = UnixStream::connect(served.socket()).unwrap();
    endless.write_all(b"GET /v1/stats HTTP/1.1\r\nx: ").unwrap();
    let long = "y".repeat(BODY_MAX_BYTES + 1);
    let answer = served.ask("POST", "/v1/sandboxes", &long);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "{answer}"
    );
    assert!(!served.raw(b"\0\0\0\0\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(
        !served
            .raw(&b"GET / HTTP/1.1\r\n".repeat(4096))
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(served.client().stats().unwrap().live, 0);
    drop((silent, endless));
}

#[test]
fn the_front_answers_for_handlers_and_for_nothing_else() {
    let served = Served::start("front");
    let code = served.dir.path().join("code");
    std::fs::create_dir(&code).unwrap();
    let text =
        "import time\ndef handle(event):\n  time.sleep(event.get('s', 0))\n  return event['a'] + 1";
    std::fs::write(code.join("handler.py"), text).unwrap();
    let spec = HandlerSpec {
        instances_max: 1,
        queue_max: 0,
        ..HandlerSpec::python("adds", "host", code)
    };
    served.client().add_handler(&spec).unwrap();
    assert_eq!(
        served
            .client()
            .call_handler("adds", &serde_json::json!({"a": 1}))
            .unwrap(),
        2
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _front = Api::serve_front(listener, Arc::clone(&served.daemon)).unwrap();
    let ask = |head: &str, body: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let len = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask("POST /run/adds", "{\"a\": 41}").ends_with("\r\n\r\n42"));
    assert!(ask("POST /run/adds", "{}").starts_with("HTTP/1.1 502 "));
    assert!(ask("POST /run/adds", "{").starts_with("HTTP/1.1 400 "));
    assert!(ask("POST /run/none", "{}").starts_with("HTTP/1.1 404 "));
    for head in [
        "GET /v1/sandboxes",
        "POST /v1/sandboxes",
        "GET /metrics",
        "DELETE /v1/handlers/adds",
    ] {
        assert!(ask(head, "").starts_with("HTTP/1.1 404 "), "{head}");
    }
    std::thread::scope(|scope| {
        let long = scope.spawn(|| ask("POST /run/adds", "{\"a\": 1, \"s\": 1000}"));
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while served.client().handlers().unwrap()[0].idle > 0 {
            assert!(std::time::Instant::now() < deadline);
        }
        let answer = ask("POST /run/adds", "{\"a\": 1}");
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
        for sandbox in served.client().list().unwrap() {
            served.client().kill(&sandbox.id).unwrap();
        }
        assert!(long.join().unwrap().starts_with("HTTP/1.1 502 "));
    });
    let stats = served.client().stats().unwrap().handlers;
    assert!(
        stats.busy == 1 && stats.hits > 0 && stats.failed == 2,
        "{stats:?}"
    );
    served.client().remove_handler("adds").unwrap();
    assert!(served.client().handlers().unwrap().is_empty());
}

#[test]
fn what_a_program_says_is_there_though_what_it_has_started_goes_on() {
    let served = Served::start("exec");
    let request = Request::new("host", &["/bin/sleep", "1000"]);
    let create = Create {
        request,
        wait_ms: 0,
        requires: vec![],
    };
    let id = served.client().create(&create).unwrap().sandbox.id;
    let script = "echo out; echo err >&2; sleep 1000 & exit 5";
    let exec = Exec {
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        timeout_ms: 60_000,
    };
    let executed = served.client().exec(&id, &exec).unwrap();
    assert_eq!(executed.status, Some(ExitStatus::Code(5)));
    let said = [executed.output.stdout, executed.output.stderr];
    assert_eq!(said, ["out\n", "err\n"]);
    let is_reader = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name == "sandbox-output\n")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    assert_eq!(tasks.map(is_reader).filter(|is| *is).count(), 0);
    served.client().kill(&id).unwrap();
    let ended = served.client().wait(&id, Duration::from_secs(60)).unwrap();
    assert!(matches!(ended.sandbox.phase, Phase::Ended(_)));
}
