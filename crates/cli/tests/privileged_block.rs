//! Exported images are read and written through servers that are killed.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_export;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use block_export::{Process, arg, export, succeeds, yolofs};

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
    let blob = fs::read(vectors().join("A.lz4.4k.tar.obd")).unwrap();
    let digest = oci::digest_of(&blob).to_string();
    let len = blob.len();
    let registry = LyingRegistry::start(&digest, blob);
    let config = format!(
        r#"{{"repoBlobUrl":"http://127.0.0.1:{}/v2/some/image/blobs",
            "lowers":[{{"digest":"{digest}","size":{len}}}]}}"#,
        registry.port
    );
    fs::write(dir.path().join("config.v1.json"), config).unwrap();
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

/// Makes a file of so many MiB in which no two blocks are the same.
fn filled(path: &Path, mib: u64) {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    let len = usize::try_from(mib << 20).unwrap();
    let bytes: Vec<u8> = words.flatten().take(len).collect();
    fs::write(path, bytes).unwrap();
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

/// MiB of each half of the guest's disk, which it copies from the first to the second, and how many KiB
/// at a time.
const HALF_MIB: u64 = 8;
const PIECE_KIB: u64 = 128;

/// Makes the initial file system of a guest that copies its disk's first half to the second.
fn guest(dir: &Path) {
    let kernel = std::env::var_os("YOLOFS_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images"),
        PathBuf::from,
    );
    let archive = kernel.join("kernel.tar");
    assert!(
        archive.exists(),
        "{}: run scripts/images/kernel.sh",
        archive.display()
    );
    let unpack = ["-xf", arg(&archive), "vmlinuz", "initrd.img"];
    succeeds(Command::new("tar").current_dir(dir).args(unpack));
    let root = dir.join("root");
    fs::create_dir_all(root.join("dev")).unwrap();
    let unpack = "gzip -dc ../initrd.img | cpio --quiet -id 'modules/*'";
    succeeds(Command::new("sh").current_dir(&root).args(["-c", unpack]));
    let busybox = succeeds(Command::new("which").arg("busybox")).stdout;
    let busybox = String::from_utf8(busybox).unwrap();
    fs::copy(busybox.trim(), root.join("busybox")).unwrap();
    let pieces = HALF_MIB * 1024 / PIECE_KIB;
    let init = format!(
        "#!/busybox sh\n\
         /busybox mount -t devtmpfs dev /dev\n\
         for module in /modules/*.ko; do /busybox insmod $module 2>/dev/null; done\n\
         while [ ! -b /dev/vda ]; do /busybox usleep 10000; done\n\
         piece=0\n\
         while [ $piece -lt {pieces} ]; do\n\
           /busybox dd if=/dev/vda of=/dev/vda bs={PIECE_KIB}k count=1 skip=$piece \
             seek=$((piece + {pieces})) iflag=direct oflag=direct conv=notrunc,fsync 2>/dev/null \
             || echo FAILED $piece\n\
           piece=$((piece + 1))\n\
           echo COPIED $piece\n\
         done\n\
         echo ALL COPIED\n\
         /busybox poweroff -f\n"
    );
    fs::write(root.join("init"), init).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let pack = "find . | cpio --quiet -o -H newc | gzip -1n >../guest.img";
    succeeds(Command::new("sh").current_dir(&root).args(["-c", pack]));
}

/// Makes a guest and its disk, whose second half is empty.
fn guest_with_disk(dir: &Path) -> PathBuf {
    guest(dir);
    let disk = dir.join("disk.raw");
    filled(&disk, HALF_MIB);
    let file = File::options().write(true).open(&disk).unwrap();
    file.set_len((2 * HALF_MIB) << 20).unwrap();
    disk
}

fn assert_copied(disk: &Path) {
    let content = fs::read(disk).unwrap();
    assert_eq!(content.len() as u64, (2 * HALF_MIB) << 20);
    let (first, second) = content.split_at(content.len() / 2);
    assert!(first == second, "the copy differs");
    assert!(first.iter().any(|byte| *byte != 0), "there is nothing");
}

#[test]
fn a_virtual_machine_outlives_the_servers_of_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = guest_with_disk(dir.path());
    let socket = dir.path().join("vhost.sock");
    outlives(dir.path(), &socket, &|| {
        export(&[arg(&disk), "--writable", "--vhost-user", arg(&socket)])
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
    outlives(dir.path(), &socket, &|| {
        export(&[arg(&vm), "--vhost-user", arg(&socket)])
    });
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

/// Boots the guest with the disk that `serve` serves, and kills and restarts the server four times meanwhile.
fn outlives(dir: &Path, socket: &Path, serve: &dyn Fn() -> Process) {
    let mut server = Some(serve());
    let chardev = format!("socket,id=c0,reconnect=1,path={}", socket.display());
    let machine = Command::new("timeout")
        .args([
            "--foreground",
            "240",
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-user-config",
        ])
        .args([
            "-accel",
            "tcg",
            "-cpu",
            "qemu64,+rdrand",
            "-m",
            "192",
            "-display",
            "none",
        ])
        .args(["-object", "memory-backend-memfd,id=mem,size=192M,share=on"])
        .args([
            "-machine",
            "q35,memory-backend=mem",
            "-no-reboot",
            "-serial",
            "stdio",
        ])
        .args(["-kernel", arg(&dir.join("vmlinuz"))])
        .args(["-initrd", arg(&dir.join("guest.img"))])
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1",
            "-chardev",
            &chardev,
        ])
        .args(["-device", "vhost-user-blk-pci,chardev=c0,num-queues=1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut machine = Process(machine);
    let console = BufReader::new(machine.0.stdout.take().unwrap());
    let (mut said, mut killed) = (Vec::new(), 0);
    for line in console.lines() {
        let line = line.unwrap();
        // Four times, with whatever is in flight then.
        if let Some(piece) = line.trim().strip_prefix("COPIED ")
            && piece.parse::<u64>().unwrap() % 12 == 0
            && killed < 4
        {
            drop(server.take()); // kill -9
            server = Some(serve());
            killed += 1;
        }
        said.push(line);
    }
    let all = said.join("\n");
    assert!(said.iter().any(|line| line.trim() == "ALL COPIED"), "{all}");
    assert!(
        !all.contains("FAILED") && !all.contains("I/O error"),
        "{all}"
    );
    assert_eq!(killed, 4, "{all}");
}
