//! A server that gives out tokens: signed, for one repository, and for those who know name and
//! password; and a registry that wants them, as Docker Hub does.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;
use tempfile::TempDir;

use crate::registries::{Kind, Registry, USER};

const SERVICE: &str = "test registry";
const ISSUER: &str = "test issuer";

/// A server of tokens, until it is dropped.
#[derive(Debug)]
pub struct TokenServer {
    port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

/// Name and password of a user, and the only repository that its tokens are good for.
pub type Tenant<'a> = ((&'a str, &'a str), &'a str);

#[derive(Debug)]
struct Shared {
    /// What a user shows in `Authorization: Basic`, and the only repository that its tokens are good
    /// for.
    tenants: Vec<(String, String)>,
    /// `key.pem` and `cert.pem`.
    dir: TempDir,
    /// The scopes that were asked for.
    scopes: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl TokenServer {
    /// Starts one that knows [`USER`].
    pub fn start(repository: &str) -> Self {
        Self::start_for(&[(USER, repository)])
    }

    /// Starts one that knows these.
    pub fn start_for(tenants: &[Tenant<'_>]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=tokens";
        let args: Vec<_> = key.split(' ').collect();
        openssl(dir.path(), &args, b"");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            tenants: tenants.iter().map(shown_by).collect(),
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
    pub fn registry(&self) -> Registry {
        let (port, certificate) = (self.port, self.shared.dir.path().join("cert.pem"));
        let auth = format!(
            "auth:\n  token:\n    realm: http://127.0.0.1:{port}/token\n    service: {SERVICE}\n    \
             issuer: {ISSUER}\n    rootcertbundle: {}\n",
            certificate.display()
        );
        Registry::start_with(Kind::Docker, &auth)
    }

    /// Returns a token for a repository and actions (`pull,push`), as a tenant gets it.
    pub fn token(&self, tenant: &Tenant<'_>, actions: &str) -> String {
        let (_, repository) = shown_by(tenant);
        let scope = format!("repository:{repository}:{actions}");
        self.shared.token(&scope, &repository)
    }

    /// Returns the scopes that were asked for until now.
    pub fn scopes(&self) -> Vec<String> {
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
        let shown = headers.iter().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_login = name.eq_ignore_ascii_case("authorization");
            is_login.then(|| value.strip_prefix("Basic "))?
        });
        let mut tenants = self.tenants.iter();
        let known = tenants.find(|(login, _)| Some(&**login) == shown);
        let target = request.split(' ').nth(1).unwrap_or_default();
        let scope = parameter(target, "scope");
        self.scopes.lock().unwrap().push(scope.clone());
        assert_eq!(parameter(target, "service"), SERVICE);
        let (status, body) = match known {
            Some((_, repository)) => {
                let token = self.token(&scope, repository);
                ("200 OK", json!({"token": token}).to_string())
            }
            None => ("401 Unauthorized", "{}".to_owned()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close");
        let mut client = client;
        let _told = write!(client, "{head}\r\n\r\n{body}");
    }

    /// A token of RFC 7519, signed as RS256, with the certificate in it.
    fn token(&self, scope: &str, repository: &str) -> String {
        let mut parts = scope.split(':');
        let (kind, name, actions) = (parts.next(), parts.next(), parts.next());
        let allowed = name == Some(repository);
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

/// Returns what a tenant shows, and its repository.
fn shown_by(((name, password), repository): &Tenant<'_>) -> (String, String) {
    let login = STANDARD.encode(format!("{name}:{password}"));
    (login, (*repository).to_owned())
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
