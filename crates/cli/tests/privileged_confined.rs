//! A daemon that is confined serves every way of reading. It is confined strictly here: a system
//! call that is missing in the list kills it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::{Lab, busybox_root, noise, ok, until};

/// A mount whose daemon is confined strictly.
struct Confined<'a> {
    lab: &'a Lab,
    mountpoint: PathBuf,
    pid: String,
}

impl<'a> Confined<'a> {
    fn mount(lab: &'a Lab, source: &Path, flags: &[&str]) -> Self {
        let mountpoint = lab.make_dir("mnt");
        ok(lab
            .yolofs()
            .env("YOLOFS_CONFINE", "strict")
            .arg("mount")
            .args([source, &mountpoint])
            .args(flags));
        let pid = lab.status(&mountpoint)["pid"].to_string();
        Self {
            lab,
            mountpoint,
            pid,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The states of all threads, as `/proc` shows them.
    fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        // One that ended meanwhile has none.
        tasks
            .filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok())
            .collect()
    }

    /// Unmounts, and waits for the end that the daemon comes to by itself.
    fn leave(self) {
        let status = self.lab.status(&self.mountpoint);
        assert_eq!(status["state"], "serving", "{status}");
        assert_eq!(status["pid"].to_string(), self.pid);
        self.lab.umount(&self.mountpoint);
        until("the daemon's end", || has_ended(&self.pid));
    }
}

/// Whether a process has ended, reaped or not.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, state)| state);
    state.is_none_or(|state| state.starts_with('Z'))
}

/// Compares two trees by all that programs see of their files.
fn assert_same(left: &Path, right: &Path) {
    let seen = |root: &Path| {
        let listed = ok(Command::new("find").current_dir(root).args([
            ".",
            "-printf",
            "%P %y %m %U %G %s %l\\n",
        ]));
        let mut listed: Vec<_> = listed.lines().map(str::to_owned).collect();
        listed.sort();
        listed
    };
    assert_eq!(seen(left), seen(right));
    ok(Command::new("diff").arg("-r").args([left, right]));
}

#[test]
fn privileged_a_confined_daemon_serves_a_tree_in_every_way() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let dir = File::open(root.join("etc")).unwrap();
    rawio::xattr::set_at(&dir, b"config", c"user.note", b"seen").unwrap();
    ok(lab
        .bootimg()
        .arg("record")
        .arg(&root)
        .args(["--", "/bin/sh", "-c"])
        .arg("cat /etc/config /usr/lib/part0* > /dev/null; ls -lR /bin /etc /usr > /dev/null"));

    let mount = Confined::mount(&lab, &root, &["--wait-prewarm", "--lock"]);
    let status = lab.status(&mount.mountpoint);
    assert_eq!(status["boot"]["prewarm"], "done", "{status}");
    assert!(status["boot"]["injected_pages"].as_u64().unwrap() > 0);
    for thread in mount.threads() {
        // CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_IPC_LOCK and CAP_SYS_ADMIN.
        for expected in [
            "CapPrm:\t000000000020400c",
            "CapEff:\t000000000020400c",
            "CapBnd:\t000000000020400c",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(thread.contains(expected), "{expected}\n{thread}");
        }
    }
    assert_same(&root, &mount.mountpoint);
    // By a mapping: the kernel maps programs to run them.
    let program = mount.path("bin/busybox");
    assert_eq!(
        ok(Command::new(program).args(["echo", "mapped"])),
        "mapped\n"
    );
    let dir = File::open(mount.path("etc")).unwrap();
    let note = rawio::xattr::get_at(&dir, b"config", b"user.note").unwrap();
    assert_eq!(note.unwrap(), b"seen");
    drop(dir);
    ok(Command::new("dd")
        .arg(format!("if={}", mount.path("usr/lib/part15").display()))
        .args(["of=/dev/null", "iflag=direct", "bs=4096"]));
    ok(Command::new("stat").arg("-f").arg(&mount.mountpoint));
    ok(lab.bootimg().args(["prewarm", "--all"]));
    mount.leave();
}

#[test]
fn privileged_a_confined_daemon_serves_a_disk() {
    let lab = Lab::new();
    let disk = lab.make_dir("disks").join("disk.raw");
    fs::write(&disk, noise(1, 3 << 20)).unwrap();
    let mount = Confined::mount(&lab, &disk, &[]);
    ok(Command::new("cmp").args([&disk, &mount.path("disk.raw")]));
    // Passed through, if the kernel does that.
    ok(Command::new("cmp").args([&disk, &mount.path("disk.raw")]));
    mount.leave();
}

#[test]
fn privileged_a_confined_daemon_follows_a_source_that_changes() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let mount = Confined::mount(&lab, &root, &["--revalidate", "0"]);
    assert_same(&root, &mount.mountpoint);
    fs::write(root.join("etc/config"), "answer = 43\n").unwrap();
    fs::write(root.join("etc/new"), "new").unwrap();
    fs::remove_file(root.join("usr/lib/part00")).unwrap();
    until("the changes to be seen", || {
        fs::read(mount.path("etc/config")).is_ok_and(|bytes| bytes == b"answer = 43\n")
            && mount.path("etc/new").exists()
            && !mount.path("usr/lib/part00").exists()
    });
    assert_same(&root, &mount.mountpoint);
    mount.leave();
}

#[test]
fn privileged_a_confined_daemon_writes_its_trace() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let trace = lab.path("trace");
    let mount = Confined::mount(&lab, &root, &["--record", trace.to_str().unwrap()]);
    assert_same(&root, &mount.mountpoint);
    mount.leave();
    assert!(fs::metadata(trace).unwrap().len() > 0);
}

/// The processes that a process has started.
fn children(pid: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let listed = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")));
    let listed: String = listed.map(Result::unwrap_or_default).collect();
    listed.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn privileged_a_daemon_is_confined_to_its_files_and_another_process_unmounts_for_it() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let mountpoint = lab.make_dir("mnt");
    ok(lab
        .yolofs()
        .env("YOLOFS_CONFINE", "strict")
        .env("YOLOFS_LOG", "debug")
        .arg("mount")
        .args([&root, &mountpoint]));
    let status = lab.status(&mountpoint);
    let log = lab
        .run_dir()
        .join(format!("{}.log", status["id"].as_str().unwrap()));
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("by Landlock: FullyEnforced"), "{log}");
    let daemon = status["pid"].to_string();
    let [helper] = children(&daemon).try_into().unwrap();
    let rights = fs::read_to_string(format!("/proc/{helper}/status")).unwrap();
    // CAP_DAC_READ_SEARCH and CAP_SYS_ADMIN.
    for expected in [
        "CapPrm:\t0000000000200004",
        "CapEff:\t0000000000200004",
        "CapBnd:\t0000000000200004",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(rights.contains(expected), "{expected}\n{rights}");
    }
    // It is the daemon that is asked to end, and the helper that unmounts.
    ok(Command::new("kill").arg(&daemon));
    until("the mount to be gone", || {
        !mountpoint.join("etc/config").exists()
    });
    until("both to have ended", || {
        has_ended(&helper) && has_ended(&daemon)
    });
}

#[test]
fn privileged_a_daemon_without_its_helper_says_what_to_do() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let mount = Confined::mount(&lab, &root, &[]);
    let [helper] = children(&mount.pid).try_into().unwrap();
    ok(Command::new("kill").args(["-KILL", &helper]));
    until("the helper's end", || {
        let why = lab::output(lab.yolofs().arg("umount").arg(&mount.mountpoint));
        let why = String::from_utf8_lossy(&why.stderr).into_owned();
        why.contains("umount(8)")
    });
    assert_same(&root, &mount.mountpoint);
    ok(Command::new("umount").arg(&mount.mountpoint));
    until("the daemon's end", || has_ended(&mount.pid));
}

/// Takes a copy of a process's descriptor, and holds it until its input ends: `pidfd_open`, and
/// `pidfd_getfd`, which Rust's libraries do not have.
const HOLD: &str = "$| = 1; my $process = syscall(434, $ARGV[0] + 0, 0); \
    print syscall(438, $process, $ARGV[1] + 0, 0) < 0 ? qq(no\n) : qq(held\n); <STDIN>;";

#[test]
fn privileged_requests_end_with_a_killed_daemon_though_its_device_stays_open() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let mount = Confined::mount(&lab, &root, &[]);
    let descriptors = fs::read_dir(format!("/proc/{}/fd", mount.pid)).unwrap();
    let device = descriptors
        .map(Result::unwrap)
        .find(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == Path::new("/dev/fuse")))
        .unwrap()
        .file_name();
    // As a thread does that hangs in the kernel.
    let mut holder = Command::new("perl")
        .args(["-e", HOLD, &mount.pid])
        .arg(device)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    ok(Command::new("kill").args(["-KILL", &mount.pid]));
    // Nobody answers, and the device is open: without the helper this would never end.
    let read = lab::output(
        Command::new("timeout")
            .args(["60", "cat"])
            .arg(mount.path("etc/config")),
    );
    assert_eq!(read.status.code(), Some(1), "{read:?}");
    drop(holder.stdin.take());
    holder.wait().unwrap();
    lab.umount(&mount.mountpoint);
}
