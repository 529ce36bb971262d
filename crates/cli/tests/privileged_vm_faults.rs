//! Recordings of machines that lose a part, and machines whose disk is not what was recorded.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lab::guest::{LightGuest, LightImage, disk};
use lab::{Lab, json, noise, ok, until};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// What the guest says when it has read its part of the disk, and what it never says.
const READY: &str = "LIGHT-READY";
const NEVER: &str = "LIGHT-NEVER";

/// A part of a recording that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Qemu,
    Recorder,
    Mount,
}

/// How far a boot is when that happens.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// QEMU runs, and the guest has not begun.
    Begun,
    /// The guest has read its part of the disk, and the recording goes on.
    Read,
}

/// `bootimg record vm:IMAGE`, and what it says.
struct Recording {
    child: Child,
    lines: std::io::Split<BufReader<std::process::ChildStderr>>,
}

impl Recording {
    fn start(lab: &Lab, image: &LightImage, phase: Phase) -> Self {
        let mut command = record(lab, image, NEVER);
        if let Phase::Begun = phase {
            command.args(["--qemu-args", "-S"]);
        }
        let mut source = std::ffi::OsString::from("vm:");
        source.push(image.disk());
        let mut child = command.arg(source).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).split(b'\n');
        let mut recording = Self { child, lines };
        match phase {
            Phase::Begun => until("QEMU has opened the disk", || qemu(image).is_some()),
            Phase::Read => assert!(recording.says(READY)),
        }
        recording
    }

    /// Reads on until a line has this in it.
    fn says(&mut self, wanted: &str) -> bool {
        let mut lines = self.lines.by_ref().map_while(Result::ok);
        lines.any(|line| String::from_utf8_lossy(&line).contains(wanted))
    }

    fn lose(&mut self, lab: &Lab, image: &LightImage, part: Part) {
        match part {
            // After another part was lost, it may have been ended already.
            Part::Qemu => {
                let _gone = qemu(image).map(|pid| kill(pid, Signal::SIGKILL));
            }
            Part::Recorder => self.child.kill().unwrap(),
            Part::Mount => {
                // That ends the connection to the recorder, even though the mount is busy.
                let mountpoint = recorded_mounts(lab).pop();
                let _busy = mountpoint.map(|at| umount2(at.as_str(), MntFlags::MNT_FORCE));
            }
        }
    }

    /// Returns what it said until it ended, which it does by itself and without success.
    fn end(mut self) -> String {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let lines: Vec<_> = lines
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        assert!(!self.child.wait().unwrap().success(), "{lines:?}");
        lines.join("\n")
    }
}

/// The machine of a light guest, emulated: one that loses a part must not depend on KVM.
const MACHINE: &str = "-accel tcg,thread=multi -cpu qemu64,+rdrand,-cx16 -machine q35 -m 96";

/// `bootimg record` of a light guest until it says something; the source comes after it.
fn record(lab: &Lab, image: &LightImage, until: &str) -> Command {
    let machine = image.machine("");
    // The console is shown, and the window and devices are chosen by the recorder.
    let at = machine.iter().position(|word| word == "-kernel").unwrap();
    let kernel = lab::guest::shell(&machine[at..]);
    let kernel = kernel.trim_start_matches("exec qemu-system-x86_64 ");
    let mut command = lab.bootimg();
    command
        .args(["record", "--json", "--name", "light", "--timeout", "300"])
        .args(["--until", &format!("line:{until}")])
        .args(["--qemu-args", MACHINE])
        .args(["--qemu-args", kernel])
        .stdout(Stdio::null());
    command
}

/// The QEMU that has this disk open.
fn qemu(image: &LightImage) -> Option<Pid> {
    let name = image.disk();
    let dir = name.parent().unwrap().to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse::<i32>().ok()?;
        let words = fs::read(process.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let is_ours = words.starts_with("qemu-system-") && words.contains(dir);
        // It has a socket once it has opened its disk.
        (is_ours && opened_disk(&process.path())).then(|| Pid::from_raw(pid))
    });
    pids.next()
}

fn opened_disk(process: &Path) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten();
    let mut files = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    files.any(|file| file.ends_with("disk.raw"))
}

/// Where recorders have mounted in this lab.
fn recorded_mounts(lab: &Lab) -> Vec<String> {
    let run_dir = lab.run_dir();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = mounts
        .lines()
        .filter(|line| line.contains(&format!("{}/record-", run_dir.display())));
    ours.map(|line| line.split(' ').nth(4).unwrap().to_owned())
        .collect()
}

fn images_of(lab: &Lab) -> Value {
    json(lab.bootimg().args(["ls", "--json"]))
}

#[test]
fn privileged_a_recording_that_loses_a_part_makes_no_boot_image_and_leaves_nothing() {
    let lab = Lab::new();
    let image = LightImage::unpack(&lab.path("light"));
    let tree = lab.make_dir("tree");
    fs::write(tree.join("file"), "x").unwrap();
    let cases: [(Phase, &[Part]); 5] = [
        (Phase::Begun, &[Part::Qemu]),
        (Phase::Begun, &[Part::Recorder]),
        (Phase::Begun, &[Part::Qemu, Part::Mount]),
        (Phase::Begun, &[Part::Mount, Part::Recorder]),
        (Phase::Read, &[Part::Mount]),
    ];
    for (phase, parts) in cases {
        let mut recording = Recording::start(&lab, &image, phase);
        for part in parts {
            recording.lose(&lab, &image, *part);
        }
        let said = recording.end();
        until("QEMU ends with its recorder", || qemu(&image).is_none());
        assert_eq!(
            images_of(&lab),
            serde_json::json!([]),
            "{phase:?} {parts:?}"
        );
        if parts.contains(&Part::Recorder) {
            // The next recorder clears what a killed one left.
            let mut next = lab.bootimg();
            ok(next
                .args(["record", "--name", "tree", "--no-chroot"])
                .arg(&tree)
                .args(["--", "sh", "-c", "cat $YOLOFS_MNT/file"]));
            ok(lab.bootimg().args(["rm", "tree"]));
        } else {
            let why = match parts {
                [Part::Qemu] => "killed by signal 9",
                [Part::Mount] => "recorded mount",
                _ => "bootimg: ", // whichever it sees first
            };
            assert!(said.contains(why), "{said}");
        }
        assert_eq!(recorded_mounts(&lab), [""; 0], "{phase:?} {parts:?}");
    }
}

/// Changes a file that the guest reads, in a copy of its disk, puts the copy in place of the disk, and returns what the guest
/// is to say of it.
fn replace(lab: &Lab, image: &LightImage) -> String {
    let aside = lab.path("light/aside.raw");
    fs::copy(image.disk(), &aside).unwrap();
    let inside = lab.make_dir("inside");
    ok(Command::new("mount")
        .args(["-o", "loop"])
        .args([&aside, &inside]));
    let files = || {
        let files = fs::read_dir(inside.join("read")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    fs::write(&files()[0], "changed").unwrap();
    let sum = ok(Command::new("sh")
        .args(["-c", "cat read/* | md5sum"])
        .current_dir(&inside));
    ok(Command::new("umount").arg(&inside));
    fs::rename(aside, image.disk()).unwrap();
    sum.split(' ').next().unwrap().to_owned()
}

#[test]
fn privileged_a_disk_that_was_replaced_is_told_and_read_itself() {
    let lab = Lab::new();
    let image = LightImage::unpack(&lab.path("light"));
    let mut source = std::ffi::OsString::from("vm:");
    source.push(image.disk());
    ok(record(&lab, &image, READY).arg(source));
    let sum = replace(&lab, &image);
    let flags = ["--mode", "disk", "--wait-prewarm"];
    let mountpoint = lab.mount(&image.disk(), "mnt", &flags);
    let status = lab.status(&mountpoint);
    assert_eq!(status["boot"]["stale_files"], 1, "{status}");
    let mounted = mountpoint.join("disk.raw");
    let mut machine = image.machine("");
    machine.extend(disk(mounted.to_str().unwrap(), "writeback"));
    assert_eq!(LightGuest::start(&machine).must_say(READY), sum);
    lab.umount(&mountpoint);
    // A boot image that is damaged, too, changes nothing.
    ok(Command::new("sh")
        .args(["-c", "find store -type f -size +1M -exec sh -c 'dd if=/dev/urandom of=$0 bs=1M seek=0 count=1 conv=notrunc' {} ';'"])
        .current_dir(lab.path("")));
    let mounted = lab
        .yolofs()
        .arg("mount")
        .args([&image.disk(), &mountpoint])
        .args(flags)
        .output()
        .unwrap();
    assert!(mounted.status.success());
    let served = fs::read(mountpoint.join("disk.raw")).unwrap();
    assert!(
        served == fs::read(image.disk()).unwrap(),
        "the disk's own bytes"
    );
    lab.umount(&mountpoint);
}

/// `cp new.raw web.raw` cuts the disk first. The kernel answers reads behind the end that it knows, so nothing but the
/// attributes can tell that the disk has grown again.
#[test]
fn privileged_a_disk_that_is_cut_and_written_again_under_a_mount_is_seen_whole() {
    let lab = Lab::new();
    let disk = lab.path("web.raw");
    fs::write(&disk, noise(1, 1 << 20)).unwrap();
    let read = "exec dd if=\"$YOLOFS_IMAGE\" of=/dev/null bs=64k count=4 status=none";
    ok(lab
        .bootimg()
        .args(["record", "--name", "web"])
        .arg(&disk)
        .args(["--", "sh", "-c", read]));
    let mountpoint = lab.mount(&disk, "mnt", &["--no-inject", "--readahead", "0"]);
    let mounted = mountpoint.join("web.raw");
    let open = fs::File::open(&mounted).unwrap();
    let cut = fs::File::create(&disk).unwrap();
    until("the end of the disk", || {
        // A read that reaches the source; it may fail while the kernel does not know the end.
        let _read = open.read_at(&mut [0; 4096], 512 << 10);
        open.metadata().unwrap().len() == 0
    });
    let new = noise(2, 1 << 20);
    cut.write_all_at(&new, 0).unwrap();
    // By a machine that has it open, and by one that is started now.
    until("the new disk, where it is open", || {
        let mut bytes = vec![0; new.len()];
        open.read_at(&mut bytes, 0)
            .is_ok_and(|len| len == bytes.len())
            && bytes == new
    });
    until("the new disk", || {
        fs::read(&mounted).is_ok_and(|read| read == new)
    });
    drop(open);
    lab.umount(&mountpoint);
}
