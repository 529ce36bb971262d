//! Clients that mean ill to the mirror, and a disk that is full: who means well gets what is right.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::{noise, ok, until};
use mirror::blobs::{Algorithm, BlobDigest};
use mirror::testing::Fault;
use nic::{Site, blob, connect, read_reply};
use serde_json::json as value;
use testkit::registries::Kind;

/// Longer than the mirror's own deadline, with a busy machine in mind.
const PATIENCE: Duration = Duration::from_secs(240);

/// More often than any test asks.
const ALWAYS: u32 = 10_000;

/// Whether the other side has closed a connection that nothing came from.
fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn privileged_who_sends_a_head_byte_by_byte_is_cut_off() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let slow: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connect(mirror.clients);
            stream
                .write_all(b"GET /v2/ HTTP/1.1\r\nHost: m\r\nX-")
                .unwrap();
            stream
        })
        .collect();
    // Nobody else notices.
    mirror.blob(site.long().0);
    let began = Instant::now();
    while !slow.iter().all(is_closed) {
        assert!(began.elapsed() < PATIENCE, "they are not cut off");
        for mut stream in &slow {
            // One more byte does not buy time; who is cut off cannot send it.
            let _sent = stream.write_all(b"a");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn privileged_heads_without_end_and_without_sense_are_refused() {
    let site = Site::new(Kind::Docker);
    let mirror = site.mirror("store", &[]);
    let many = "X: y\r\n".repeat(1000);
    let long = format!("X: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let mut stream = connect(mirror.clients);
        // It may be cut off before it has sent all.
        let _sent = write!(stream, "GET /v2/ HTTP/1.1\r\nHost: m\r\n{headers}\r\n");
        let mut answer = Vec::new();
        let _closed = stream.read_to_end(&mut answer);
        let refused = answer.is_empty() || answer.starts_with(b"HTTP/1.1 431");
        assert!(refused, "{:?}", String::from_utf8_lossy(&answer));
    }
    for path in [
        "/v2/../../etc/passwd",
        "/v2/a/blobs/sha256:../../x",
        "/v2//blobs/x",
        "*",
    ] {
        let mut stream = connect(mirror.clients);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        assert!(matches!(read_reply(stream).status, 400 | 404), "{path}");
    }
    let post = nic::request(mirror.clients, "POST", &blob(site.long().0), &[]);
    assert_eq!(post.status, 405);
    assert!(site.proxy.seen().is_empty(), "the registry is not asked");
    mirror.blob(site.long().0);
}

#[test]
fn privileged_one_address_has_not_all_connections() {
    let site = Site::new(Kind::Docker);
    let words = value!({"connections_of_one": 100});
    let mirror = site.with_words("store", &words);
    let (digest, _) = site.long();
    // Whoever says nothing is cut off after a while anyway: a machine that stands still for so long
    // gets another try.
    let idle = (0..5).find_map(|_| {
        let idle: Vec<_> = (0..300).map(|_| connect(mirror.clients)).collect();
        let closed = || idle.iter().filter(|stream| is_closed(stream)).count();
        until("two hundred to be cut off", || closed() >= 200);
        (closed() == 200).then_some(idle)
    });
    assert!(idle.is_some(), "more than a hundred are kept, or fewer");
    // Another address is served meanwhile, and this one again when the connections are gone.
    let mut other = nic::connect_from([127, 0, 0, 2], mirror.clients);
    write!(
        other,
        "GET {} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n",
        blob(digest)
    )
    .unwrap();
    let reply = read_reply(other);
    assert_eq!(reply.status, 200);
    assert!(reply.is_whole());
    drop(idle);
    until("the first address to be served again", || {
        let mut stream = connect(mirror.clients);
        let _sent = stream.write_all(b"GET /v2/ HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n");
        matches!(stream.read(&mut [0]), Ok(1))
    });
}

/// Somebody who knows a digest, and may not have what it names.
#[test]
fn privileged_a_digest_that_is_here_looks_like_one_that_is_not() {
    let site = Site::new(Kind::Docker);
    let access = value!({"clients": [{"from": ["127.0.0.1"], "repositories": ["library/deb"]}]});
    let mirror = site.configured("store", &value!({"access": access}));
    let (here, _) = site.long();
    mirror.blob(here);
    let asked = site.proxy.seen().len();
    let nowhere = BlobDigest::of(Algorithm::Sha256, b"nobody has this").to_string();
    let answer = |digest: &str| {
        let reply = mirror.get(&format!("/v2/library/secret/blobs/{digest}"), &[]);
        let mut headers: Vec<_> = reply.headers.into_iter().collect();
        headers.retain(|(name, _)| name != "date");
        headers.sort();
        (reply.status, headers, reply.body)
    };
    let (one, other) = (answer(here), answer(&nowhere));
    assert_eq!(one, other);
    assert_eq!(one.0, 404);
    let head = |digest: &str| {
        mirror
            .head(&format!("/v2/library/secret/blobs/{digest}"))
            .status
    };
    assert_eq!((head(here), head(&nowhere)), (404, 404));
    // Nor does it take longer: for neither is the registry asked.
    assert_eq!(site.proxy.seen().len(), asked);
}

#[test]
fn privileged_blobs_with_other_digests_are_verified_by_them() {
    let site = Site::new(Kind::Olareg);
    let bytes = noise(7, 400_000);
    let path = site.path("blob");
    fs::write(&path, &bytes).unwrap();
    let digest = BlobDigest::of(Algorithm::Sha512, &bytes).to_string();
    let host = site.registry.host();
    let began = ok(Command::new("curl")
        .args(["-sS", "-f", "-X", "POST", "-D", "-", "-o", "/dev/null"])
        .arg(format!("http://{host}/v2/library/deb/blobs/uploads/")));
    let mut lines = began.lines().filter_map(|line| line.split_once(": "));
    let location = lines.find(|(name, _)| name.eq_ignore_ascii_case("location"));
    let location = location.unwrap().1.trim();
    let location = location
        .strip_prefix(&format!("http://{host}"))
        .unwrap_or(location);
    let sign = if location.contains('?') { '&' } else { '?' };
    ok(Command::new("curl")
        .args(["-sS", "-f", "-X", "PUT", "--data-binary"])
        .arg(format!("@{}", path.display()))
        .args(["-H", "Content-Type: application/octet-stream"])
        .arg(format!("http://{host}{location}{sign}digest={digest}")));
    let mirror = site.mirror("store", &[]);
    site.proxy.inject(&digest, Fault::Flip(1000), 1);
    for _ in 0..2 {
        let reply = mirror.get(&blob(&digest), &[]);
        assert_eq!(reply.status, 200);
        assert!(reply.body == bytes);
        assert_eq!(reply.headers["docker-content-digest"], digest);
    }
    assert_eq!(mirror.metric("nicfetch_mirror_mismatches_total"), 1);
    assert_eq!(site.proxy.body_bytes(&digest), 2 * bytes.len() as u64);
    // Half a digest, or one of another length, is none.
    for bad in [&digest[..40], &digest.replace("sha512", "sha256")] {
        assert_eq!(mirror.get(&blob(bad), &[]).status, 404, "{bad}");
    }
}

/// A file system in memory that is soon full.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).unwrap();
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(&dir));
        Self(dir)
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Takes all that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.filler()).unwrap();
        let piece = vec![1; 1 << 16];
        while file.write_all(&piece).is_ok() {}
        while file.write_all(&piece[..512]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn privileged_a_full_disk_costs_no_pull() {
    let site = Site::new(Kind::Docker);
    let disk = SmallDisk::new(site.path("disk"));
    let mirror = site.mirror("disk/store", &["--hold-back", "64K"]);
    let (digest, size) = site.long();
    let part = Path::new("disk/store/mirror/parts").join(digest.replace(':', "-"));
    let there = || fs::metadata(site.path(part.to_str().unwrap())).map_or(0, |part| part.len());
    // So slow that the disk is full before all of it is here.
    site.proxy.shape(Duration::ZERO, Some(128 << 10));
    let mut client = connect(mirror.clients);
    write!(
        client,
        "GET {} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n",
        blob(digest)
    )
    .unwrap();
    until("some of it to be on disk", || there() > 128 << 10);
    disk.fill();
    site.proxy.shape(Duration::ZERO, None);
    let reply = read_reply(client);
    assert_eq!(reply.body.len() as u64, size, "it goes on without the disk");
    let found = BlobDigest::of(Algorithm::Sha256, &reply.body);
    assert_eq!(found.to_string(), digest);
    // All of it passes through, and is verified.
    ok(&mut mirror.skopeo(&site.path("image-copy")));
    site.proxy.inject(digest, Fault::Flip(10), ALWAYS);
    assert!(!mirror.get(&blob(digest), &[]).is_whole());
    assert_eq!(mirror.metric("nicfetch_mirror_stored_blobs"), 0);
    site.proxy.heal();
    disk.free();
    mirror.blob(digest);
    until("it to be kept", || {
        mirror.metric("nicfetch_mirror_stored_blobs") == 1
    });
    let fetched = site.proxy.body_bytes(digest);
    mirror.blob(digest);
    assert_eq!(site.proxy.body_bytes(digest), fetched);
    drop(mirror);
    drop(disk);
}
