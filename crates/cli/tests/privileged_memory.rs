//! Each byte is in memory once: what a mount has in its page cache is not in the source's or the
//! store's, too. Counted in a control group of whoever serves and whoever reads.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod tight;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rawio::resident::Resident;

use lab::service::WORKER_USER;
use lab::{Lab, busybox_root, noise, ok, output, until};
use testkit::undisturbed::undisturbed;
use tight::Tight;

const MIB: u64 = 1 << 20;
/// What the boot reads, and what it does not.
const BOOT: u64 = 96;
const REST: u64 = 64;

/// Who serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Daemon,
    Node,
}

/// A source with a recorded boot, on a disk, and nothing of either in memory.
struct Rig {
    lab: Lab,
    source: PathBuf,
    tight: Tight,
    node: Option<Child>,
}

impl Rig {
    /// `disk`: the source is a disk image, and not a tree.
    fn new(by: By, disk: bool) -> Self {
        let lab = Lab::new();
        let source = if disk {
            let path = lab.path("disk.raw");
            let mut bytes = noise(1, usize::try_from(BOOT * MIB).unwrap());
            bytes.extend(noise(2, usize::try_from(REST * MIB).unwrap()));
            fs::write(&path, bytes).unwrap();
            path
        } else {
            let root = lab.make_dir("root");
            busybox_root(&root);
            fs::write(
                root.join("boot"),
                noise(1, usize::try_from(BOOT * MIB).unwrap()),
            )
            .unwrap();
            fs::write(
                root.join("rest"),
                noise(2, usize::try_from(REST * MIB).unwrap()),
            )
            .unwrap();
            root
        };
        let tight = Tight::new();
        let node = (by == By::Node).then(|| start_node(&lab, &tight));
        let rig = Self {
            lab,
            source,
            tight,
            node,
        };
        rig.forget();
        rig
    }

    fn record(&self) {
        let mut record = self.lab.bootimg();
        record.arg("record").arg(&self.source);
        record.args(["--name", "web", "--"]);
        if self.source.is_dir() {
            record.args(["md5sum", "/boot"]);
        } else {
            record.args(["sh", "-c"]);
            record.arg(format!(
                "exec dd if=$YOLOFS_IMAGE of=/dev/null bs=1M count={BOOT}"
            ));
        }
        ok(&mut record);
        self.forget();
    }

    /// The files of the source and of the store.
    fn files(&self) -> Vec<PathBuf> {
        let mut dirs = vec![self.lab.store(), self.source.clone()];
        let mut files = Vec::new();
        while let Some(path) = dirs.pop() {
            if path.is_dir() {
                let entries = fs::read_dir(&path).unwrap();
                dirs.extend(entries.map(|entry| entry.unwrap().path()));
            } else if path.is_file() {
                files.push(path);
            }
        }
        files
    }

    fn forget(&self) {
        for path in self.files() {
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        }
    }

    /// Bytes of the source and of the store that are in memory.
    fn behind(&self) -> u64 {
        let resident = |path: PathBuf| {
            let file = File::open(path).unwrap();
            let len = file.metadata().unwrap().len();
            Resident::look(&file, 0..len).unwrap().count() * 4096
        };
        self.files().into_iter().map(resident).sum()
    }

    fn mount(&self, flags: &[&str]) -> PathBuf {
        let mountpoint = self.lab.make_dir("mnt");
        let mut mount = self.tight.enter(env!("CARGO_BIN_EXE_yolofs"));
        mount
            .env("YOLOFS_STORE", self.lab.store())
            .env("YOLOFS_RUN_DIR", self.lab.run_dir())
            .arg("mount")
            .args([&self.source, &mountpoint])
            .args(flags);
        ok(&mut mount);
        mountpoint
    }

    /// Reads a file of a mount from its beginning, from within the group.
    fn read(&self, file: &Path, skip: u64, mib: u64) {
        let mut dd = self.tight.enter("dd");
        dd.arg(format!("if={}", file.display()));
        dd.args(["of=/dev/null", "bs=1M"]);
        dd.args([format!("skip={skip}"), format!("count={mib}")]);
        ok(&mut dd);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mnt = self.lab.path("mnt");
        let _gone = output(self.lab.yolofs().args(["umount", "--lazy"]).arg(mnt));
        if let Some(mut node) = self.node.take() {
            kill(Pid::from_raw(node.id().cast_signed()), Signal::SIGTERM).unwrap();
            node.wait().unwrap();
        }
    }
}

fn start_node(lab: &Lab, tight: &Tight) -> Child {
    let log = File::create(lab.path("node.log")).unwrap();
    let mut node = tight.enter(env!("CARGO_BIN_EXE_yolofs"));
    node.env("YOLOFS_STORE", lab.store())
        .env("YOLOFS_CONFINE", "strict")
        .args(["node", "--run-dir"])
        .arg(lab.run_dir())
        .arg("--state-dir")
        .arg(lab.path("state"))
        .args(["--worker-user", WORKER_USER])
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let node = node.spawn().unwrap();
    until("the node to answer", || {
        output(lab.yolofs().args(["node", "status"]))
            .status
            .success()
    });
    node
}

/// Asserts that so many MiB are in memory, and no more than a twentieth beside them.
#[track_caller]
fn assert_once(bytes: u64, mib: u64) {
    let (least, most) = (mib * MIB * 99 / 100, mib * MIB * 105 / 100);
    assert!(
        (least..=most).contains(&bytes),
        "{bytes} bytes in memory, for {mib} MiB"
    );
}

fn each_byte_once(by: By, disk: bool) {
    let rig = Rig::new(by, disk);
    rig.record();
    let before = rig.tight.page_cache();
    let flags: &[&str] = match by {
        By::Daemon => &["--standalone", "--boot", "web", "--wait-prewarm"],
        By::Node => &["--boot", "web", "--wait-prewarm"],
    };
    let mountpoint = rig.mount(flags);
    assert_once(rig.tight.page_cache() - before, BOOT);
    // The tables of the store, and what is read ahead of them.
    assert!(rig.behind() < 4 * MIB, "{}", rig.behind());

    // What was not recorded falls through to the source.
    let file = match disk {
        true => mountpoint.join("disk.raw"),
        false => mountpoint.join("rest"),
    };
    rig.read(&file, if disk { BOOT } else { 0 }, REST);
    assert_once(rig.tight.page_cache() - before, BOOT + REST);
    assert!(rig.behind() < 4 * MIB, "{}", rig.behind());
}

#[test]
fn privileged_each_byte_of_a_tree_is_in_memory_once() {
    undisturbed(|| each_byte_once(By::Daemon, false));
}

#[test]
fn privileged_each_byte_of_a_disk_is_in_memory_once() {
    undisturbed(|| each_byte_once(By::Daemon, true));
}

#[test]
fn privileged_each_byte_of_a_nodes_mount_is_in_memory_once() {
    undisturbed(|| {
        each_byte_once(By::Node, false);
        each_byte_once(By::Node, true);
    });
}

#[test]
fn privileged_what_somebody_else_has_in_memory_stays() {
    undisturbed(|| {
        let rig = Rig::new(By::Daemon, false);
        let mut somebody = vec![0; usize::try_from(8 * MIB).unwrap()];
        let file = File::open(rig.source.join("rest")).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
        file.read_exact_at(&mut somebody, 16 * MIB).unwrap();
        let mountpoint = rig.mount(&["--standalone"]);
        rig.read(&mountpoint.join("rest"), 0, REST);
        let there = Resident::look(&file, 16 * MIB..24 * MIB).unwrap();
        assert!(there.is_all());
        assert!(rig.behind() < 9 * MIB, "{}", rig.behind());
    });
}

#[test]
fn privileged_a_prewarm_drops_what_it_has_loaded_when_mounts_have_it() {
    undisturbed(|| {
        let rig = Rig::new(By::Daemon, false);
        rig.record();
        let load = || ok(rig.lab.bootimg().args(["prewarm", "web"]));
        // Nobody else has it: in memory it stays, and is not read again.
        load();
        assert_once(rig.behind(), BOOT);
        rig.forget();
        let before = rig.tight.page_cache();
        let flags = ["--standalone", "--boot", "web", "--budget", "0"];
        let _mountpoint = rig.mount(&flags);
        load();
        assert!(rig.behind() < 4 * MIB, "{}", rig.behind());
        assert_once(rig.tight.page_cache() - before, BOOT);
    });
}

/// What is locked cannot be dropped: over the limit of a memory group, the kernel kills who has it.
#[test]
fn privileged_no_more_is_locked_than_the_memory_group_leaves() {
    for by in [By::Daemon, By::Node] {
        let rig = Rig::new(by, false);
        rig.record();
        for (limit, locked) in [(BOOT - 32, 0), (BOOT + 256, BOOT)] {
            rig.tight.limit_memory(limit * MIB);
            let flags: &[&str] = match by {
                By::Daemon => &["--standalone", "--boot", "web", "--lock", "--wait-prewarm"],
                By::Node => &["--boot", "web", "--lock", "--wait-prewarm"],
            };
            let mountpoint = rig.mount(flags);
            let pid = rig.lab.status(&mountpoint)["pid"].clone();
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
            let kib = line.unwrap().trim().trim_end_matches(" kB");
            let has = kib.parse::<u64>().unwrap() >> 10;
            assert_eq!(has, locked, "{by:?}: of {limit} MiB");
            // Whoever serves is alive, and so is what it serves.
            rig.read(&mountpoint.join("boot"), 0, BOOT);
            assert_eq!(rig.lab.status(&mountpoint)["pid"], pid, "{by:?}");
            rig.lab.umount(&mountpoint);
        }
        rig.tight.lift_limit();
    }
}
