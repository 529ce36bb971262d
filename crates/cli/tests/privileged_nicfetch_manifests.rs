//! Manifests that a hostile registry sends, and clients that ask for many: what is kept of them has a
//! bound, on the disk and in memory, and others are served.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use lab::json as asked;
use mirror::blobs::{Algorithm, BlobDigest};
use nic::{Mirror, connect};
use testkit::layouts::MANIFEST;

const MIB: u64 = 1 << 20;

/// A registry that has a manifest for every tag, by the tag's first letter: `s`mall, `l`ong, one that
/// names `m`any blobs, and one that is `w`ide: as many as an image can have.
struct Hostile {
    address: SocketAddr,
    sent: Arc<Sent>,
}

/// What it has sent so far.
#[derive(Default)]
struct Sent {
    bodies: AtomicU64,
    blobs: AtomicU64,
    /// The tag of each manifest, by its digest.
    tags: Mutex<HashMap<String, String>>,
}

impl Hostile {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<Sent>::default();
        let all = Arc::clone(&sent);
        // It ends with the test.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let sent = Arc::clone(&all);
                std::thread::spawn(move || {
                    let _client_is_gone = answer(&client.unwrap(), &sent);
                });
            }
        });
        Self { address, sent }
    }

    fn mirror(&self, store: &Path) -> Mirror {
        let upstream = format!("docker.io=http://{}", self.address);
        let admin = format!("unix:{}", store.with_extension("admin").display());
        let store = store.to_str().unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        command.env("YOLOFS_LOG", "warn");
        let flags = ["--upstream", &upstream, "--store", store, "--size", "1G"];
        let places = ["--listen", "127.0.0.1:0", "--admin", &admin];
        Mirror::start_as(command, &[&flags[..], &places].concat())
    }
}

fn answer(client: &TcpStream, sent: &Sent) -> std::io::Result<()> {
    let mut lines = BufReader::new(client).lines();
    loop {
        let Some(line) = lines.next() else {
            return Ok(());
        };
        let line = line?;
        while !lines.next().transpose()?.unwrap_or_default().is_empty() {}
        let asked = line
            .split(' ')
            .nth(1)
            .and_then(|path| path.rsplit_once("/manifests/"));
        let mut client = client;
        let blob = (0..2).find(|number| line.contains(&blob_path(*number)));
        if let Some(number) = blob {
            let body = blob_of(number);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            client.write_all(head.as_bytes())?;
            if line.starts_with("GET") {
                // Before: whoever has read it looks at the number.
                sent.blobs.fetch_add(1, SeqCst);
                client.write_all(&body)?;
            }
            continue;
        }
        let Some((_, asked)) = asked else {
            client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let tag = sent.tags.lock().unwrap().get(asked).cloned();
        let tag = tag.unwrap_or_else(|| asked.to_owned());
        let body = manifest(&tag);
        let digest = BlobDigest::of(Algorithm::Sha256, &body);
        sent.tags.lock().unwrap().insert(digest.to_string(), tag);
        write!(
            client,
            "HTTP/1.1 200 OK\r\nContent-Type: {MANIFEST}\r\nContent-Length: {}\r\n\
             Docker-Content-Digest: {digest}\r\n\r\n",
            body.len()
        )?;
        if line.starts_with("GET") {
            sent.bodies.fetch_add(body.len() as u64, SeqCst);
            client.write_all(&body)?;
        }
    }
}

/// Returns the content of one of the blobs that are not empty.
fn blob_of(number: u8) -> Vec<u8> {
    vec![number; 1 << 20]
}

fn blob_path(number: u8) -> String {
    let digest = BlobDigest::of(Algorithm::Sha256, &blob_of(number));
    format!("/v2/library/deb/blobs/{digest}")
}

/// Returns the manifest of a tag.
fn manifest(tag: &str) -> Vec<u8> {
    let (len, layers): (usize, u64) = match tag.as_bytes()[0] {
        b'l' => (4 << 20, 1),
        b'm' => (4 << 20, 40_000),
        b'w' => (0, 1000),
        _ => (0, 5),
    };
    let layer = |number: u64| format!(r#"{{"digest":"sha256:{:064x}"}}"#, hash(tag, number));
    let layers: Vec<_> = (0..layers).map(layer).collect();
    let mut text = format!(r#"{{"tag":"{tag}","layers":[{}]}}"#, layers.join(","));
    text.push_str(&" ".repeat(usize::saturating_sub(len, text.len())));
    text.into_bytes()
}

fn hash(tag: &str, number: u64) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    (tag, number).hash(&mut hasher);
    hasher.finish()
}

fn path(tag: &str) -> String {
    format!("/v2/library/deb/manifests/{tag}")
}

/// Returns how many bytes the kernel holds for each client of a server, by the client's port: what it has
/// not sent or got acknowledged, and what the client has not read.
fn taken_by_kernel(server: SocketAddr) -> HashMap<u16, u64> {
    let mut taken = HashMap::new();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    for line in table.lines().skip(1) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let port = |field: &str| u16::from_str_radix(&field[9..], 16).unwrap();
        let (here, there) = (port(fields[1]), port(fields[2]));
        let (sent, read) = fields[4].split_once(':').unwrap();
        let bytes = |field: &str| u64::from_str_radix(field, 16).unwrap();
        if here == server.port() {
            *taken.entry(there).or_default() += bytes(sent);
        } else if there == server.port() {
            *taken.entry(here).or_default() += bytes(read);
        }
    }
    taken
}

/// Pulls a manifest, which must come as the registry has it.
fn pull(mirror: &Mirror, tag: &str) {
    let reply = mirror.get(&path(tag), &[]);
    assert_eq!(reply.status, 200, "{tag}");
    assert!(reply.body == manifest(tag), "{tag}");
}

/// Returns the most memory that a mirror had.
fn peak(mirror: &Mirror) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mirror.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    peak.parse::<u64>().unwrap() << 10
}

fn catalog(mirror: &Mirror, store: &Path) -> u64 {
    let status = asked(&mut mirror.ask(&["status", "--json"]));
    assert_eq!(status["catalog_budget_bytes"], 64 * MIB, "{status}");
    let len = fs::metadata(store.join("mirror/catalog.redb"))
        .unwrap()
        .len();
    assert_eq!(status["catalog_bytes"], len, "{status}");
    assert_eq!(mirror.metric("nicfetch_mirror_catalog_bytes "), len);
    assert_eq!(
        mirror.metric("nicfetch_mirror_catalog_budget_bytes "),
        64 * MIB
    );
    len
}

#[test]
fn privileged_manifests_of_a_hostile_registry_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let registry = Hostile::start();
    let mirror = registry.mirror(&store);
    pull(&mirror, "small");
    for number in 0..40 {
        for kind in ["l", "m", "w"] {
            pull(&mirror, &format!("{kind}{number}"));
        }
        let len = catalog(&mirror, &store);
        assert!(len <= 64 * MIB, "{len} after {number}");
    }
    let (most, manifests) = (peak(&mirror), mirror.metric("nicfetch_mirror_manifests "));
    println!("{most} bytes of memory, {manifests} manifests");
    assert!(most < 256 * MIB, "{most}");
    assert!(manifests >= 5, "{manifests}");
    // What was there before is there still, also for the next process.
    let before = registry.sent.bodies.load(SeqCst);
    pull(&mirror, "small");
    mirror.kill();
    let mirror = registry.mirror(&store);
    pull(&mirror, "small");
    assert_eq!(registry.sent.bodies.load(SeqCst), before);
    assert!(peak(&mirror) < 256 * MIB, "{}", peak(&mirror));
}

#[test]
fn privileged_clients_that_take_nothing_do_not_fill_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Hostile::start();
    let mirror = registry.mirror(&dir.path().join("store"));
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut client = connect(mirror.clients);
        let path = path(&format!("l{number}"));
        write!(client, "GET {path} HTTP/1.1\r\nHost: mirror\r\n\r\n").unwrap();
        idle.push(client);
    }
    // Each has the head of its answer: the whole of it, or that there is none.
    let mut served = Vec::new();
    for client in &idle {
        let mut head = String::new();
        BufReader::new(client).read_line(&mut head).unwrap();
        match head.split(' ').nth(1) {
            Some("200") => served.push(client.local_addr().unwrap().port()),
            other => assert_eq!(other, Some("404"), "{head}"),
        }
    }
    // What the kernel has taken is no longer in our memory, and its room is given back: so it must not
    // take an answer whole, of a client that takes nothing.
    let taken = taken_by_kernel(mirror.clients);
    let taken: Vec<_> = served.iter().map(|port| taken[port]).collect();
    println!("the kernel has {taken:?} bytes of what is served");
    let most = peak(&mirror);
    println!("{most} bytes of memory, {} served", served.len());
    assert!(taken.iter().all(|bytes| *bytes < MIB), "{taken:?}");
    assert_eq!(served.len(), 16, "as many as there is room for");
    assert!(most < 256 * MIB, "{most}");
    // Others get what is not long, and the rest when those have gone.
    pull(&mirror, "small");
    drop(idle);
    lab::until("there is room again", || {
        mirror.get(&path("l0"), &[]).status == 200
    });
}

/// A store on a small file system of its own, until it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Self {
        let small = Self(tempfile::tempdir().unwrap());
        fs::create_dir(small.store()).unwrap();
        let mut mount = std::process::Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs"]);
        lab::ok(mount.arg(small.store()));
        small
    }

    fn store(&self) -> std::path::PathBuf {
        self.0.path().join("store")
    }

    fn remount(&self, how: &str) {
        let mut mount = std::process::Command::new("mount");
        lab::ok(mount.args(["-o", how]).arg(self.store()));
    }

    /// Takes all of its room, and returns the file that has it.
    fn fill(&self) -> std::path::PathBuf {
        let filler = self.store().join("filler");
        let mut file = fs::File::create(&filler).unwrap();
        let full = std::iter::repeat_with(|| file.write_all(&[7; 4096]));
        let full = full.flat_map(Result::err).next().unwrap();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        filler
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _umounted = std::process::Command::new("umount")
            .args(["-l".as_ref(), self.store().as_os_str()])
            .status();
    }
}

#[test]
fn privileged_after_the_disk_was_full_manifests_are_kept_again() {
    let small = Small::mount();
    let store = small.store();
    let registry = Hostile::start();
    let mirror = registry.mirror(&store);
    pull(&mirror, "small");
    let filler = small.fill();
    // While there is no room, each comes from the registry.
    for number in 0..300 {
        pull(&mirror, &format!("s{number}"));
    }
    pull(&mirror, "small");
    let bodies = || registry.sent.bodies.load(SeqCst);
    // What was not there before comes again and again.
    let is_kept = |mirror: &Mirror| {
        pull(mirror, "snew");
        let before = bodies();
        pull(mirror, "snew");
        bodies() == before
    };
    assert!(!is_kept(&mirror), "there was room");
    // Nor does a mirror need room to start.
    mirror.kill();
    let mirror = registry.mirror(&store);
    for number in 0..50 {
        pull(&mirror, &format!("s{number}"));
    }
    fs::remove_file(filler).unwrap();
    lab::until("manifests are kept again", || is_kept(&mirror));
    mirror.kill();
    let mirror = registry.mirror(&store);
    let before = bodies();
    pull(&mirror, "snew");
    assert_eq!(bodies(), before, "it was on the disk");
}

#[test]
fn privileged_a_store_that_can_only_be_read_serves_what_it_has() {
    let small = Small::mount();
    let store = small.store();
    let registry = Hostile::start();
    let blob = |mirror: &Mirror, number| {
        let reply = mirror.get(&blob_path(number), &[]);
        assert_eq!(reply.status, 200, "{number}");
        assert!(reply.body == blob_of(number), "{number}");
        registry.sent.blobs.load(SeqCst)
    };
    let mirror = registry.mirror(&store);
    pull(&mirror, "small");
    assert_eq!(blob(&mirror, 0), 1);
    mirror.kill();
    small.remount("remount,ro");
    let mirror = registry.mirror(&store);
    for (tag, sent) in ["small", "snew", "long"].into_iter().zip(1..) {
        pull(&mirror, tag);
        assert_eq!(blob(&mirror, 0), sent, "it is in the store");
        assert_eq!(blob(&mirror, 1), sent + 1, "it is passed through");
    }
    mirror.kill();
    // What can be written again is used again.
    small.remount("remount,rw");
    let mirror = registry.mirror(&store);
    let before = registry.sent.bodies.load(SeqCst);
    pull(&mirror, "small");
    assert_eq!(registry.sent.bodies.load(SeqCst), before);
}
