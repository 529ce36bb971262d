//! A mirror between a real registry, behind a proxy with faults, and its clients.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mirror::blobs::{Algorithm, BlobDigest};
use mirror::testing::FaultProxy;
use serde_json::{Value, json};

use lab::{noise, ok, until};
use testkit::layouts::{LayoutDir, layer, named};
use testkit::registries::{Kind, Registry, USER};

/// What clients call the image.
pub(crate) const IMAGE: &str = "docker.io/library/deb:v1";

/// Longer than every deadline of the mirror, with a busy machine in mind.
const CLIENT_DEADLINE: Duration = Duration::from_secs(120);

/// A registry with an image, and what is before it.
pub(crate) struct Site {
    pub(crate) registry: Registry,
    pub(crate) proxy: FaultProxy,
    pub(crate) dir: tempfile::TempDir,
    /// Digest and length of each blob, the longest first.
    pub(crate) blobs: Vec<(String, u64)>,
}

impl Site {
    /// Starts a registry, and pushes an image of a long layer, a short one and a configuration.
    pub(crate) fn new(kind: Kind) -> Self {
        Self::of(Registry::start(kind), kind)
    }

    /// As [`new`](Self::new), with a registry that runs; `kind` says who may push to it.
    pub(crate) fn of(registry: Registry, kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let layout = LayoutDir(&image);
        layout.start();
        let long = layer(&[("long", &noise(1, 6 << 20))]);
        let short = layer(&[("short", &noise(2, 300_000))]);
        let manifest = layout.image(&[long, short], &json!({}));
        layout.index(&[named(manifest.clone(), "v1")]);
        let digest = manifest["digest"].as_str().unwrap().replace(':', "/");
        let manifest = fs::read(image.join("blobs").join(digest)).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let layers = manifest["layers"].as_array().unwrap().iter();
        let blobs = layers.chain([&manifest["config"]]);
        let blob = |blob: &Value| {
            let digest = blob["digest"].as_str().unwrap().to_owned();
            (digest, blob["size"].as_u64().unwrap())
        };
        let blobs = blobs.map(blob).collect();
        let proxy = FaultProxy::start(format!("127.0.0.1:{}", registry.port).parse().unwrap());
        let site = Self {
            proxy: proxy.unwrap(),
            registry,
            dir,
            blobs,
        };
        site.push("library/deb:v1", kind);
        site
    }

    /// Pushes the image once more, under another name.
    pub(crate) fn push(&self, name: &str, kind: Kind) {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
        if kind == Kind::DockerWithUsers {
            skopeo.args(["--dest-creds", &format!("{}:{}", USER.0, USER.1)]);
        }
        skopeo.arg(format!(
            "oci:{}:v1",
            self.dir.path().join("image").display()
        ));
        ok(skopeo.arg(format!("docker://{}/{name}", self.registry.host())));
    }

    /// Returns the bytes of all blobs together.
    pub(crate) fn bytes(&self) -> u64 {
        self.blobs.iter().map(|(_, size)| size).sum()
    }

    pub(crate) fn long(&self) -> (&str, u64) {
        (&self.blobs[0].0, self.blobs[0].1)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a mirror of this registry with a store of its own for each name.
    pub(crate) fn mirror(&self, store: &str, flags: &[&str]) -> Mirror {
        let upstream = format!("http://{}", self.proxy.address());
        let admin = format!("unix:{}", self.path(&format!("{store}.admin")).display());
        let store = self.path(store);
        let mut args = vec!["--upstream", &upstream, "--store", store.to_str().unwrap()];
        args.extend(["--listen", "127.0.0.1:0", "--admin", &admin]);
        args.extend(flags);
        Mirror::start(&args)
    }

    /// Starts a mirror that has its configuration in a file, and believes what it knows for longer
    /// than a test takes.
    pub(crate) fn configured(&self, store: &str, upstream: &Value) -> Mirror {
        let more = json!({"connections_of_one": 6});
        Mirror::start(&["--config", &self.configuration(store, upstream, &more)])
    }

    /// Starts a mirror with more words in its configuration.
    pub(crate) fn with_words(&self, store: &str, more: &Value) -> Mirror {
        let config = self.configuration(store, &json!({}), more);
        Mirror::start(&["--config", &config])
    }

    /// Writes the configuration of a mirror, and returns where it is.
    pub(crate) fn configuration(&self, store: &str, upstream: &Value, more: &Value) -> String {
        let mut upstream = upstream.clone();
        upstream["name"] = "docker.io".into();
        upstream["url"] = format!("http://{}", self.proxy.address()).into();
        let mut config = json!({
            "listen": "0.0.0.0:0", "store": self.path(store),
            "admin": format!("unix:{}", self.path(&format!("{store}.admin")).display()),
            "tag_ttl_seconds": 600, "absent_ttl_seconds": 600, "upstreams": [upstream],
        });
        let words = more.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(words);
        let path = self.path(&format!("{store}.json"));
        fs::write(&path, config.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A running `nicfetch serve`; killed when it is dropped.
pub(crate) struct Mirror {
    pub(crate) child: Child,
    pub(crate) clients: SocketAddr,
    /// Where it listens for its operator: `unix:PATH`.
    pub(crate) admin: String,
    /// Where it serves blocks, if it was told to.
    pub(crate) blocks: Option<String>,
}

impl Mirror {
    fn start(args: &[&str]) -> Self {
        Self::start_as(Command::new(env!("CARGO_BIN_EXE_nicfetch")), args)
    }

    /// Starts one by a command that becomes `nicfetch`.
    pub(crate) fn start_as(mut nicfetch: Command, args: &[&str]) -> Self {
        let mut child = nicfetch
            .arg("serve")
            .args(args)
            .env_remove("YOLOFS_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = |what: &str| {
            let line = lines.next().expect("nicfetch ended at once").unwrap();
            line.strip_prefix(what).unwrap().trim().to_owned()
        };
        let mut clients: SocketAddr = said("clients").parse().unwrap();
        clients.set_ip([127, 0, 0, 1].into());
        let admin = said("admin");
        let blocks = args.contains(&"--blocks").then(|| {
            let line = lines.next().expect("it serves no blocks").unwrap();
            line.strip_prefix("blocks ").unwrap().to_owned()
        });
        Self {
            child,
            clients,
            admin,
            blocks,
        }
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, as systemd does.
    pub(crate) fn terminate(&self) {
        ok(Command::new("kill").arg(self.child.id().to_string()));
    }

    pub(crate) fn get(&self, path: &str, headers: &[&str]) -> Reply {
        request(self.clients, "GET", path, headers)
    }

    pub(crate) fn head(&self, path: &str) -> Reply {
        request(self.clients, "HEAD", path, &[])
    }

    /// Gets a blob, which must come whole.
    pub(crate) fn blob(&self, digest: &str) -> Vec<u8> {
        let reply = self.get(&blob(digest), &[]);
        assert_eq!(reply.status, 200, "{digest}");
        assert!(reply.is_whole(), "{digest}: {} bytes", reply.body.len());
        let found = BlobDigest::of(Algorithm::Sha256, &reply.body);
        assert_eq!(found.to_string(), digest);
        reply.body
    }

    /// Returns a verb of `nicfetch` that asks this mirror.
    pub(crate) fn ask(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        command.args(verb).args(["--admin", &self.admin]);
        command
    }

    /// Returns the sum of all metrics whose lines begin like this.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        self.lines(name).iter().map(|(_, count)| count).sum()
    }

    /// Returns all metrics whose lines begin like this, with what is before the number.
    pub(crate) fn lines(&self, name: &str) -> Vec<(String, u64)> {
        let page = operate(&self.admin, "GET", "/metrics", &[]).body;
        let page = String::from_utf8(page).unwrap();
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines
            .map(|line| {
                let (labels, count) = line.rsplit_once(' ').unwrap();
                (labels.to_owned(), count.parse().unwrap())
            })
            .collect()
    }

    /// Copies the image with skopeo, which fails at every cut.
    pub(crate) fn skopeo(&self, dir: &Path) -> Command {
        let config = dir.with_extension("conf");
        fs::write(
            &config,
            format!(
                "[[registry]]\nprefix = \"docker.io\"\nlocation = \"docker.io\"\nblocked = false\n\
                 [[registry.mirror]]\nlocation = \"{}\"\ninsecure = true\n",
                self.clients
            ),
        )
        .unwrap();
        let mut skopeo = Command::new("skopeo");
        skopeo.arg("--registries-conf").arg(config);
        skopeo.args(["copy", "--insecure-policy", &format!("docker://{IMAGE}")]);
        skopeo.arg(format!("dir:{}", dir.display()));
        skopeo
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}

pub(crate) fn blob(digest: &str) -> String {
    format!("/v2/library/deb/blobs/{digest}")
}

/// What came back, however it ended.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// Whether all bytes came that were promised.
    pub(crate) fn is_whole(&self) -> bool {
        self.headers["content-length"] == self.body.len().to_string()
    }
}

/// Makes one request on a connection of its own.
pub(crate) fn request(to: SocketAddr, method: &str, path: &str, headers: &[&str]) -> Reply {
    ask_over(connect(to), method, path, headers)
}

/// Asks as the operator does, at `unix:PATH`.
pub(crate) fn operate(admin: &str, method: &str, path: &str, headers: &[&str]) -> Reply {
    let socket = admin.strip_prefix("unix:").unwrap();
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(CLIENT_DEADLINE)).unwrap();
    ask_over(stream, method, path, headers)
}

fn ask_over(mut stream: impl Read + Write, method: &str, path: &str, headers: &[&str]) -> Reply {
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: mirror\r\nConnection: close\r\n"
    )
    .unwrap();
    for header in headers {
        write!(stream, "{header}\r\n").unwrap();
    }
    stream.write_all(b"\r\n").unwrap();
    read_reply(stream)
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(CLIENT_DEADLINE)).unwrap();
    stream
}

/// Connects from a certain address of this machine.
pub(crate) fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let connecting = async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    };
    let stream = runtime.block_on(connecting);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(CLIENT_DEADLINE)).unwrap();
    stream
}

/// Reads an answer to its end, which may be a cut.
pub(crate) fn read_reply(mut stream: impl Read) -> Reply {
    let mut all = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        all.extend_from_slice(&chunk[..count]);
    }
    let end = all.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("no answer came");
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let pairs = lines.filter_map(|line| line.split_once(": "));
    Reply {
        status: status.parse().unwrap(),
        headers: pairs
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect(),
        body: all[end + 4..].to_vec(),
    }
}

/// Waits until the mirror has ended, and returns its code.
pub(crate) fn ended(mirror: &mut Mirror) -> Option<i32> {
    let mut code = None;
    until("the mirror to end", || {
        code = mirror.child.try_wait().unwrap();
        code.is_some()
    });
    code.and_then(|status| status.code())
}

/// A running `nicfetch serve` that has no registries, and serves blocks to everybody; killed when it
/// is dropped.
pub(crate) struct BlockServer {
    pub(crate) child: Child,
    /// Where it listens for its operator: `unix:PATH`.
    pub(crate) admin: String,
    /// Where it serves blocks.
    pub(crate) address: String,
}

impl BlockServer {
    pub(crate) fn start(store: &Path, socket: &Path) -> Self {
        let address = format!("unix:{}", socket.display());
        let admin = format!("unix:{}", socket.with_extension("admin").display());
        let mut child = Command::new(env!("CARGO_BIN_EXE_nicfetch"))
            .args(["serve", "--admin", &admin, "--size", "4G", "--store"])
            .arg(store)
            .args(["--blocks", &address, "--blocks-open"])
            .env_remove("YOLOFS_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines: Vec<_> = lines.take(2).map(Result::unwrap).collect();
        assert_eq!(lines[0], format!("admin {admin}"));
        assert_eq!(lines[1], format!("blocks {address}"));
        Self {
            child,
            admin,
            address,
        }
    }

    /// Returns a verb of `nicfetch` that asks this one.
    pub(crate) fn ask(&self, verb: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        command.args([verb, "--admin", &self.admin]);
        command
    }
}

impl Drop for BlockServer {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
