//! A registry that wants tokens, as Docker Hub does, and a server that gives them out: signed, for
//! one repository, and for those who know name and password.

// Needs no root, but docker-registry and openssl.
#![cfg(feature = "privileged")]
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

mod registries;

use std::fs;
use std::io::{BufRead as _, BufReader, Cursor, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use oci::registry::{Access, Credentials, RegistryConfig, RegistryError, Repository, Transport};
use oci::{Reference, digest_of};
use registries::{Kind, Registry, USER};
use serde_json::json;
use tempfile::TempDir;

const SERVICE: &str = "test registry";
const ISSUER: &str = "test issuer";
/// The only repository that tokens are good for.
const REPOSITORY: &str = "some/app";

/// A server of tokens, until it is dropped.
struct TokenServer {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    /// `key.pem` and `cert.pem`.
    dir: TempDir,
    /// The scopes that were asked for.
    scopes: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl TokenServer {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=tokens";
        let args: Vec<_> = key.split(' ').collect();
        openssl(dir.path(), &args, b"");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            dir,
            scopes: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if serving.over.load(SeqCst) {
                    break;
                }
                serving.answer(&client);
            }
        });
        Self {
            port,
            shared,
            acceptor: Some(acceptor),
        }
    }

    /// Starts a registry that believes these tokens only.
    fn registry(&self) -> Registry {
        let (port, certificate) = (self.port, self.shared.dir.path().join("cert.pem"));
        let auth = format!(
            "auth:\n  token:\n    realm: http://127.0.0.1:{port}/token\n    service: {SERVICE}\n    \
             issuer: {ISSUER}\n    rootcertbundle: {}\n",
            certificate.display()
        );
        Registry::start_with(Kind::Docker, &auth)
    }

    fn scopes(&self) -> Vec<String> {
        self.shared.scopes.lock().unwrap().clone()
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.shared.over.store(true, SeqCst);
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _joined = acceptor.join();
        }
    }
}

impl Shared {
    fn answer(&self, client: &TcpStream) {
        let mut lines = BufReader::new(client).lines().map_while(Result::ok);
        let request = lines.next().unwrap_or_default();
        let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let login = STANDARD.encode(format!("{}:{}", USER.0, USER.1));
        let is_known = headers.iter().any(|line| {
            let (name, value) = line.split_once(": ").unwrap_or_default();
            name.eq_ignore_ascii_case("authorization") && value == format!("Basic {login}")
        });
        let target = request.split(' ').nth(1).unwrap_or_default();
        let scope = parameter(target, "scope");
        self.scopes.lock().unwrap().push(scope.clone());
        assert_eq!(parameter(target, "service"), SERVICE);
        let (status, body) = if is_known {
            ("200 OK", json!({"token": self.token(&scope)}).to_string())
        } else {
            ("401 Unauthorized", "{}".to_owned())
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close");
        let mut client = client;
        let _told = write!(client, "{head}\r\n\r\n{body}");
    }

    /// A token of RFC 7519, signed as RS256, with the certificate in it.
    fn token(&self, scope: &str) -> String {
        let mut parts = scope.split(':');
        let (kind, name, actions) = (parts.next(), parts.next(), parts.next());
        let allowed = name == Some(REPOSITORY);
        let access = allowed.then(|| {
            let actions: Vec<_> = actions.unwrap().split(',').collect();
            json!({"type": kind, "name": name, "actions": actions})
        });
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap().as_secs();
        let pem = fs::read_to_string(self.dir.path().join("cert.pem")).unwrap();
        let der: String = pem.lines().filter(|line| !line.contains("---")).collect();
        let header = json!({"typ": "JWT", "alg": "RS256", "x5c": [der]});
        let claims = json!({
            "iss": ISSUER, "sub": USER.0, "aud": SERVICE, "jti": format!("{now}"),
            "exp": now + 600, "nbf": now - 600, "iat": now,
            "access": access.as_slice(),
        });
        let part = |json: serde_json::Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", part(header), part(claims));
        let args = ["dgst", "-sha256", "-sign", "key.pem"];
        let signature = openssl(self.dir.path(), &args, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns a parameter of a URL, as people would write it.
fn parameter(target: &str, name: &str) -> String {
    let (_, query) = target.split_once('?').unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value);
    let value = value.unwrap_or_default().replace('+', " ");
    value
        .replace("%3A", ":")
        .replace("%2F", "/")
        .replace("%2C", ",")
        .replace("%20", " ")
}

fn openssl(dir: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new("openssl")
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is not installed: apt-get install openssl");
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "openssl {args:?}");
    output.stdout
}

fn go(_done: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn repository(registry: &Registry, name: &str, access: Access, login: Option<&str>) -> Repository {
    let config = RegistryConfig {
        transport: Transport::Plain,
        credentials: login.map(|password| Credentials {
            username: USER.0.to_owned(),
            password: password.to_owned(),
        }),
        ..RegistryConfig::default()
    };
    let reference: Reference = format!("{}/{name}:1", registry.host()).parse().unwrap();
    Repository::open(&reference, access, &config).unwrap()
}

#[test]
fn a_token_is_fetched_for_what_is_to_be_done() {
    let tokens = TokenServer::start();
    let registry = tokens.registry();
    let open = |access, login| repository(&registry, REPOSITORY, access, login);
    for (login, hint) in [(None, "docker login"), (Some("guess"), "are wrong")] {
        let error = open(Access::Pull, login).has_blob(digest_of(b"x"), &mut go);
        let error = error.unwrap_err();
        assert!(
            matches!(error, RegistryError::Unauthorized { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(hint), "{error}");
    }
    let writer = open(Access::Push, Some(USER.1));
    writer
        .push_blob(digest_of(b"x"), 1, Cursor::new(b"x"), &mut go)
        .unwrap();
    assert!(writer.has_blob(digest_of(b"x"), &mut go).unwrap());
    let asked = tokens.scopes();
    assert!(
        asked.contains(&"repository:some/app:pull,push".to_owned()),
        "{asked:?}"
    );
    let before = asked.len();
    let reader = open(Access::Pull, Some(USER.1));
    for _ in 0..3 {
        assert!(reader.has_blob(digest_of(b"x"), &mut go).unwrap());
    }
    // One token for all of them, and for no more than is needed.
    assert_eq!(tokens.scopes()[before..], ["repository:some/app:pull"]);
    // Who may only read is told so, and a token for another repository is none.
    let refused = reader.push_blob(digest_of(b"y"), 1, Cursor::new(b"y"), &mut go);
    assert!(refused.is_err());
    let other = repository(&registry, "other/app", Access::Pull, Some(USER.1));
    let error = other.has_blob(digest_of(b"x"), &mut go).unwrap_err();
    assert!(
        matches!(error, RegistryError::Unauthorized { .. }),
        "{error}"
    );
}
