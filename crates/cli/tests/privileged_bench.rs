//! `bootimg bench`: starts of what was recorded, cold, prewarmed and warm.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lab::dockerd::Dockerd;
use lab::{Lab, busybox_root, fails, json, noise, ok, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const READ_ALL: &str = "cat /usr/lib/* /srv/noise > /dev/null";
const NOISE: usize = 3_000_000;

/// A file system on a loop device of its own, so that what its disk is asked for is asked by the test alone.
struct Disk(PathBuf);

impl Disk {
    fn new(lab: &Lab) -> Self {
        let (image, at) = (lab.path("disk.ext4"), lab.make_dir("disk"));
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        ok(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        ok(Command::new("mount")
            .args(["-o", "loop"])
            .arg(&image)
            .arg(&at));
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn root_on(disk: &Disk) -> PathBuf {
    let root = disk.0.join("root");
    busybox_root(&root);
    fs::create_dir_all(root.join("srv")).unwrap();
    fs::write(root.join("srv/noise"), noise(9, NOISE)).unwrap();
    root
}

fn record(lab: &Lab, source: &Path, name: &str, command: &[&str]) {
    let mut record = lab.bootimg();
    record
        .args(["record", "--name", name])
        .arg(source)
        .arg("--");
    ok(record.args(command));
}

fn samples<'a>(report: &'a Value, mode: &str) -> Vec<&'a Value> {
    let all = report["samples"].as_array().unwrap().iter();
    all.filter(|sample| sample["mode"] == mode).collect()
}

/// Panics unless cold starts read `bytes` from the disk, and prewarmed ones nothing, neither from it nor from us.
/// Another test may have the kernel drop pages in the middle of one start, but hardly of each.
fn check_reads(report: &Value, bytes: usize) {
    let count = |sample: &Value, field: &str| sample[field].as_u64().unwrap();
    for cold in samples(report, "native-cold") {
        assert!(count(cold, "disk_bytes") >= bytes as u64, "{report:#}");
        assert_eq!(count(cold, "fuse_reads"), 0, "{report:#}");
    }
    let ours = samples(report, "yolofs");
    assert!(
        ours.iter().all(|ours| ours["missed_bytes"] == 0),
        "{report:#}"
    );
    let nothing = |ours: &&Value| count(ours, "fuse_reads") == 0 && count(ours, "disk_bytes") == 0;
    assert!(ours.iter().any(nothing), "{report:#}");
    let mut warm = samples(report, "native-warm").into_iter();
    assert!(
        warm.any(|warm| count(warm, "disk_bytes") == 0),
        "{report:#}"
    );
}

fn assert_nothing_is_left(lab: &Lab) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let run_dir = lab.run_dir();
    assert!(!mounts.contains(run_dir.to_str().unwrap()), "{mounts}");
    assert_eq!(fs::read_dir(run_dir).unwrap().count(), 0);
}

#[test]
fn privileged_a_prewarmed_start_of_a_directory_reads_nothing() {
    let lab = Lab::new();
    let disk = Disk::new(&lab);
    let root = root_on(&disk);
    record(&lab, &root, "web", &["/bin/sh", "-c", READ_ALL]);

    // By its name, with the command that was recorded. What else is called so in the working directory is not meant.
    lab.make_dir("web");
    let page = lab.path("web.html");
    let report = json(
        lab.bootimg()
            .current_dir(lab.path("."))
            .args(["bench", "web", "--runs", "3", "--json", "--report"])
            .arg(&page),
    );
    check_reads(&report, NOISE);
    assert_eq!(report["recorded_as"], "web");
    let modes = report["samples"].as_array().unwrap().iter();
    let modes: Vec<_> = modes
        .map(|sample| sample["mode"].as_str().unwrap())
        .collect();
    let (odd, even) = (
        ["native-cold", "native-warm", "yolofs"],
        ["yolofs", "native-cold", "native-warm"],
    );
    assert_eq!(modes, [odd, even, odd].concat());
    let html = fs::read_to_string(&page).unwrap();
    for way in ["native, cold", "native, warm", "yolofs"] {
        assert!(html.contains(way), "{way} is not on the page");
    }
    assert_nothing_is_left(&lab);

    // By its path, with a command that reads more, for people.
    let more = [
        "--",
        "/bin/sh",
        "-c",
        "cat /etc/config /srv/noise /usr/lib/* > /dev/null",
    ];
    let text = ok(lab
        .bootimg()
        .args(["bench", "--runs", "1"])
        .arg(&root)
        .args(more));
    assert!(text.contains("it reads what was not recorded"), "{text}");
    assert!(text.contains("POSIX_FADV_DONTNEED"), "{text}");
}

#[test]
fn privileged_a_prewarmed_start_on_a_disk_image_reads_nothing() {
    let lab = Lab::new();
    let disk = Disk::new(&lab);
    let image = disk.0.join("disk.raw");
    fs::write(&image, noise(1, NOISE)).unwrap();
    record(
        &lab,
        &image,
        "disk",
        &["sh", "-c", "cat $YOLOFS_IMAGE > /dev/null"],
    );
    let report = json(
        lab.bootimg()
            .args(["bench", "disk", "--runs", "2", "--json"]),
    );
    check_reads(&report, NOISE);
    assert_nothing_is_left(&lab);
}

#[test]
fn privileged_what_cannot_be_compared_is_refused() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let bench = |args: &[&str]| {
        let mut bench = lab.bootimg();
        bench.arg("bench").args(args);
        bench
    };
    let path = root.to_str().unwrap();
    let said = fails(1, &mut bench(&[path, "--", "/bin/true"]));
    assert!(
        said.contains("was recorded: do that first (bootimg record)"),
        "{said}"
    );
    record(&lab, &root, "web", &["/bin/sh", "-c", "cat /etc/config"]);
    for until in ["quiet:1", "after:1"] {
        let said = fails(1, &mut bench(&["web", "--until", until]));
        assert!(said.contains("(--until)"), "{said}");
    }
    let said = fails(3, &mut bench(&["web", "--", "/bin/sh", "-c", "exit 3"]));
    assert!(said.contains("ended with code 3"), "{said}");
    let said = fails(1, &mut bench(&[&format!("vm:{path}"), "--until", "line:x"]));
    assert!(said.contains("a machine boots from a disk image"), "{said}");
    assert_nothing_is_left(&lab);
}

#[test]
fn privileged_a_signal_ends_a_bench() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    record(&lab, &root, "web", &["/bin/sh", "-c", "cat /etc/config"]);
    // Whether it is the start that does not count, or one on a mount.
    for wanted in [0, 1] {
        let mut bench = lab.bootimg();
        let script = "cat /etc/config; [ -z \"$(cat /etc/wait)\" ] || sleep 1000";
        fs::write(root.join("etc/wait"), if wanted == 0 { "x" } else { "" }).unwrap();
        bench.args([
            "bench", "web", "--runs", "100", "--", "/bin/sh", "-c", script,
        ]);
        let mut child = bench.stderr(Stdio::null()).spawn().unwrap();
        until("a start", || {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            let entries = fs::read_dir(lab.run_dir()).into_iter().flatten().count();
            entries > 0 && (wanted == 0 || mounts.contains(lab.run_dir().to_str().unwrap()))
        });
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_nothing_is_left(&lab);
    }
}

#[test]
fn privileged_a_prewarmed_start_by_docker_reads_nothing() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    // Whether it is noticed at once or late that it is ready is chance. What it does then, it has done twice before: it
    // touches no page that a recording lacks.
    let script = "cat /usr/lib/* /data/* > /dev/null; n=0; \
                  while :; do n=$((n+1)); [ $n != 3 ] || echo up; sleep 0.1; done";
    let command = ["sh", "-c", script];
    let start = |verb: &str, flags: &[&str]| {
        let mut start = docker.with_host(lab.bootimg());
        start.args([
            verb,
            "docker://app",
            "--until",
            "line:^up",
            "--run-args",
            "--network none",
        ]);
        start.args(flags).arg("--").args(command);
        start
    };
    let said = fails(1, &mut start("bench", &[]));
    assert!(
        said.contains("was recorded: do that first (bootimg record)"),
        "{said}"
    );
    ok(&mut start("record", &[]));
    // What the kernel drops between a prewarm and its start is read again, with what lies around it.
    until(
        "starts that miss nothing, and one that reads nothing",
        || {
            let report = json(&mut start("bench", &["--runs", "2", "--json"]));
            assert_eq!(samples(&report, "native-cold").len(), 2);
            let ours = samples(&report, "yolofs");
            ours.iter().all(|ours| ours["missed_bytes"] == 0)
                && ours.iter().any(|ours| ours["fuse_reads"] == 0)
        },
    );
    assert_eq!(docker.mounts(), [""; 0]);
    assert_eq!(docker.run(&["ps", "-aq"]), "");

    // Where the layers are served, no start is cold.
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    let said = fails(1, &mut start("bench", &[]));
    assert!(said.contains("yolofs docker detach"), "{said}");
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}
