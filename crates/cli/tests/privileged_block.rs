//! Exported images are read and written through servers that are killed.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_export;
mod block_guest;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use block_export::{Process, arg, export, filled, succeeds, yolofs};
use block_guest::{assert_copied, guest_with_disk, outlives};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors")
}

/// Makes an image of two layers, and returns its directory.
fn image(dir: &Path) -> PathBuf {
    let image = dir.join("image");
    fs::create_dir(&image).unwrap();
    for name in ["B1.obd", "B2.obd"] {
        fs::copy(vectors().join(name), image.join(name)).unwrap();
    }
    let config = r#"{"lowers":[{"file":"B1.obd"},{"file":"B2.obd"}]}"#;
    fs::write(image.join("config.v1.json"), config).unwrap();
    image
}

#[test]
fn a_layered_image_is_read_over_nbd_and_by_a_file_system_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    let socket = dir.path().join("nbd.sock");
    let mut server = export(&[arg(&image), "--nbd", arg(&socket)]);
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    let copy = dir.path().join("copy.raw");
    succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
    let packed = File::open(vectors().join("B1+B2.expected.raw.zst")).unwrap();
    let mut expected = zstd::Decoder::new(packed).unwrap();
    let (copied, mut at) = (File::open(&copy).unwrap(), 0);
    let (mut want, mut have) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let len = expected.read(&mut want).unwrap();
        if len == 0 {
            break;
        }
        copied.read_exact_at(&mut have[..len], at).unwrap();
        assert!(have[..len] == want[..len], "within 1 MiB of byte {at}");
        at += len as u64;
    }
    assert_eq!(at, 1 << 30, "all of the device was compared");
    // Its file system is whole.
    succeeds(Command::new("e2fsck").args(["-fn", arg(&copy)]));
    // Nobody else may serve there, and nobody may write to sealed layers.
    for refused in [
        &["--nbd", arg(&socket)][..],
        &["--nbd", "other", "--writable"],
    ] {
        let output = yolofs()
            .args(["block", "export", arg(&image)])
            .args(refused)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    // Ctrl-C ends it in order.
    let pid = nix::unistd::Pid::from_raw(server.0.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(server.0.wait().unwrap().code().is_some());
    assert!(!socket.exists());
}

#[test]
fn verify_finds_damage() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    let verify = || {
        yolofs()
            .args(["block", "verify", "--json", arg(&image)])
            .output()
            .unwrap()
    };
    let whole = verify();
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(whole["size"], 1 << 30);
    assert!(whole["data"].as_u64().unwrap() > 1 << 20, "{whole}");
    let blob = image.join("B1.obd");
    let mut bytes = fs::read(&blob).unwrap();
    bytes[100_000] ^= 0x80;
    fs::write(&blob, bytes).unwrap();
    let damaged = verify();
    assert_eq!(damaged.status.code(), Some(4), "{damaged:?}");
    let damaged: serde_json::Value = serde_json::from_slice(&damaged.stdout).unwrap();
    assert!(
        !damaged["damaged"].as_array().unwrap().is_empty(),
        "{damaged}"
    );
}

/// A registry with one blob that sends a wrong byte in each 1000 of its first and its fourth answer.
struct LyingRegistry {
    port: u16,
    sent: Arc<Mutex<u64>>,
}

impl LyingRegistry {
    /// Starts one with a layer, and makes an image of it in a directory.
    fn of_image(dir: &Path) -> Self {
        let blob = fs::read(vectors().join("A.lz4.4k.tar.obd")).unwrap();
        let digest = oci::digest_of(&blob).to_string();
        let len = blob.len();
        let registry = LyingRegistry::start(&digest, blob);
        let config = format!(
            r#"{{"repoBlobUrl":"http://127.0.0.1:{}/v2/some/image/blobs",
                "lowers":[{{"digest":"{digest}","size":{len}}}]}}"#,
            registry.port
        );
        fs::write(dir.join("config.v1.json"), config).unwrap();
        registry
    }

    fn start(digest: &str, blob: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::<Mutex<u64>>::default();
        let (path, counts, blob) = (
            format!("/blobs/{digest} "),
            Arc::clone(&sent),
            Arc::new(blob),
        );
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (path, counts, blob) = (path.clone(), Arc::clone(&counts), Arc::clone(&blob));
                std::thread::spawn(move || answer(&stream.unwrap(), &path, &counts, &blob));
            }
        });
        Self { port, sent }
    }
}

/// Answers requests of one connection, until it ends.
fn answer(mut stream: &TcpStream, path: &str, counts: &Mutex<u64>, blob: &[u8]) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    loop {
        let head: Vec<String> = lines
            .by_ref()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty())
            .collect();
        assert!(head.first()?.contains(path), "{head:?}");
        let range = head.iter().find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("range: bytes=")
                .map(str::to_owned)
        })?;
        let (start, end) = range.split_once('-')?;
        let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        let mut bytes = blob[start..=end].to_vec();
        let number = {
            let mut sent = counts.lock().unwrap();
            *sent += 1;
            *sent
        };
        if matches!(number, 1 | 4) {
            bytes
                .iter_mut()
                .step_by(1000)
                .for_each(|byte| *byte ^= 0x10);
        }
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {range}/{}\r\n\r\n",
            bytes.len(),
            blob.len()
        );
        stream.write_all(&[head.as_bytes(), &bytes].concat()).ok()?;
    }
}

#[test]
fn a_lazy_image_of_a_registry_that_lies_is_right_and_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let registry = LyingRegistry::of_image(dir.path());
    let (socket, cache) = (dir.path().join("s"), dir.path().join("cache"));
    let serve = || {
        export(&[
            arg(dir.path()),
            "--cache",
            arg(&cache),
            "--nbd",
            arg(&socket),
        ])
    };
    let mut server = serve();
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    let packed = File::open(vectors().join("A.expected.raw.zst")).unwrap();
    let expected = zstd::decode_all(packed).unwrap();
    let copy = dir.path().join("copy.raw");
    for _ in 0..2 {
        succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
        let mut copied = vec![0; expected.len()];
        File::open(&copy)
            .unwrap()
            .read_exact_at(&mut copied, 0)
            .unwrap();
        assert!(copied == expected, "wrong bytes were served");
        drop(server); // kill -9
        server = serve();
    }
    let asked = *registry.sent.lock().unwrap();
    assert!((2..60).contains(&asked), "{asked} requests");
    drop(server);
    // All is in the cache now: nothing is fetched any more.
    let verify = [
        "block",
        "verify",
        "--json",
        arg(dir.path()),
        "--cache",
        arg(&cache),
    ];
    let verified = succeeds(yolofs().args(verify));
    let verified: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verified["cache"]["requests"], 0, "{verified}");
}

fn mount(args: &[&str], at: &Path) {
    succeeds(Command::new("mount").args(args).arg(at));
}

/// A disk that is mounted for a test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        succeeds(Command::new("umount").arg("-l").arg(self.0));
    }
}

#[test]
fn an_image_is_served_when_its_cache_s_disk_takes_nothing_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let registry = LyingRegistry::of_image(dir.path());
    let cache = dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    mount(&["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"], &cache);
    let _mounted = Mounted(&cache);
    let packed = File::open(vectors().join("A.expected.raw.zst")).unwrap();
    let expected = zstd::decode_all(packed).unwrap();
    let socket = dir.path().join("s");
    let copy = dir.path().join("copy.raw");
    let is_served = || {
        let image = arg(dir.path());
        let _server = export(&[image, "--cache", arg(&cache), "--nbd", arg(&socket)]);
        let address = format!("nbd+unix:///disk?socket={}", socket.display());
        succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
        let mut copied = vec![0; expected.len()];
        let file = File::open(&copy).unwrap();
        file.read_exact_at(&mut copied, 0).unwrap();
        assert!(copied == expected, "wrong bytes were served");
        *registry.sent.lock().unwrap()
    };
    is_served();
    let before = is_served();
    // Read only, as after an error of the disk: what is there is used.
    mount(&["-o", "remount,ro"], &cache);
    assert_eq!(is_served(), before);
    // Full, and what was there is damaged.
    mount(&["-o", "remount,rw"], &cache);
    let entries = fs::read_dir(&cache).unwrap();
    let blob = entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.is_dir());
    let blob = blob.unwrap();
    for name in ["map", "data"] {
        File::create(blob.join(name)).unwrap();
    }
    let mut ballast = File::create(cache.join("ballast")).unwrap();
    while ballast.write_all(&[1; 4096]).is_ok() {}
    drop(ballast);
    assert!(is_served() > before);
    mount(&["-o", "remount,ro"], &cache);
    is_served();
}

#[test]
fn a_copy_over_nbd_outlives_three_servers() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, copy) = (dir.path().join("disk.raw"), dir.path().join("copy.raw"));
    let socket = dir.path().join("nbd.sock");
    filled(&disk, 48);
    let serve = || export(&[arg(&disk), "--nbd", arg(&socket)]);
    let mut server = serve();
    let options = format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},\
         file.reconnect-delay=60",
        socket.display()
    );
    // Slowly, so that it takes longer than the servers live.
    let convert = Command::new("qemu-img")
        .args([
            "convert",
            "--image-opts",
            "-r",
            "24M",
            "-t",
            "none",
            "-O",
            "raw",
        ])
        .args([&options, arg(&copy)])
        .spawn()
        .unwrap();
    let mut convert = Process(convert);
    for round in 1..=3 {
        let blocks = || fs::metadata(&copy).map_or(0, |about| about.blocks() * 512);
        while blocks() < round * (8 << 20) {
            assert!(
                convert.0.try_wait().unwrap().is_none(),
                "it ended too early"
            );
            std::thread::yield_now();
        }
        drop(server); // kill -9
        server = serve();
    }
    assert!(convert.0.wait().unwrap().success());
    assert!(
        fs::read(&disk).unwrap() == fs::read(&copy).unwrap(),
        "the copy differs"
    );
}

/// What was written over NBD and flushed is there when the server was killed, for each kind of writable layer;
/// and when it was committed, it is a sealed layer.
#[test]
fn flushed_writes_outlive_a_killed_server_and_become_a_layer() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, copy) = (dir.path().join("disk.raw"), dir.path().join("copy.raw"));
    let socket = dir.path().join("nbd.sock");
    filled(&disk, 8);
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    for kind in ["append", "sparse", "hybrid", "live"] {
        let image = dir.path().join(kind);
        let create = [
            "block",
            "create",
            arg(&image),
            "--size",
            "8M",
            "--kind",
            kind,
        ];
        succeeds(yolofs().args(create));
        let serve = || export(&[arg(&image), "--nbd", arg(&socket)]);
        let server = serve();
        succeeds(Command::new("nbdcopy").args(["--flush", arg(&disk), &address]));
        // While it is served, nobody else may change it.
        let refused = yolofs()
            .args(["block", "commit", arg(&image)])
            .output()
            .unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let status = succeeds(yolofs().args(["block", "status", "--json", arg(&image)]));
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["in_use"], true, "{status}");
        drop(server); // kill -9
        let server = serve();
        succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
        assert!(
            fs::read(&disk).unwrap() == fs::read(&copy).unwrap(),
            "{kind} differs"
        );
        drop(server);
        let committed = succeeds(yolofs().args(["block", "commit", "--json", arg(&image)]));
        let committed: serde_json::Value = serde_json::from_slice(&committed.stdout).unwrap();
        assert_eq!(
            committed["layers"].as_array().unwrap().len(),
            1,
            "{committed}"
        );
        if kind == "live" {
            let report = |command: &str| {
                let done = succeeds(yolofs().args(["block", command, "--json", arg(&image)]));
                serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap()
            };
            report("restack");
            report("gc");
            // The one that was committed, and the one that was sealed where it is.
            assert_eq!(report("status")["upper"]["own_layers"], 2);
        }
        let server = serve();
        succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
        assert!(
            fs::read(&disk).unwrap() == fs::read(&copy).unwrap(),
            "{kind} differs"
        );
        drop(server);
    }
}

#[test]
fn a_virtual_machine_outlives_the_servers_of_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = guest_with_disk(dir.path());
    let socket = dir.path().join("vhost.sock");
    let serve = || export(&[arg(&disk), "--writable", "--vhost-user", arg(&socket)]);
    let mut server = Some(serve());
    outlives(dir.path(), &socket, &mut || {
        drop(server.take()); // kill -9
        server = Some(serve());
    });
    assert_copied(&disk);
}

#[test]
fn a_virtual_machine_outlives_the_servers_of_its_writable_layer() {
    let dir = tempfile::tempdir().unwrap();
    let disk = guest_with_disk(dir.path());
    let [images, vm, copy] = ["images", "vm", "copy.raw"].map(|name| dir.path().join(name));
    succeeds(yolofs().args([
        "block",
        "convert",
        arg(&disk),
        arg(&images),
        "--name",
        "disk",
    ]));
    fs::remove_file(disk).unwrap();
    let lower = images.join("disk");
    let create = [
        "block",
        "create",
        arg(&vm),
        "--lower",
        arg(&lower),
        "--kind",
        "live",
    ];
    succeeds(yolofs().args(create));
    let socket = dir.path().join("vhost.sock");
    let serve = || export(&[arg(&vm), "--vhost-user", arg(&socket)]);
    let mut server = Some(serve());
    outlives(dir.path(), &socket, &mut || {
        drop(server.take()); // kill -9
        server = Some(serve());
    });
    drop(server);
    // It was written to the layer, and what is below is as it was.
    let nbd = dir.path().join("nbd.sock");
    let address = format!("nbd+unix:///disk?socket={}", nbd.display());
    let server = export(&[arg(&vm), "--nbd", arg(&nbd)]);
    succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
    drop(server);
    assert_copied(&copy);
    let _server = export(&[arg(&lower), "--nbd", arg(&nbd)]);
    succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
    let content = fs::read(&copy).unwrap();
    assert!(content[content.len() / 2..].iter().all(|byte| *byte == 0));
}
