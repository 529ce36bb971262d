//! Real registries on loopback, and a proxy that treats them badly.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Generous: the machine may be busy with everything else.
const DEADLINE: Duration = Duration::from_secs(60);
/// What a registry that asks for it wants to hear.
pub const USER: (&str, &str) = ("reader", "s3cret:with:colons");

/// Which registry, and how it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Debian's docker-registry, which has no referrers API.
    Docker,
    /// The same, for those who know [`USER`].
    DockerWithUsers,
    /// The same, with a certificate of the authority in `ca.pem`.
    DockerWithTls,
    /// olareg, which has the referrers API.
    Olareg,
}

/// A registry that runs until it is dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    kind: Kind,
    more: String,
    dir: TempDir,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Registry {
    /// Starts one, and waits until it listens.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, "")
    }

    /// Starts one with more lines in its configuration.
    pub fn start_with(kind: Kind, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if kind == Kind::DockerWithTls {
            make_certificates(dir.path());
        }
        for _ in 0..10 {
            // Somebody else may take the port before the registry does: then another one.
            let port = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap()
                .port();
            let mut child = command(kind, dir.path(), port, more).spawn().unwrap();
            if comes_up(&mut child, port) {
                return Self {
                    child,
                    kind,
                    more: more.to_owned(),
                    dir,
                    port,
                };
            }
        }
        panic!(
            "no port for a registry: {}",
            fs::read_to_string(dir.path().join("log")).unwrap_or_default()
        );
    }

    /// Kills it. What it has on the disk stays.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on its port, after it was killed.
    pub fn start_again(&mut self) {
        let mut command = command(self.kind, self.dir.path(), self.port, &self.more);
        self.child = command.spawn().unwrap();
        assert!(comes_up(&mut self.child, self.port), "its port is taken");
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Has it know [`USER`] by another password from now on.
    pub fn set_password(&self, password: &str) {
        write_users(self.dir.path(), password);
    }

    /// Returns the file of the authority that signed its certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }
}

fn command(kind: Kind, dir: &Path, port: u16, more: &str) -> Command {
    let log = fs::File::create(dir.join("log")).unwrap();
    let mut command = if kind == Kind::Olareg {
        let port = port.to_string();
        let mut olareg = Command::new(olareg());
        olareg
            .args(["serve", "--addr", "127.0.0.1", "--port", &port, "--dir"])
            .arg(dir);
        olareg
    } else {
        let config = dir.join("config.yml");
        fs::write(&config, docker_config(kind, dir, port) + more).unwrap();
        let mut docker = Command::new("docker-registry");
        docker.arg("serve").arg(config);
        docker
    };
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    command
}

/// Returns the program that `scripts/registries.sh` makes.
fn olareg() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/registries/olareg");
    assert!(
        made.exists(),
        "{} is missing: run scripts/registries.sh",
        made.display()
    );
    made
}

fn docker_config(kind: Kind, dir: &Path, port: u16) -> String {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut config = format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
         http:\n  addr: 127.0.0.1:{port}\n",
        at("data")
    );
    if kind == Kind::DockerWithTls {
        config += &format!(
            "  tls:\n    certificate: {}\n    key: {}\n",
            at("cert.pem"),
            at("key.pem")
        );
    }
    if kind == Kind::DockerWithUsers {
        write_users(dir, USER.1);
        config += &format!(
            "auth:\n  htpasswd:\n    realm: test\n    path: {}\n",
            at("users")
        );
    }
    config
}

fn write_users(dir: &Path, password: &str) {
    let output = Command::new("htpasswd")
        .args(["-Bbn", USER.0, password])
        .output()
        .unwrap();
    assert!(output.status.success());
    fs::write(dir.join("users"), output.stdout).unwrap();
}

fn make_certificates(dir: &Path) {
    let openssl = |args: &str| {
        let output = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    fs::write(
        dir.join("ext"),
        "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n",
    )
    .unwrap();
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=authority -days 2",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out csr -subj /CN=localhost");
    openssl(
        "x509 -req -in csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out cert.pem",
    );
}

/// Waits until the child listens on the port; `false` if it ended instead.
fn comes_up(child: &mut Child, port: u16) -> bool {
    let started = Instant::now();
    while started.elapsed() < DEADLINE {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if listens(child.id(), port) {
            return true;
        }
        sleep(Duration::from_millis(20));
    }
    panic!("the registry does not come up");
}

/// Whether it is this process, and not another that was faster, who has the port.
fn listens(pid: u32, port: u16) -> bool {
    let socket = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let here =
            fields.get(1)?.ends_with(&format!(":{port:04X}")) && fields.get(3) == Some(&"0A");
        here.then(|| format!("socket:[{}]", fields[9]))
    };
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let tables = tables.into_iter().flatten().collect::<String>();
    let sockets: Vec<_> = tables.lines().filter_map(socket).collect();
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    let mut open = open.filter_map(|fd| fs::read_link(fd.path()).ok());
    open.any(|link| sockets.iter().any(|socket| link == Path::new(socket)))
}

/// A proxy in front of a registry that counts what goes there and comes back, and can cut it or change it.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    state: Arc<State>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that were sent to the registry since it was started.
    forth: AtomicU64,
    /// How many of these are let through before a connection is cut, once; zero for any number.
    forth_max: AtomicU64,
    /// Milliseconds that each 16 KiB of these take.
    forth_wait_ms: AtomicU64,
    /// Bytes that came back since it was started.
    back: AtomicU64,
    /// Bytes that may come back before all connections are cut; negative for any number.
    budget: AtomicI64,
    /// Whether the first cut is the last one.
    once: AtomicBool,
    /// Whether every byte `X` of what comes back becomes a `Y`.
    lies: AtomicBool,
    connections: AtomicU64,
    /// Whether nothing comes back for now.
    holds: AtomicBool,
    over: AtomicBool,
}

impl Proxy {
    /// Starts one in front of a registry.
    pub fn before(registry: &Registry) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        state.budget.store(-1, SeqCst);
        let (to, shared) = (registry.port, Arc::clone(&state));
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.over.load(SeqCst) {
                    break;
                }
                shared.connections.fetch_add(1, SeqCst);
                // A registry that is away takes nothing.
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
                    continue;
                };
                let (from, into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let forth = Arc::clone(&shared);
                spawn(move || forth.bring_forth(&from, &into));
                let shared = Arc::clone(&shared);
                spawn(move || shared.bring_back(&server, &client));
            }
        });
        Self {
            port,
            state,
            acceptor: Some(acceptor),
        }
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns how many bytes came back until now.
    pub fn bytes(&self) -> u64 {
        self.state.back.load(SeqCst)
    }

    /// Returns how many bytes were sent to the registry until now.
    pub fn sent(&self) -> u64 {
        self.state.forth.load(SeqCst)
    }

    /// Cuts a connection when so many more bytes were sent, once.
    pub fn cut_sent_after(&self, bytes: u64) {
        self.state.forth_max.store(self.sent() + bytes, SeqCst);
    }

    /// Returns whether the cut that was asked for is still to come.
    pub fn cuts_sent(&self) -> bool {
        self.state.forth_max.load(SeqCst) > 0
    }

    /// Has what is sent wait for so long in each connection, for each 16 KiB.
    pub fn slow_down(&self, wait_ms: u64) {
        self.state.forth_wait_ms.store(wait_ms, SeqCst);
    }

    /// Returns how many connections were made until now.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(SeqCst)
    }

    /// Cuts every connection after so many more bytes.
    pub fn cut_after(&self, bytes: i64) {
        self.state.budget.store(bytes, SeqCst);
    }

    /// Cuts a connection after so many more bytes, and lets everything else pass.
    pub fn cut_once_after(&self, bytes: i64) {
        self.state.once.store(true, SeqCst);
        self.cut_after(bytes);
    }

    /// Cuts no more.
    pub fn stop_cutting(&self) {
        self.cut_after(-1);
    }

    /// Lets nothing come back any more, and keeps the connections open.
    pub fn hold(&self) {
        self.state.holds.store(true, SeqCst);
    }

    /// Changes what comes back: every byte `X` becomes a `Y`.
    pub fn lie(&self) {
        self.state.lies.store(true, SeqCst);
    }
}

impl State {
    fn bring_forth(&self, mut client: &TcpStream, mut server: &TcpStream) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = client.read(&mut buffer) {
            sleep(Duration::from_millis(self.forth_wait_ms.load(SeqCst)));
            if server.write_all(&buffer[..count]).is_err() {
                break;
            }
            let sent = self.forth.fetch_add(count as u64, SeqCst) + count as u64;
            let max = self.forth_max.load(SeqCst);
            if max > 0 && sent >= max {
                self.forth_max.store(0, SeqCst);
                let _shut = client.shutdown(Shutdown::Both);
                break;
            }
        }
        let _shut = server.shutdown(Shutdown::Write);
    }

    fn bring_back(&self, mut server: &TcpStream, mut client: &TcpStream) {
        let mut buffer = [0; 16 << 10];
        while let Ok(count @ 1..) = server.read(&mut buffer) {
            while self.holds.load(SeqCst) && !self.over.load(SeqCst) {
                sleep(Duration::from_millis(10));
            }
            let budget = self.budget.load(SeqCst);
            let allowed = match usize::try_from(budget) {
                Ok(budget) => budget.min(count),
                Err(_) => count,
            };
            if budget >= 0 {
                self.budget
                    .fetch_sub(i64::try_from(allowed).unwrap(), SeqCst);
            }
            let bytes = &mut buffer[..allowed];
            if self.lies.load(SeqCst) {
                bytes
                    .iter_mut()
                    .filter(|byte| **byte == b'X')
                    .for_each(|byte| *byte = b'Y');
            }
            if client.write_all(bytes).is_err() {
                break;
            }
            self.back.fetch_add(allowed as u64, SeqCst);
            if allowed < count {
                if self.once.load(SeqCst) {
                    self.budget.store(-1, SeqCst);
                }
                break;
            }
        }
        let _shut = client.shutdown(Shutdown::Both);
        let _shut = server.shutdown(Shutdown::Both);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, SeqCst);
        let _woken = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _joined = acceptor.join();
        }
    }
}
