//! ublk keeps the promises of an export: in a guest with a kernel of Debian 13, since not every machine has it.

#![cfg(feature = "privileged")]
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on has failed"
)]

mod clients {
    pub(crate) mod held;
    pub(crate) mod ublk;
}
mod conformance;

use std::path::Path;
use std::process::Command;

use testkit::guest::Guest;

/// How many tests there are in `inside`, so that none is left out unseen.
const INSIDE: usize = 9;

#[test]
fn devices_do_in_a_guest_what_exports_promise() {
    let guest = Guest::new(include_str!("guest/init"));
    guest.add_module("ublk_drv.ko");
    let busybox = Command::new("which").arg("busybox").output().unwrap();
    let busybox = String::from_utf8(busybox.stdout).unwrap();
    guest.add_program("busybox", Path::new(busybox.trim()));
    guest.must_pass(INSIDE);
}

/// What the guest runs.
mod inside {
    use std::fs::{self, File};
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::process::{Child, Command};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use blockexport::ublk::{KernelDevice, UblkConfig, UblkExporter};
    use blockexport::{ExportError, Exporter as _};
    use blocks::testing::MemDevice;
    use blocks::{BlockDevice as _, DeviceInfo};
    use nix::fcntl::OFlag;

    use crate::clients::held::{Held, SIZE};
    use crate::clients::ublk::{Direct, UblkRig};
    use crate::conformance::{self, Rig as _};
    use testkit::guest::ok;

    /// Names the directory for a server that is to be a process of its own.
    const SERVE: &str = "BLOCKEXPORT_TEST_SERVE";
    /// And what it says that it serves.
    const IDENTITY: &str = "BLOCKEXPORT_TEST_IDENTITY";

    #[test]
    #[ignore = "in the guest"]
    fn it_conforms() {
        conformance::run(&UblkRig::new());
    }

    /// The kernel's limit, 64 unless the module is told another one, is for devices of users without root.
    #[test]
    #[ignore = "in the guest"]
    fn root_has_more_devices_than_others_may() {
        let limit = fs::read_to_string("/sys/module/ublk_drv/parameters/ublks_max").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let info = DeviceInfo::read_only(SIZE, 512);
        let config = UblkConfig {
            queues: 1,
            depth: 1,
            ..UblkConfig::default()
        };
        let make = |number: usize| {
            KernelDevice::prepare(&dir.path().join(number.to_string()), &info, &config).unwrap()
        };
        let made: Vec<_> = (0..=limit).map(make).collect();
        let ids = made.iter().map(|device| device.channel().unwrap().id);
        let ids: std::collections::HashSet<_> = ids.collect();
        assert_eq!(ids.len(), limit + 1);
        for device in made {
            device.give_up();
        }
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_file_system_keeps_what_is_written_and_gives_back_what_is_removed() {
        let rig = UblkRig::new();
        let device = Arc::new(MemDevice::new(32 << 20, 4096));
        let export = rig.exporter().export(Arc::clone(&device) as _).unwrap();
        let link = rig.link();
        let mounted = rig.dir.path().join("mounted");
        fs::create_dir(&mounted).unwrap();
        ok(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&link));
        ok(Command::new("mount").arg(&link).arg(&mounted));
        let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 / 3) as u8).collect();
        for name in ["a", "b", "c"] {
            let mut file = File::create(mounted.join(name)).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
        }
        fs::remove_file(mounted.join("b")).unwrap();
        // Whoever mounts it again sees the device, and not what was cached.
        ok(Command::new("umount").arg(&mounted));
        ok(Command::new("e2fsck").args(["-f", "-n"]).arg(&link));
        let before = export.counts();
        ok(Command::new("mount").arg(&link).arg(&mounted));
        assert_eq!(fs::read(mounted.join("a")).unwrap(), content);
        assert_eq!(fs::read(mounted.join("c")).unwrap(), content);
        let read = export.counts().bytes_read - before.bytes_read;
        assert!(read >= 6_000_000, "{read} bytes were read of the device");
        ok(Command::new("fstrim").arg(&mounted));
        let discarded = export.counts().bytes_written - before.bytes_written;
        assert!(discarded > 16 << 20, "{discarded} bytes were discarded");
        assert_eq!(fs::read(mounted.join("a")).unwrap(), content);
        ok(Command::new("umount").arg(&mounted));
        ok(Command::new("e2fsck").args(["-f", "-n"]).arg(&link));
        assert_eq!(export.counts().errors, 0);
        export.stop();
    }

    #[test]
    #[ignore = "in the guest"]
    fn durable_writes_survive_a_crash_and_others_wait_for_a_flush() {
        let rig = UblkRig::new();
        let device = Arc::new(MemDevice::new(SIZE, 512));
        let export = rig.exporter().export(Arc::clone(&device) as _).unwrap();
        let plain = Direct::open(&rig.link());
        let durable = Direct::with(&rig.link(), OFlag::O_DSYNC);
        plain.write(0, &[1; 512]).unwrap();
        device.crash();
        assert_eq!(plain.read(0, 512).unwrap(), [0; 512], "nobody flushed");
        durable.write(0, &[2; 512]).unwrap();
        device.crash();
        assert_eq!(plain.read(0, 512).unwrap(), [2; 512]);
        export.stop();
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_read_only_device_refuses_to_be_written_to() {
        let rig = UblkRig::new();
        let content: Vec<u8> = (0..SIZE).map(|i| (i / 512) as u8).collect();
        let device = MemDevice::read_only(&content, 512);
        let export = rig.exporter().export(Arc::new(device)).unwrap();
        let link = fs::canonicalize(rig.link()).unwrap();
        let client = Direct::open(&link);
        assert!(client.write(0, &[1; 512]).is_err());
        assert!(
            Command::new("mkfs.ext4")
                .arg(&link)
                .output()
                .is_ok_and(|out| !out.status.success())
        );
        assert_eq!(fs::read(&link).unwrap(), content);
        assert_eq!(export.counts().bytes_written, 0);
        export.stop();
    }

    #[test]
    #[ignore = "in the guest"]
    fn the_kernel_reads_no_table_of_partitions() {
        let rig = UblkRig::new();
        let mut content = vec![0; SIZE as usize];
        // A partition of type 0x83 from sector 64 on.
        content[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 64, 0, 0, 0, 64, 0, 0, 0]);
        content[510..512].copy_from_slice(&[0x55, 0xaa]);
        let device = MemDevice::read_only(&content, 512);
        let export = rig.exporter().export(Arc::new(device)).unwrap();
        assert_eq!(export.counts().requests, 0, "nothing was read of it");
        let link = fs::canonicalize(rig.link()).unwrap();
        let partition = format!("{}p1", link.display());
        assert!(!Path::new(&partition).exists());
        // Whoever trusts it has them all the same.
        ok(Command::new("partx").arg("--add").arg(&link));
        assert!(Path::new(&partition).exists());
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

    fn serve(dir: &Path, identity: &str) -> Server {
        let ready = dir.join("ready");
        drop(fs::remove_file(&ready));
        let test = "inside::a_disk_in_a_file_is_served";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored"])
            .env(SERVE, dir)
            .env(IDENTITY, identity)
            .spawn()
            .unwrap();
        let mut server = Server(child);
        while !ready.exists() {
            let ended = server.0.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        server
    }

    /// Serves the disk of its parent until it is killed; by itself, it shows that such a disk works.
    #[test]
    #[ignore = "in the guest"]
    fn a_disk_in_a_file_is_served() {
        let rig = UblkRig::new();
        if let Some(dir) = std::env::var_os(SERVE) {
            let dir = Path::new(&dir);
            let exporter = UblkExporter {
                link: dir.join("disk"),
                config: UblkConfig {
                    identity: std::env::var(IDENTITY).unwrap(),
                    ..rig.config
                },
            };
            let _export = exporter
                .export(Arc::new(Held::open(&dir.join("image"))))
                .unwrap();
            File::create(dir.join("ready")).unwrap();
            loop {
                std::thread::park();
            }
        }
        let image = image(rig.dir.path());
        let export = rig.exporter().export(Arc::new(Held::open(&image))).unwrap();
        let client = Direct::open(&rig.link());
        client.write(SIZE / 2, &[3; 512]).unwrap();
        assert_eq!(client.read(SIZE / 2, 512).unwrap(), [3; 512]);
        export.stop();
        assert!(!rig.link().is_symlink());
        assert_eq!(client.read(0, 512), Err(conformance::Refused), "it is over");
    }

    fn image(dir: &Path) -> std::path::PathBuf {
        let image = dir.join("image");
        File::create(&image).unwrap().set_len(SIZE).unwrap();
        image
    }

    /// Writes blocks of the first half, and reads them again, without a pause.
    fn write_and_read(link: &Path, over: &AtomicBool, steps: &AtomicU64) -> u64 {
        let client = Direct::open(link);
        let mut step = 0_u64;
        while !over.load(SeqCst) {
            let (offset, value) = (step * 37 % 1000 * 512, (step % 251) as u8);
            client.write(offset, &[value; 512]).unwrap();
            assert_eq!(
                client.read(offset, 512).unwrap(),
                [value; 512],
                "step {step}"
            );
            step = steps.fetch_add(1, SeqCst) + 1;
        }
        step
    }

    /// Waits until so many writes are in flight.
    fn wait_for_writes(link: &Path, count: u64) {
        let in_flight = Direct::open(link).sys("inflight");
        let writes = || -> u64 {
            let text = fs::read_to_string(&in_flight).unwrap();
            text.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while writes() < count {
            assert!(Instant::now() < deadline, "they are never sent");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    #[ignore = "in the guest"]
    fn readers_and_writers_wait_while_their_server_is_killed_and_replaced() {
        let rig = UblkRig::new();
        let image = image(rig.dir.path());
        let held = image.with_extension("held");
        let mut server = serve(rig.dir.path(), "image");
        let (link, mut rounds) = (&rig.link(), 0);
        let (over, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| write_and_read(link, &over, &steps));
            let device = fs::canonicalize(link).unwrap();
            for round in 1..=5_u8 {
                File::create(&held).unwrap();
                // These are in flight, and cannot be answered by the server that has them.
                let waiting: Vec<_> = (0..4)
                    .map(|slot| {
                        scope.spawn(move || {
                            let offset = SIZE / 2 + (u64::from(round) * 4 + slot) * 512;
                            Direct::open(link).write(offset, &[round; 512]).unwrap();
                        })
                    })
                    .collect();
                wait_for_writes(link, 4);
                server.0.kill().unwrap();
                server.0.wait().unwrap();
                assert!(waiting.iter().all(|write| !write.is_finished()));
                fs::remove_file(&held).unwrap();
                server = serve(rig.dir.path(), "image");
                for write in waiting {
                    write.join().unwrap();
                }
                // The busy one went on, with this server.
                let before = steps.load(SeqCst);
                while steps.load(SeqCst) < before + 20 {
                    assert!(!busy.is_finished(), "it failed");
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(
                    fs::canonicalize(link).unwrap(),
                    device,
                    "it is the same device"
                );
                rounds += 1;
            }
            over.store(true, SeqCst);
            assert!(busy.join().unwrap() >= 100);
        });
        assert_eq!(rounds, 5);
        let mut content = vec![0; SIZE as usize / 2];
        File::open(&image)
            .unwrap()
            .read_exact_at(&mut content, SIZE / 2)
            .unwrap();
        for round in 1..=5_u8 {
            let start = usize::from(round) * 4 * 512;
            assert_eq!(content[start..start + 2048], [round; 2048], "round {round}");
        }
        drop(server);
        // Who comes last ends it.
        let export = rig.exporter().export(Arc::new(Held::open(&image))).unwrap();
        export.stop();
    }

    #[test]
    #[ignore = "in the guest"]
    fn what_a_dead_server_left_is_served_on_with_the_same_image_only() {
        let rig = UblkRig::new();
        let image = image(rig.dir.path());
        let ones = vec![1; SIZE as usize];
        fs::write(&image, &ones).unwrap();
        let server = serve(rig.dir.path(), "image");
        let first = fs::canonicalize(rig.link()).unwrap();
        let mut cached = File::open(&first).unwrap();
        let mut content = vec![0; 4096];
        cached.read_exact(&mut content).unwrap();
        assert_eq!(content, ones[..4096], "and in the page cache from now on");
        drop(server);

        let twos = MemDevice::read_only(&vec![2; SIZE as usize], 512);
        let refused = |identity, device: MemDevice| -> String {
            match rig.exporter_of(identity).export(Arc::new(device)) {
                Err(error @ ExportError::Left { .. }) => error.to_string(),
                Err(other) => panic!("{other:?}"),
                Ok(_) => panic!("{identity} is served on a device of another image"),
            }
        };
        let said = refused("other", MemDevice::new(SIZE, 512));
        assert!(said.contains("it is of another image"), "{said}");
        let said = refused("image", MemDevice::new(SIZE / 2, 512));
        let sizes = format!("it has {SIZE} bytes, and the image has {} now", SIZE / 2);
        assert!(said.contains(&sizes), "{said}");
        let said = refused("image", MemDevice::read_only(&ones, 512));
        assert!(said.contains("other things"), "{said}");

        // It was changed while nobody served it: what was cached is read again.
        let changed = vec![3; SIZE as usize];
        fs::write(&image, &changed).unwrap();
        let held = Held::open(&image);
        assert_eq!(
            held.info().size,
            SIZE,
            "{:?}",
            DeviceInfo::read_only(SIZE, 512)
        );
        let server = serve(rig.dir.path(), "image");
        assert_eq!(fs::canonicalize(rig.link()).unwrap(), first);
        cached.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, changed[..4096]);
        drop(server);

        // Who gives it up by removing the link gets a new one, and those who wait get an error.
        let (link, waiting) = (rig.link(), Direct::open(&first));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| waiting.read(4096, 512));
            fs::remove_file(&link).unwrap();
            let export = rig.exporter_of("other").export(Arc::new(twos)).unwrap();
            let new = fs::canonicalize(&link).unwrap();
            assert_eq!(fs::read(&new).unwrap(), vec![2; SIZE as usize]);
            assert_ne!(new, first, "somebody has that one open");
            assert!(cached.read_exact_at(&mut content, SIZE / 2).is_err());
            waits.join().unwrap().unwrap_err();
            drop(cached);
            export.stop();
        });
    }
}
