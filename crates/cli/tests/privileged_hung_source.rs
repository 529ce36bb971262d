//! A source that stops answering takes neither the mount nor its daemon with it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use localfs::{LocalError, SourceRoot, canonical_within};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;
use nix::sys::stat::minor;

use lab::service::{Service, signal_to, umount};
use lab::stopped::Stopped;
use lab::{Lab, busybox_root, fails, noise, ok, output, until};
use testkit::undisturbed::undisturbed;

/// Reads a file from a program of its own, so that a read that hangs is not the test's.
fn cat(file: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["60", "cat"]).arg(file);
    command
}

/// The process that serves a mount.
fn pid_of(lab: &Lab, mountpoint: &Path) -> u32 {
    let pid = lab.status(mountpoint)["pid"].as_u64().unwrap();
    u32::try_from(pid).unwrap()
}

#[test]
fn privileged_a_source_that_hangs_fails_reads_and_nothing_else() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    // A source whose server can be stopped: another mount of ours.
    let source = lab.mount(&root, "source", &[]);
    let server = pid_of(&lab, &source);
    let mountpoint = lab.mount(&source, "mnt", &["--source-deadline", "0.5"]);
    let daemon = lab.status(&mountpoint)["pid"].to_string();
    let read = |name: &str| ok(cat(&mountpoint.join(name)).arg("/dev/null"));
    assert_eq!(read("etc/config"), "answer = 42\n");

    let stopped = Stopped::stop(server);
    for part in ["usr/lib/part00", "usr/lib/part01"] {
        // The exit code of cat, not that of a timeout.
        let error = fails(1, &mut cat(&mountpoint.join(part)));
        assert!(
            error.contains("timed out") || error.contains("I/O"),
            "{error}"
        );
    }
    // What the kernel has of it is still there, and the daemon still answers.
    assert_eq!(read("etc/config"), "answer = 42\n");
    let status = lab.status(&mountpoint);
    assert_eq!(status["state"], "serving");
    assert!(status["served"]["late_answers"].as_u64().unwrap() >= 2);
    assert!(status["served"]["hung_threads"].as_u64().unwrap() >= 1);
    drop(stopped);

    until("the helpers to come back", || {
        lab.status(&mountpoint)["served"]["hung_threads"] == 0
    });
    let want = fs::read(root.join("usr/lib/part00")).unwrap();
    until("the file to be read", || {
        fs::read(mountpoint.join("usr/lib/part00")).is_ok_and(|got| got == want)
    });

    // A source that hangs keeps nobody from unmounting, nor the daemon from its end.
    let stopped = Stopped::stop(server);
    fails(1, &mut cat(&mountpoint.join("usr/lib/part02")));
    lab.umount(&mountpoint);
    until("the daemon's end", || {
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
        stat.rsplit_once(") ")
            .is_none_or(|(_, state)| state.starts_with('Z'))
    });
    drop(stopped);
}

#[test]
fn privileged_names_of_a_source_that_hangs_are_not_waited_for_either() {
    undisturbed(names_of_a_source_that_hangs_are_not_waited_for);
}

fn names_of_a_source_that_hangs_are_not_waited_for() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &[]);
    let server = pid_of(&lab, &source);
    let flags = ["--revalidate", "60", "--source-deadline", "0.5"];
    let mountpoint = lab.mount(&source, "mnt", &flags);
    ok(&mut cat(&mountpoint.join("etc/config")));

    let stopped = Stopped::stop(server);
    // What nobody asked for yet: the kernel knows the other names of the source by itself.
    let error = fails(1, &mut cat(&mountpoint.join("usr/lib/absent")));
    assert!(error.contains("timed out"), "{error}");
    let status = lab.status(&mountpoint);
    assert!(status["served"]["late_answers"].as_u64().unwrap() >= 1);
    assert!(status["served"]["hung_threads"].as_u64().unwrap() >= 1);
    // What the kernel knows it still knows.
    ok(&mut cat(&mountpoint.join("etc/config")));
    drop(stopped);
    until("the name to be looked up", || {
        fails(1, &mut cat(&mountpoint.join("usr/lib/absent"))).contains("No such file")
    });
    lab.umount(&mountpoint);
}

/// A source with a recorded boot whose server can be stopped, and a mount of it that answers from the
/// boot image by requests.
struct BootBesideHung {
    server: u32,
    mountpoint: PathBuf,
    waiting: Waiting,
}

/// The kernel's count of requests of a mount that are not answered.
struct Waiting(PathBuf);

impl Waiting {
    fn of(lab: &Lab, mountpoint: &Path) -> Self {
        // Not every machine has it mounted; it goes with the lab.
        let control = lab.make_dir("fusectl");
        let mut mount = Command::new("mount");
        ok(mount.args(["-t", "fusectl", "none"]).arg(&control));
        let device = fs::metadata(mountpoint).unwrap().dev();
        Self(control.join(minor(device).to_string()).join("waiting"))
    }

    fn count(&self) -> u64 {
        let count = fs::read_to_string(&self.0).unwrap();
        count.trim().parse().unwrap()
    }
}

/// The file of which each reader that hangs reads a part of its own: more than is read ahead.
const PART: usize = 1 << 20;
const READERS: usize = 64;

impl BootBesideHung {
    fn new(lab: &Lab, flags: &[&str]) -> Self {
        let root = lab.make_dir("root");
        busybox_root(&root);
        fs::write(root.join("large"), noise(7, READERS * PART)).unwrap();
        fs::write(root.join("boot"), noise(8, 4 * PART)).unwrap();
        let source = lab.mount(&root, "source", &["--standalone"]);
        let server = pid_of(lab, &source);
        let mut record = lab.bootimg();
        record.arg("record").arg(&source);
        ok(record.args(["--name", "web", "--", "md5sum", "/boot"]));
        let mountpoint = lab.make_dir("mnt");
        let mut mount = lab.yolofs();
        mount.arg("mount").args([&source, &mountpoint]).args(flags);
        ok(mount.args(["--boot", "web", "--no-inject"]));
        let waiting = Waiting::of(lab, &mountpoint);
        Self {
            server,
            mountpoint,
            waiting,
        }
    }

    /// Begins to read a part of a file that only the source has.
    fn hang(&self, part: usize) -> Child {
        let mut dd = Command::new("dd");
        dd.arg(format!("if={}", self.mountpoint.join("large").display()));
        dd.args(["of=/dev/null", "bs=4096", "count=1"]);
        dd.arg(format!("skip={}", part * PART / 4096));
        dd.stderr(Stdio::null());
        dd.spawn().unwrap()
    }

    /// Reads from the boot image while so many readers hang in the source, and has the source come
    /// back.
    fn boot_beside(&self, readers: usize, from: u64) {
        let stopped = Stopped::stop(self.server);
        let mut hung: Vec<Child> = (0..readers).map(|part| self.hang(part)).collect();
        until("all readers to hang", || {
            self.waiting.count() >= readers as u64
        });
        let want = noise(8, 4 * PART);
        // Nobody has read it yet: the mount is asked.
        let mut read = Command::new("timeout");
        read.args(["20", "dd"]);
        read.arg(format!("if={}", self.mountpoint.join("boot").display()));
        read.args(["bs=1M", "count=1", &format!("skip={from}")]);
        let got = output(&mut read);
        assert!(got.status.success(), "{readers} readers: {got:?}");
        let start = usize::try_from(from).unwrap() * PART;
        assert!(got.stdout == want[start..start + PART]);
        // Names are answered, too, whether they are there or not.
        let mut look = Command::new("timeout");
        look.args(["20", "stat"]);
        look.arg(self.mountpoint.join(format!("usr/lib/part{from:02}")));
        ok(&mut look);
        for reader in &mut hung {
            assert!(reader.try_wait().unwrap().is_none(), "it hangs still");
        }
        drop(stopped);
        for mut reader in hung {
            assert!(reader.wait().unwrap().success());
        }
    }
}

#[test]
fn privileged_readers_that_hang_keep_nobody_from_booting() {
    let lab = Lab::new();
    let flags = ["--standalone", "--source-deadline", "600"];
    let rig = BootBesideHung::new(&lab, &flags);
    for (from, readers) in [2, 8, READERS].into_iter().enumerate() {
        rig.boot_beside(readers, from as u64);
        // What they have read is in memory now: the next ones read it anew.
        let large = File::open(rig.mountpoint.join("large")).unwrap();
        posix_fadvise(&large, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
    let status = lab.status(&rig.mountpoint);
    assert_eq!(status["served"]["late_answers"], 0);
    lab.umount(&rig.mountpoint);
}

#[test]
fn privileged_readers_that_hang_keep_nobody_from_booting_on_a_nodes_mount() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let rig = BootBesideHung::new(&lab, &[]);
    rig.boot_beside(READERS, 0);
    lab.umount(&rig.mountpoint);
    drop(service);
}

#[test]
fn privileged_names_that_hang_keep_no_other_request_waiting() {
    let lab = Lab::new();
    let mut flags = vec!["--standalone", "--source-deadline", "600"];
    flags.extend(["--revalidate", "600"]);
    let rig = BootBesideHung::new(&lab, &flags);
    let dir = rig.mountpoint.join("usr/lib");
    // Names and attributes of these are known for ten minutes from now on.
    for known in [&dir, &rig.mountpoint.join("boot")] {
        fs::metadata(known).unwrap();
    }
    let stopped = Stopped::stop(rig.server);
    let look = |number: usize| {
        let mut stat = Command::new("stat");
        stat.arg(dir.join(format!("absent{number}")));
        stat.stderr(Stdio::null()).spawn().unwrap()
    };
    let mut hung: Vec<Child> = (0..8).map(look).collect();
    // Directories, links and attributes of the source are asked for anew each time.
    for question in [["ls", "/etc"], ["readlink", "/bin/sh"]] {
        let mut ask = Command::new(question[0]);
        ask.arg(rig.mountpoint.join(&question[1][1..]));
        ask.stdout(Stdio::null()).stderr(Stdio::null());
        hung.push(ask.spawn().unwrap());
    }
    until("all of them to hang", || rig.waiting.count() >= 10);
    // The daemon is asked for this, and needs no source for it; content it gives only of the version
    // that the source has now.
    let mut sync = Command::new("timeout");
    ok(sync.args(["20", "sync"]).arg(rig.mountpoint.join("boot")));
    assert_eq!(lab.status(&rig.mountpoint)["state"], "serving");
    for asker in &mut hung {
        assert!(asker.try_wait().unwrap().is_none(), "it hangs still");
    }
    drop(stopped);
    let ends = hung.iter_mut().map(|asker| asker.wait().unwrap().success());
    assert_eq!(
        ends.filter(|found| *found).count(),
        2,
        "the list and the link"
    );
    lab.umount(&rig.mountpoint);
}

#[test]
fn privileged_a_source_that_hangs_is_not_scanned_for_ever() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &[]);
    let server = pid_of(&lab, &source);
    let mountpoint = lab.make_dir("mnt");
    let mut mount = lab.yolofs();
    mount.args(["mount", "--source-deadline", "0.5"]);
    mount.args([&source, &mountpoint]);

    let stopped = Stopped::stop(server);
    let error = fails(1, &mut mount);
    assert!(error.contains("has not answered for 0.5 s"), "{error}");
    drop(stopped);
    ok(&mut mount);
    lab.umount(&mountpoint);
}

#[test]
fn privileged_the_node_goes_on_while_it_waits_for_a_source_that_hangs() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &["--standalone"]);
    let server = pid_of(&lab, &source);
    let mountpoint = lab.make_dir("hung");

    let stopped = Stopped::stop(server);
    let mut mount = lab.yolofs();
    let mount = mount.arg("mount").args([&source, &mountpoint]);
    let mut mount = mount.spawn().unwrap();
    // Others are mounted and served, and the node says how they do.
    let other = lab.mount(&root, "other", &[]);
    assert_eq!(lab.status(&other)["state"], "serving");
    assert_eq!(
        ok(cat(&other.join("etc/config")).arg("/dev/null")),
        "answer = 42\n"
    );
    assert!(mount.try_wait().unwrap().is_none(), "it waits");
    service.until_state(&mountpoint, "starting");
    assert_eq!(lab.status(&mountpoint)["state"], "starting");
    drop(stopped);
    assert!(mount.wait().unwrap().success());
    assert_eq!(
        ok(cat(&mountpoint.join("etc/config")).arg("/dev/null")),
        "answer = 42\n"
    );
    // The same when a node makes it again, as after a reboot.
    service.kill_all();
    umount(&["-l"], &mountpoint);
    let stopped = Stopped::stop(server);
    service.start_again();
    service.until_state(&mountpoint, "starting");
    service.until_state(&other, "serving");
    assert_eq!(service.state(&mountpoint), "starting");
    drop(stopped);
    service.until_state(&mountpoint, "serving");
    for place in [&mountpoint, &other, &source] {
        lab.umount(place);
    }
    drop(service);
}

/// The thread of the daemon that a command has started which waits for the source, with the
/// daemon's number.
fn waiting(command: &Child) -> Option<(String, PathBuf)> {
    let pid = command.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let daemon = children.split_whitespace().next()?.to_owned();
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).ok()?;
    let mut threads = tasks.filter_map(|task| Some(task.ok()?.path()));
    let waits = threads.find(|thread| {
        let name = fs::read_to_string(thread.join("comm"));
        name.is_ok_and(|name| name.trim_end() == "source")
    });
    Some((daemon, waits?))
}

#[test]
fn privileged_ctrl_c_ends_a_mount_whose_source_hangs() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &[]);
    let server = pid_of(&lab, &source);
    let mountpoint = lab.make_dir("mnt");
    let mount = |source: &Path| {
        let mut mount = lab.yolofs();
        mount.args(["mount", "--standalone", "--source-deadline", "600"]);
        mount.arg(source).arg(&mountpoint);
        mount
    };
    // One that hangs when it is opened, and one whose root the kernel knows.
    for source in [source.join("usr/lib"), source.clone()] {
        let stopped = Stopped::stop(server);
        let mut command = mount(&source).spawn().unwrap();
        let (mut seen, mut looks) = (None, 0);
        until("the daemon to wait for the source", || {
            let now = waiting(&command);
            looks = if now.is_some() && now == seen {
                looks + 1
            } else {
                0
            };
            seen = now;
            looks == 20
        });
        // As Ctrl-C, which who runs in the background may have been told to ignore.
        signal_to(command.id(), Signal::SIGTERM);
        let mut status = None;
        until("the command to end", || {
            status = command.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(130));
        let (daemon, _) = seen.unwrap();
        assert!(!Path::new("/proc").join(daemon).exists());
        drop(stopped);
        ok(&mut mount(&source));
        lab.umount(&mountpoint);
    }
}

#[test]
fn privileged_whatever_way_a_source_is_opened_it_is_not_waited_for_for_ever() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    for dir in ["one", "two/layer", "three"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(root.join("disk"), vec![7; 70_000]).unwrap();
    let source = lab.mount(&root, "source", &[]);
    let dir = || File::open(&source).unwrap().into();
    let label = format!("disk:{}/disk", source.display()).into_bytes();
    let dirs = [dir(), dir()];
    let soon = Duration::from_millis(300);
    let stopped = Stopped::stop(pid_of(&lab, &source));
    let late = |opened: Result<SourceRoot, LocalError>| {
        assert!(
            matches!(opened, Err(LocalError::NoAnswer { .. })),
            "{opened:?}"
        );
    };
    let [first, second] = dirs;
    late(SourceRoot::open_within(source.join("one"), soon));
    late(SourceRoot::open_plain_within(
        source.join("two/layer"),
        soon,
    ));
    late(SourceRoot::resume_within(first, &label, soon));
    let error = canonical_within(&source.join("three"), soon).unwrap_err();
    assert!(error.to_string().contains("has not answered"), "{error}");
    drop(stopped);
    let patience = Duration::from_secs(60);
    let disk = SourceRoot::resume_within(second, &label, patience).unwrap();
    assert_eq!(disk.label().as_encoded_bytes(), label);
    drop(disk);
    // Those that were given up come back, and let go of what they have opened.
    until("nobody to use it", || {
        output(lab.yolofs().arg("umount").arg(&source))
            .status
            .success()
    });
}

/// Until the source has answered there is nothing to undo: one Ctrl-C is enough.
#[test]
fn privileged_a_recorder_of_a_source_that_hangs_ends_at_once() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &["--standalone"]);
    let stopped = Stopped::stop(pid_of(&lab, &source));
    let mut record = lab.bootimg();
    record.arg("record").arg(source.join("usr"));
    let mut record = record.args(["--", "true"]).spawn().unwrap();
    until("it to wait for the source", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", record.id())).unwrap();
        let wait = |task: std::io::Result<fs::DirEntry>| {
            fs::read_to_string(task.unwrap().path().join("wchan")).unwrap_or_default()
        };
        tasks.map(wait).any(|wait| wait.contains("request_wait"))
    });
    signal_to(record.id(), Signal::SIGINT);
    assert_eq!(record.wait().unwrap().code(), Some(130));
    drop(stopped);
}
