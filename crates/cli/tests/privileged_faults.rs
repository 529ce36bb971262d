//! What must not hurt: a killed daemon, a lack of memory, readers against injection.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use lab::twin::{Times, assert_twins};
use lab::{Lab, busybox_root, noise, ok, until};

fn ends(child: &mut Child, what: &str) {
    until(what, || child.try_wait().unwrap().is_some());
}

#[test]
fn privileged_a_daemon_killed_at_any_point_of_a_boot_leaves_a_mount_that_clears() {
    let lab = Lab::new();
    let (root, pristine) = (lab.make_dir("root"), lab.path("pristine"));
    busybox_root(&root);
    ok(Command::new("cp").arg("-a").args([&root, &pristine]));
    let boot = "cat /usr/lib/part* > /dev/null; ls -R / > /dev/null; cat /etc/config";
    ok(lab
        .bootimg()
        .args(["record", "--name", "boot"])
        .arg(&root)
        .args(["--", "sh", "-c", boot]));
    let scratch = lab.make_dir("scratch");
    let start_boot = |mountpoint: &Path| {
        Command::new(env!("CARGO_BIN_EXE_bootimg"))
            .arg("__enter")
            .args([
                Path::new("--lower"),
                mountpoint,
                Path::new("--scratch"),
                &scratch,
            ])
            .args(["--", "sh", "-c", boot])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    // How long a boot takes here and now: the points are spread over that.
    let mountpoint = lab.mount(&root, "mnt", &["--no-inject"]);
    let started = Instant::now();
    let mut whole = start_boot(&mountpoint);
    ends(&mut whole, "an undisturbed boot");
    let boot_takes = started.elapsed();
    lab.umount(&mountpoint);
    let points = noise(20, 20);
    for (round, point) in points.iter().enumerate() {
        let flags: &[&str] = if round % 2 == 0 {
            &["--no-inject"]
        } else {
            &[]
        };
        let mountpoint = lab.mount(&root, "mnt", flags);
        let pid = lab.status(&mountpoint)["pid"].to_string();
        let mut boot = start_boot(&mountpoint);
        std::thread::sleep(boot_takes * u32::from(*point) / 255);
        ok(Command::new("kill").args(["-9", &pid]));
        ends(&mut boot, "a boot whose daemon was killed");
        lab.umount(&mountpoint);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            !mounts.contains(mountpoint.to_str().unwrap()),
            "round {round}: still mounted"
        );
    }
    assert_twins(&pristine, &root, Times::Ignored);
}

/// A memory cgroup, of version 1 or 2, whatever this machine has.
struct MemoryCgroup {
    dir: PathBuf,
}

impl MemoryCgroup {
    fn new(limit: u64) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (parent, file) = if v1.exists() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let dir = parent.join(format!("yolofs-lab-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(file), limit.to_string()).unwrap();
        Self { dir }
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Goes as soon as the last process in it is gone.
        until("the end of the cgroup's last process", || {
            fs::remove_dir(&self.dir).is_ok()
        });
    }
}

#[test]
fn privileged_readers_stay_right_against_injection_and_eviction() {
    const FILES: u32 = 12;
    const FILE_BYTES: usize = 8 << 20;
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    for index in 0..FILES {
        fs::write(
            root.join(format!("big{index}")),
            noise(1000 + index, FILE_BYTES),
        )
        .unwrap();
    }
    ok(lab
        .bootimg()
        .args(["record", "--name", "big"])
        .arg(&root)
        .args(["--", "sh", "-c", "cat /big* > /dev/null"]));
    // Half of what is injected fits: the kernel has to evict all the time. Injected pages are
    // charged to the daemon, so the daemon is what the limit is for.
    let cgroup = MemoryCgroup::new(48 << 20);
    let mountpoint = lab.make_dir("mnt");
    let join_and_mount = format!(
        "echo $$ > {}/cgroup.procs && exec \"$@\"",
        cgroup.dir.display()
    );
    let mut mount = Command::new("sh");
    mount
        .args(["-c", &join_and_mount, "sh"])
        .arg(env!("CARGO_BIN_EXE_yolofs"));
    mount
        .env("YOLOFS_STORE", lab.store())
        .env("YOLOFS_RUN_DIR", lab.run_dir());
    ok(mount
        .args(["mount", "--boot", "big"])
        .args([&root, &mountpoint]));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (stop, mountpoint) = (&stop, &mountpoint);
            scope.spawn(move || {
                let mut round = reader;
                while !stop.load(SeqCst) {
                    let index = round % FILES;
                    let read = fs::read(mountpoint.join(format!("big{index}"))).unwrap();
                    assert!(
                        read == noise(1000 + index, FILE_BYTES),
                        "big{index} is wrong"
                    );
                    round += 5;
                }
            });
        }
        for _ in 0..6 {
            ok(lab.bootimg().args(["prewarm", "big"]));
        }
        stop.store(true, SeqCst);
    });
    let status = lab.status(&mountpoint);
    assert!(
        status["boot"]["injected_pages"].as_u64().unwrap() > 0,
        "{status}"
    );
    assert!(
        status["boot"]["evicted_pages"].as_u64().unwrap() > 0,
        "{status}"
    );
    assert_eq!(status["boot"]["damaged"], 0, "{status}");
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_daemon_that_may_open_few_files_serves_many() {
    const FILES: usize = 300;
    let lab = Lab::new();
    let root = lab.make_dir("root");
    for index in 0..FILES {
        fs::write(root.join(index.to_string()), index.to_string()).unwrap();
    }
    for mode in ["disk", "lower"] {
        let mountpoint = lab.mount(&root, "mnt", &["--standalone", "--mode", mode]);
        let daemon = lab.status(&mountpoint)["pid"].to_string();
        ok(Command::new("prlimit").args(["--pid", &daemon, "--nofile=40:40"]));
        // All open at a time, those that are passed through included.
        let open = |index: usize| fs::File::open(mountpoint.join(index.to_string())).unwrap();
        let files: Vec<_> = (0..FILES).map(open).collect();
        for (index, file) in files.iter().enumerate() {
            let read = std::io::read_to_string(file).unwrap();
            assert_eq!(read, index.to_string(), "--mode {mode}");
        }
        drop(files);
        lab.umount(&mountpoint);
    }
}
