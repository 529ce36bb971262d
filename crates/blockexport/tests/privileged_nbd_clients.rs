//! The programs that people use with NBD work with this server, through its restart as well.

#![cfg(feature = "privileged")]
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use blockexport::nbd::{NbdConfig, NbdExporter};
use blockexport::{Export, Exporter as _};
use blocks::testing::MemDevice;
use blocks::{BlockDevice, Durability};

const SIZE: u64 = 16 << 20;

struct Served {
    dir: tempfile::TempDir,
    device: Arc<MemDevice>,
    export: Option<Box<dyn Export>>,
}

impl Served {
    /// Serves a device whose second quarter has data, and the rest nothing.
    fn new() -> Self {
        let device = MemDevice::new(SIZE, 512);
        let data: Vec<u8> = (0..SIZE / 4).map(|i| (i / 511 + 1) as u8).collect();
        device
            .write_at(SIZE / 4, &data, Durability::Durable)
            .unwrap();
        let mut served = Self {
            dir: tempfile::tempdir().unwrap(),
            device: Arc::new(device),
            export: None,
        };
        served.start();
        served
    }

    fn start(&mut self) {
        let exporter = NbdExporter {
            socket: self.path("nbd.sock"),
            config: NbdConfig::default(),
        };
        let export = exporter.export(Arc::clone(&self.device) as _).unwrap();
        self.export = Some(export);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self) -> String {
        self.export.as_ref().unwrap().address()
    }
}

/// Runs a program to its end, within a minute, and returns its output.
fn run(program: &str, args: &[&str]) -> String {
    // Some leave files where they run.
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .current_dir(&dir)
        .arg("60")
        .arg(program)
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}: {out}{err}",
        output.status
    );
    out
}

fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn libnbd_tells_what_the_device_is_and_copies_it_both_ways() {
    let served = Served::new();
    let address = served.address();
    let info = run("nbdinfo", &[&address]);
    for expected in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 16777216",
        "is_read_only: false",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "can_fua: true",
        "base:allocation",
    ] {
        assert!(info.contains(expected), "{expected} is not in {info}");
    }
    let map = run("nbdinfo", &["--map", &address]);
    let lines: Vec<Vec<&str>> = map
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        ["0", "4194304", "3", "hole,zero"],
        ["4194304", "4194304", "0", "data"],
        ["8388608", "8388608", "3", "hole,zero"],
    ];
    assert_eq!(lines, expected);
    assert!(run("nbdinfo", &["--list", &address]).contains("export=\"disk\""));

    let copy = served.path("copy.raw");
    run("nbdcopy", &[&address, arg(&copy)]);
    assert_eq!(std::fs::read(&copy).unwrap(), served.device.content());
    let other: Vec<u8> = (0..SIZE).map(|i| (i / 700) as u8).collect();
    std::fs::write(&copy, &other).unwrap();
    run("nbdcopy", &["--flush", arg(&copy), &address]);
    served.device.crash();
    assert_eq!(
        served.device.content(),
        other,
        "what was flushed is durable"
    );
}

#[test]
fn qemus_programs_read_write_map_and_compare() {
    let served = Served::new();
    let address = served.address();
    assert!(run("qemu-img", &["info", &address]).contains("virtual size: 16 MiB"));
    let map = run("qemu-img", &["map", "--output=json", &address]);
    let (data, hole) = (r#""start": 4194304, "length": 4194304"#, r#""data": false"#);
    assert!(map.contains(data) && map.contains(hole), "{map}");
    let commands = [
        "write -P 0x41 0 64k",
        "write -f -P 0x42 64k 4k",
        "write -z -u 4M 1M",
        "write -z 5M 64k",
        "discard 6M 1M",
        "flush",
        "read -P 0x41 0 64k",
        "read -P 0x42 64k 4k",
        "read -P 0 4M 1M",
    ];
    let mut args = vec!["-f", "raw", &address];
    args.extend(commands.iter().flat_map(|command| ["-c", *command]));
    let out = run("qemu-io", &args);
    assert!(!out.contains("failed") && !out.contains("error"), "{out}");
    served.device.crash();
    let content = served.device.content();
    assert_eq!(content[..1 << 16], [0x41; 1 << 16]);
    assert!(
        content[4 << 20..(5 << 20) + (64 << 10)]
            .iter()
            .all(|byte| *byte == 0)
    );
    assert!(content[6 << 20..7 << 20].iter().all(|byte| *byte == 0));

    let copy = served.path("copy.qcow2");
    run(
        "qemu-img",
        &["convert", "-O", "qcow2", &address, arg(&copy)],
    );
    let compare = ["compare", "-f", "qcow2", "-F", "raw", arg(&copy), &address];
    assert!(run("qemu-img", &compare).contains("Images are identical"));
}

#[test]
fn fio_verifies_what_it_wrote_at_depth_32() {
    let served = Served::new();
    let uri = format!("--uri={}", served.address());
    let args = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bs=4k",
        "--iodepth=32",
        "--size=8m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
        "--output-format=json",
    ];
    let out = run("fio", &args);
    assert!(out.contains(r#""error" : 0"#), "{out}");
    assert_eq!(served.export.as_ref().unwrap().counts().errors, 0);
}

#[test]
fn qemu_waits_for_a_server_that_restarts() {
    let mut served = Served::new();
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},reconnect-delay=60",
        served.path("nbd.sock").display()
    );
    // qemu-nbd is the client, and a server on its part: so it lives on while we restart.
    let through = served.path("through.sock");
    let pid = served.path("pid");
    let mut guest = Command::new("qemu-nbd")
        .args(["--image-opts", &options, "--persistent", "--socket"])
        .arg(&through)
        .arg("--pid-file")
        .arg(&pid)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !pid.exists() {
        std::thread::yield_now();
    }
    let uri = format!("nbd+unix:///?socket={}", through.display());
    let io = |command: &str| run("qemu-io", &["-f", "raw", &uri, "-c", command]);
    for round in 1..4_u8 {
        io(&format!("write -P {round} 0 1M"));
        served.export.take().unwrap().stop();
        // Nobody serves now: it waits for the next server.
        let read = std::thread::scope(|scope| {
            let read = scope.spawn(|| io(&format!("read -P {round} 0 1M")));
            served.export = None;
            std::thread::yield_now();
            let exporter = NbdExporter {
                socket: served.path("nbd.sock"),
                config: NbdConfig::default(),
            };
            let export = exporter.export(Arc::clone(&served.device) as _).unwrap();
            (read.join().unwrap(), export)
        });
        assert!(!read.0.contains("failed"), "{}", read.0);
        served.export = Some(read.1);
    }
    guest.kill().unwrap();
    guest.wait().unwrap();
}
