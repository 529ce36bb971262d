//! vhost-user-blk keeps the promises of an export, and what is in flight when its server is killed.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod clients {
    pub(crate) mod held;
    pub(crate) mod vhost_user;
}
mod conformance;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use blockexport::Exporter as _;
use blocks::BlockDevice as _;
use blocks::testing::MemDevice;
use clients::held::{Held, SIZE};
use clients::vhost_user::{Guest, READ, VhostRig, WRITE};
use conformance::{Client as _, Rig as _};

#[test]
fn it_conforms() {
    conformance::run(&VhostRig::new());
}

#[test]
fn requests_that_are_no_good_are_answered_so() {
    let rig = VhostRig::new();
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    let mut guest = Guest::boot(&rig.socket());
    assert!(guest.ask(99, 0, &[], 512).is_err(), "an unknown kind");
    assert!(guest.ask(READ, u64::MAX, &[], 512).is_err());
    assert!(guest.ask(READ, 0, &[], 100).is_err(), "no whole block");
    assert!(guest.ask(WRITE, 0, &[], 0).is_err(), "nothing to write");
    assert!(guest.ask(11, 0, &[1; 15], 0).is_err(), "half a segment");
    assert!(guest.ask(13, 0, &[0xFF; 16], 0).is_err());
    let serial = guest.ask(8, 0, &[], 20).unwrap();
    assert_eq!(serial, b"yolofs\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    guest.ask(WRITE, 5, &[6; 512], 0).unwrap();
    assert_eq!(guest.read(5 * 512, 512).unwrap(), [6; 512]);
    export.stop();
}

#[test]
fn front_ends_that_talk_nonsense_are_left_and_the_next_is_served() {
    let rig = VhostRig::new();
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    for nonsense in [[0xFF; 40], [0; 40], [1; 40]] {
        let mut stream = UnixStream::connect(rig.socket()).unwrap();
        stream.write_all(&nonsense).unwrap();
        let mut rest = Vec::new();
        // The server ends the connection, with or without what it had not read.
        drop(stream.read_to_end(&mut rest));
    }
    let mut guest = Guest::boot(&rig.socket());
    guest.write(0, &[1; 512]).unwrap();
    export.stop();
}

/// Without room for others, the deadline would be theirs one after the other.
#[test]
fn front_ends_that_say_nothing_keep_no_machine_waiting() {
    let mut rig = VhostRig::new();
    rig.config.message_deadline = Duration::from_secs(3600);
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    let connect = || UnixStream::connect(rig.socket()).unwrap();
    let silent = [(); 20].map(|()| connect());
    let (tell, told) = channel();
    let socket = rig.socket();
    std::thread::spawn(move || {
        let mut guest = Guest::boot(&socket);
        guest.write(0, &[1; 512]).unwrap();
        tell.send(guest).unwrap();
    });
    let guest = told.recv_timeout(Duration::from_secs(60));
    let guest = guest.expect("it waits for those that say nothing");
    drop((silent, guest));
    export.stop();
}

#[test]
fn a_front_end_that_says_nothing_is_left_at_its_deadline() {
    let mut rig = VhostRig::new();
    rig.config.message_deadline = Duration::from_millis(100);
    let export = rig
        .exporter()
        .export(Arc::new(MemDevice::new(SIZE, 512)))
        .unwrap();
    let mut silent = UnixStream::connect(rig.socket()).unwrap();
    let patience = Some(Duration::from_secs(60));
    silent.set_read_timeout(patience).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    export.stop();
}

/// Names the directory for a server that is to be a process of its own.
const SERVE: &str = "BLOCKEXPORT_TEST_SERVE";

/// Serves the disk of its parent until it is killed; by itself, it shows that such a disk works.
#[test]
fn a_disk_in_a_file_is_served() {
    let rig = VhostRig::new();
    if let Some(dir) = std::env::var_os(SERVE) {
        let dir = PathBuf::from(dir);
        let exporter = blockexport::vhost_user::VhostUserExporter {
            socket: dir.join("vhost.sock"),
            config: rig.config,
        };
        let _export = exporter
            .export(Arc::new(Held::open(&dir.join("disk"))))
            .unwrap();
        loop {
            std::thread::park();
        }
    }
    let disk = rig.dir.path().join("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let export = rig.exporter().export(Arc::new(Held::open(&disk))).unwrap();
    let mut guest = Guest::boot(&rig.socket());
    guest.write(SIZE / 2, &[3; 512]).unwrap();
    assert_eq!(guest.read(SIZE / 2, 512).unwrap(), [3; 512]);
    export.stop();
}

/// A server that dies with the test, whatever becomes of it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn serve(dir: &Path) -> Server {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["a_disk_in_a_file_is_served", "--exact"])
        .env(SERVE, dir)
        .spawn()
        .unwrap();
    while UnixStream::connect(dir.join("vhost.sock")).is_err() {
        std::thread::yield_now();
    }
    Server(child)
}

#[test]
fn what_is_in_flight_when_the_server_is_killed_is_done_by_the_next() {
    let rig = VhostRig::new();
    let disk = rig.dir.path().join("disk");
    File::create(&disk).unwrap().set_len(SIZE).unwrap();
    let held = disk.with_extension("held");
    let middle = SIZE / 1024;
    let mut server = serve(rig.dir.path());
    let mut guest = Guest::boot(&rig.socket());
    for round in 1..=5_u8 {
        File::create(&held).unwrap();
        // Some are done, and between them some are held.
        for slot in 0..16 {
            let sector = if slot % 2 == 0 { 0 } else { middle };
            guest.send(slot, WRITE, sector + u64::from(slot), &[round; 512], 0);
        }
        let mut done = guest.receive(8);
        done.sort_unstable();
        assert_eq!(done, [0, 2, 4, 6, 8, 10, 12, 14]);
        drop(server);
        guest.disconnect();
        // The guest does not know, and goes on.
        for slot in 16..20 {
            guest.send(slot, WRITE, middle + u64::from(slot), &[round; 512], 0);
        }
        std::fs::remove_file(&held).unwrap();
        server = serve(rig.dir.path());
        guest.connect(&rig.socket());
        let mut done = guest.receive(12);
        done.sort_unstable();
        assert_eq!(done, [1, 3, 5, 7, 9, 11, 13, 15, 16, 17, 18, 19]);
        for slot in 0..20 {
            let sector = if slot % 2 == 0 && slot < 16 {
                0
            } else {
                middle
            };
            assert_eq!(guest.status(slot), 0, "slot {slot} of round {round}");
            let offset = (sector + u64::from(slot)) * 512;
            let mut content = [0; 512];
            Held::open(&disk).read_at(offset, &mut content).unwrap();
            assert_eq!(content, [round; 512], "slot {slot} of round {round}");
        }
    }
    drop(server);
    assert_eq!(guest.used(), 5 * 20, "each was done once");
}
