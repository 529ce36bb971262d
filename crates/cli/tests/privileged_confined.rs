//! A daemon that is confined serves every way of reading. It is confined strictly here: a system
//! call that is missing in the list kills it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod lab;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

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
        until("the daemon's end", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
            let stat = stat.unwrap_or_default();
            let state = stat.rsplit_once(") ").map(|(_, state)| state);
            state.is_none_or(|state| state.starts_with('Z'))
        });
    }
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
        .arg("cat /etc/config /usr/lib/part0* > /dev/null; ls -lR / > /dev/null"));

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
