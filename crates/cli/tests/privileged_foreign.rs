//! A mount says what its boot image gives, and what is read past it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::service::Service;
use lab::{Lab, fails, json, noise, ok, output};
use serde_json::Value;

const FILES: u32 = 5;

/// A directory with some files, which are recorded as the boot image of its name.
fn recorded(lab: &Lab, name: &str) -> PathBuf {
    let dir = tree(lab, name);
    record(lab, &dir, name);
    dir
}

fn tree(lab: &Lab, name: &str) -> PathBuf {
    let dir = lab.make_dir(name);
    for file in 0..FILES {
        fs::write(dir.join(format!("f{file}")), noise(file, 20_000)).unwrap();
    }
    dir
}

fn record(lab: &Lab, dir: &Path, name: &str) {
    ok(lab
        .bootimg()
        .args(["record", "--no-chroot", "--name", name])
        .arg(dir)
        .args(["--", "sh", "-c", "cat $YOLOFS_MNT/* > /dev/null"]));
}

fn mount(lab: &Lab, source: &Path, at: &Path, flags: &[&str]) -> Command {
    let mut command = lab.yolofs();
    command.arg("mount").args([source, at]).args(flags);
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", at.display()))
}

fn refused(lab: &Lab, standalone: &[&str]) {
    recorded(lab, "one");
    let other = tree(lab, "other");
    let at = lab.make_dir("mnt");
    let flags = [&["--boot", "one"][..], standalone].concat();
    let why = fails(1, &mut mount(lab, &other, &at, &flags));
    for words in [
        "boot image one",
        "recorded from dir:",
        "has nothing of",
        "none of its 5 files",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(!is_mounted(&at));
    // Its own source is served, and says what from.
    let own = lab.path("one");
    let served = json(&mut mount(
        lab,
        &own,
        &at,
        &[&flags[..], &["--json"]].concat(),
    ));
    assert_eq!(served["boot"]["files"], FILES);
    assert_eq!(served["boot"]["source"], format!("dir:{}", own.display()));
    assert_eq!(served.get("warnings"), None);
    lab.umount(&at);
}

#[test]
fn privileged_a_boot_image_of_another_source_is_refused() {
    refused(&Lab::new(), &["--standalone"]);
}

#[test]
fn privileged_a_boot_image_of_another_source_is_refused_by_the_node() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    refused(&lab, &[]);
}

/// Names and attributes would be those of the other source.
#[test]
fn privileged_nothing_of_another_source_is_trusted() {
    let lab = Lab::new();
    recorded(&lab, "one");
    let other = tree(&lab, "other");
    let at = lab.make_dir("mnt");
    let why = fails(
        1,
        &mut mount(&lab, &other, &at, &["--trust", "--boot", "one"]),
    );
    assert!(
        why.contains("a trusted source") && why.contains("was recorded from"),
        "{why}"
    );
    assert!(!is_mounted(&at));
}

/// A copy by hard links has the same files in another place.
#[test]
fn privileged_what_a_boot_image_lacks_is_said_and_the_rest_is_served() {
    let lab = Lab::new();
    let one = tree(&lab, "one");
    let twin = lab.path("twin");
    ok(Command::new("cp").arg("-al").args([&one, &twin]));
    record(&lab, &one, "one");
    let at = lab.make_dir("mnt");
    let flags = ["--standalone", "--boot", "one"];
    let quiet = output(&mut mount(&lab, &twin, &at, &flags));
    assert!(
        quiet.status.success() && told(&quiet).is_empty(),
        "{}",
        told(&quiet)
    );
    lab.umount(&at);

    fs::remove_file(twin.join("f3")).unwrap();
    fs::write(twin.join("f3"), noise(33, 20_000)).unwrap();
    let partly = output(&mut mount(&lab, &twin, &at, &flags));
    assert!(partly.status.success());
    for words in [
        "boot image one",
        "recorded from dir:",
        "1 of its 5 files (20.0 KiB)",
        "f3",
    ] {
        assert!(told(&partly).contains(words), "{words}: {}", told(&partly));
    }
    let status = lab.status(&at);
    assert_eq!(
        (&status["boot"]["files"], &status["boot"]["stale_files"]),
        (&4.into(), &1.into())
    );
    let warnings = status["warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().contains("1 of its 5 files"));
    let text = ok(lab.yolofs().arg("status").arg(&at));
    assert!(text.contains("1 of its 5 files"), "{text}");
    assert_eq!(fs::read(at.join("f3")).unwrap(), noise(33, 20_000));
    lab.umount(&at);
}

/// The source of a mount may have been replaced since: it is served, without the boot image's help.
#[test]
fn privileged_a_boot_image_that_is_out_of_date_is_said_to_give_nothing() {
    let lab = Lab::new();
    let one = recorded(&lab, "one");
    for file in 0..FILES {
        fs::write(one.join(format!("f{file}")), noise(90 + file, 20_000)).unwrap();
    }
    let at = lab.make_dir("mnt");
    for flags in [&["--standalone"][..], &["--standalone", "--boot", "one"]] {
        let output = output(&mut mount(&lab, &one, &at, flags));
        assert!(output.status.success());
        let words = "gives nothing: none of its 5 files";
        assert!(told(&output).contains(words), "{}", told(&output));
        assert_eq!(lab.status(&at)["boot"]["files"], 0);
        assert_eq!(fs::read(at.join("f0")).unwrap(), noise(90, 20_000));
        lab.umount(&at);
    }
}

fn overlay(lab: &Lab, name: &str, backing: &str, format: &str) -> PathBuf {
    let path = lab.make_dir("images").join(name);
    ok(Command::new("qemu-img")
        .args([
            "create", "-q", "-u", "-f", "qcow2", "-F", format, "-b", backing,
        ])
        .arg(&path)
        .arg("4M"));
    path
}

fn record_disk(lab: &Lab, disk: &Path) -> Command {
    let mut command = lab.bootimg();
    command
        .args(["record", "--json", "--name", "disk"])
        .arg(disk);
    command.args(["--", "sh", "-c", "cat \"$YOLOFS_IMAGE\" > /dev/null"]);
    command
}

#[test]
fn privileged_a_backing_file_that_is_read_past_the_mount_is_told() {
    let lab = Lab::new();
    let base = lab.make_dir("images").join("base.raw");
    fs::write(&base, noise(1, 4 << 20)).unwrap();
    let absolute = base.to_str().unwrap().to_owned();
    let direct = overlay(&lab, "direct.qcow2", &absolute, "raw");
    let middle = overlay(&lab, "middle.qcow2", "direct.qcow2", "qcow2");
    let at = lab.make_dir("mnt");
    for disk in [&direct, &middle] {
        let output = output(&mut record_disk(&lab, disk));
        assert!(output.status.success(), "{}", told(&output));
        assert!(told(&output).contains(&absolute), "{}", told(&output));
        assert!(
            told(&output).contains("read past the mount"),
            "{}",
            told(&output)
        );
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let warnings = report["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), 1, "{report}");
        let served = json(&mut mount(&lab, disk, &at, &["--standalone", "--json"]));
        assert_eq!(&served["warnings"], &report["warnings"]);
        let text = ok(lab.yolofs().arg("status").arg(&at));
        assert!(text.contains(&absolute), "{text}");
        lab.umount(&at);
        // Started by us, QEMU would read whatever file of the machine is named there.
        let mut vm = std::ffi::OsString::from("vm:");
        vm.push(disk);
        let refused = fails(1, lab.bootimg().arg("record").arg(vm));
        assert!(refused.contains(&absolute), "{refused}");
    }
}

#[test]
fn privileged_backing_files_beside_an_image_are_recorded_with_it() {
    let lab = Lab::new();
    fs::write(lab.make_dir("images").join("base.raw"), noise(1, 4 << 20)).unwrap();
    overlay(&lab, "one.qcow2", "base.raw", "raw");
    let two = overlay(&lab, "two.qcow2", "one.qcow2", "qcow2");
    let read = output(&mut record_disk(&lab, &two));
    assert!(
        read.status.success() && !told(&read).contains("warn"),
        "{}",
        told(&read)
    );
    let report: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(report.get("warnings"), None);
    let at = lab.mount(&two, "mnt", &["--standalone"]);
    let mut names: Vec<_> = fs::read_dir(&at)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["base.raw", "one.qcow2", "two.qcow2"]);
    lab.umount(&at);
}

#[test]
fn privileged_a_backing_file_elsewhere_is_an_error_that_says_what_to_do() {
    let lab = Lab::new();
    lab.make_dir("elsewhere");
    fs::write(lab.path("elsewhere/base.raw"), noise(1, 4 << 20)).unwrap();
    let disk = overlay(&lab, "out.qcow2", "../elsewhere/base.raw", "raw");
    let why = fails(1, &mut record_disk(&lab, &disk));
    assert!(
        why.contains("../elsewhere/base.raw") && why.contains("qemu-img"),
        "{why}"
    );
    let at = lab.make_dir("mnt");
    let why = fails(1, &mut mount(&lab, &disk, &at, &["--standalone"]));
    assert!(why.contains("not in its own directory"), "{why}");
    // A chain without an end, and one that leads to itself.
    let ring = overlay(&lab, "ring.qcow2", "ring.qcow2", "qcow2");
    let why = fails(1, &mut record_disk(&lab, &ring));
    assert!(why.contains("loop"), "{why}");
    for number in 0..70 {
        let next = format!("link{}.qcow2", number + 1);
        overlay(&lab, &format!("link{number}.qcow2"), &next, "qcow2");
    }
    let why = fails(1, &mut record_disk(&lab, &lab.path("images/link0.qcow2")));
    assert!(why.contains("64"), "{why}");
}

/// Whoever may write to the directory of an image may do so between the look at its header and QEMU's.
#[test]
fn privileged_an_image_that_is_replaced_before_qemu_opens_it_names_no_file_of_the_machine() {
    let lab = Lab::new();
    let secret = lab.path("secret");
    fs::write(&secret, noise(7, 4 << 20)).unwrap();
    fs::write(lab.make_dir("images").join("base.raw"), noise(1, 4 << 20)).unwrap();
    let image = overlay(&lab, "image.qcow2", "base.raw", "raw");
    let other = overlay(&lab, "other.qcow2", secret.to_str().unwrap(), "raw");
    let system = format!("qemu-system-{}", std::env::consts::ARCH);
    let program = lab.make_dir("bin").join(&system);
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nmv {} {}\nPATH={path}\nexec {system} \"$@\"\n",
        other.display(),
        image.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut vm = std::ffi::OsString::from("vm:");
    vm.push(&image);
    let record = |path: &str| {
        let mut command = lab.bootimg();
        command
            .args([
                "record",
                "--name",
                "vm",
                "--until",
                "quiet:1",
                "--qemu-args",
                "-accel tcg -m 64",
            ])
            .env("PATH", path)
            .arg(&vm);
        output(&mut command)
    };
    let as_it_is = record(&path);
    assert!(as_it_is.status.success(), "{}", told(&as_it_is));
    let replaced = record(&format!("{}:{path}", lab.path("bin").display()));
    assert!(!other.exists(), "it was replaced");
    assert!(!replaced.status.success(), "{}", told(&replaced));
    assert!(
        told(&replaced).contains("changed after its header was checked"),
        "{}",
        told(&replaced)
    );
}

/// A bench boots the image itself, too, which nothing of ours reads for QEMU.
#[test]
fn privileged_a_bench_boots_no_image_that_others_could_have_name_files() {
    let lab = Lab::new();
    let base = lab.make_dir("images").join("base.raw");
    fs::write(&base, noise(1, 4 << 20)).unwrap();
    let direct = overlay(&lab, "direct.qcow2", base.to_str().unwrap(), "raw");
    let beside = overlay(&lab, "beside.qcow2", "base.raw", "raw");
    let bench = |image: &Path| {
        let mut vm = std::ffi::OsString::from("vm:");
        vm.push(image);
        fails(
            1,
            lab.bootimg().args(["bench", "--until", "line:x"]).arg(vm),
        )
    };
    let why = bench(&direct);
    assert!(why.contains("absolute paths"), "{why}");
    // It may be booted, and is not recorded.
    let why = bench(&beside);
    assert!(why.contains("no boot of"), "{why}");
    for changed in [&beside, &base, &lab.path("images")] {
        let mode = changed.metadata().unwrap().permissions();
        fs::set_permissions(changed, PermissionsExt::from_mode(0o777)).unwrap();
        let why = bench(&beside);
        assert!(why.contains("may name files of this machine"), "{why}");
        fs::set_permissions(changed, mode).unwrap();
    }
}

/// Mounts are noted and the node is asked in JSON, which has no such text.
#[test]
fn privileged_a_path_that_is_not_in_utf8_is_said_to_be_the_reason() {
    use std::os::unix::ffi::OsStrExt as _;

    let lab = Lab::new();
    let name = std::ffi::OsStr::from_bytes(b"a\xffb");
    let source = lab.path("images").join(name);
    fs::create_dir_all(&source).unwrap();
    std::os::unix::fs::symlink(&source, lab.path("link")).unwrap();
    let plain = tree(&lab, "plain");
    let (at, odd) = (lab.make_dir("mnt"), source.clone());
    let tells = |source: &Path, at: &Path, flags: &[&str]| {
        let why = fails(1, &mut mount(&lab, source, at, flags));
        assert!(why.contains("UTF-8") && why.contains("bind-mount"), "{why}");
        assert!(!why.contains("reach the node"), "{why}");
    };
    tells(&source, &at, &["--standalone"]);
    tells(&plain, &odd, &["--standalone"]);
    let _service = Service::start(&lab);
    tells(&source, &at, &[]);
    tells(&plain, &odd, &[]);
    tells(&lab.path("link"), &at, &[]);
}
