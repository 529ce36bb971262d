//! What `yolofs umount` has done when it returns, and when it refuses.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::service::Service;
use lab::{Lab, fails, noise, ok, output, until};

/// How often each kind of mount is unmounted.
const ROUNDS: u32 = 60;

/// A file system of its own with a source on it, and a place to mount that is on it, too.
struct Disk {
    root: PathBuf,
}

impl Disk {
    fn mount(lab: &Lab) -> Self {
        let root = lab.make_dir("disk");
        ok(Command::new("mount")
            .args(["-t", "tmpfs", "none"])
            .arg(&root));
        fs::create_dir(root.join("source")).unwrap();
        fs::create_dir(root.join("place")).unwrap();
        for file in 0..5 {
            fs::write(root.join(format!("source/{file}")), noise(file, 300_000)).unwrap();
        }
        Self { root }
    }

    fn source(&self) -> PathBuf {
        self.root.join("source")
    }
}

fn read_all(mountpoint: &Path) {
    for file in 0..5 {
        let read = fs::read(mountpoint.join(file.to_string())).unwrap();
        assert_eq!(read, noise(file, 300_000));
    }
}

/// Mounts, reads and unmounts again and again; each time the source's file system can be unmounted at
/// once.
fn the_source_is_free_after_each_unmount(lab: &Lab, flags: &[&str]) {
    let elsewhere = lab.make_dir("mnt");
    let mut busy = Vec::new();
    for round in 0..ROUNDS {
        let disk = Disk::mount(lab);
        let mountpoint = match round % 3 {
            0 => elsewhere.clone(),
            1 => disk.root.join("place"),
            // Over itself.
            _ => disk.source(),
        };
        let mut mount = lab.yolofs();
        ok(mount
            .arg("mount")
            .args([&disk.source(), &mountpoint])
            .args(flags));
        read_all(&mountpoint);
        lab.umount(&mountpoint);
        let umount = output(Command::new("umount").arg(&disk.root));
        if !umount.status.success() {
            busy.push(round);
            until("the source to be free", || {
                output(Command::new("umount").arg(&disk.root))
                    .status
                    .success()
            });
        }
    }
    assert!(
        busy.is_empty(),
        "busy after {} of {ROUNDS}: {busy:?}",
        busy.len()
    );
}

#[test]
fn privileged_the_source_is_free_when_a_daemon_has_unmounted() {
    let lab = Lab::new();
    the_source_is_free_after_each_unmount(&lab, &["--standalone"]);
}

#[test]
fn privileged_the_source_is_free_when_the_node_has_unmounted() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    the_source_is_free_after_each_unmount(&lab, &[]);
}

/// An overlay on a mount; unmounted when it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(lab: &Lab, lower: &Path, root: &Path) -> Self {
        let [upper, work] = ["upper", "work"].map(|name| lab.make_dir(name));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        ok(Command::new("mount")
            .current_dir(lab.path(""))
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(root));
        Self(root.to_owned())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg(&self.0).output();
    }
}

fn a_mount_below_an_overlay_stays(lab: &Lab, flags: &[&str]) {
    let source = lab.make_dir("source");
    for file in 0..5 {
        fs::write(source.join(file.to_string()), noise(file, 300_000)).unwrap();
    }
    let root = lab.make_dir("root");
    let mountpoint = lab.mount(&source, "mnt", flags);
    let overlay = Overlay::mount(lab, &mountpoint, &root);
    let why = fails(1, lab.yolofs().arg("umount").arg(&mountpoint));
    // The words of docs/cli.md.
    let words = format!(
        "{} is in use: the overlay on {} has it below (--lazy detaches it all the same)",
        mountpoint.display(),
        root.display()
    );
    assert!(why.contains(&words), "{why}");
    assert_eq!(lab.status(&mountpoint)["state"], "serving");
    read_all(&root);
    ok(lab.yolofs().args(["umount", "--lazy"]).arg(&mountpoint));
    read_all(&root);
    drop(overlay);
    // A place that is free can be taken again, and one without an overlay be left.
    let again = lab.mount(&source, "mnt", flags);
    read_all(&again);
    lab.umount(&again);
    // An overlay that is older than the mount has what was there before.
    let overlay = Overlay::mount(lab, &mountpoint, &root);
    lab.mount(&source, "mnt", flags);
    lab.umount(&mountpoint);
    drop(overlay);
}

#[test]
fn privileged_a_daemons_mount_below_an_overlay_stays() {
    let lab = Lab::new();
    a_mount_below_an_overlay_stays(&lab, &["--standalone"]);
}

#[test]
fn privileged_the_nodes_mount_below_an_overlay_stays() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    a_mount_below_an_overlay_stays(&lab, &[]);
}

/// A namespace that is a copy of another lists what lies on one mount before what lies on the next,
/// whatever was mounted first.
#[test]
fn privileged_an_overlay_in_a_copied_namespace_is_seen() {
    let lab = Lab::new();
    let source = lab.make_dir("source");
    fs::write(source.join("file"), noise(0, 300_000)).unwrap();
    let disk = Disk::mount(&lab);
    let root = disk.root.join("place");
    let mountpoint = lab.mount(&source, "mnt", &["--standalone"]);
    let overlay = Overlay::mount(&lab, &mountpoint, &root);
    let why = fails(1, &mut umount_in_a_copy(&lab, &mountpoint));
    assert!(why.contains("is in use: the overlay on"), "{why}");
    assert_eq!(lab.status(&mountpoint)["state"], "serving");
    drop(overlay);
    ok(&mut umount_in_a_copy(&lab, &mountpoint));
}

/// Unmounts from a new namespace.
fn umount_in_a_copy(lab: &Lab, mountpoint: &Path) -> Command {
    let mut command = Command::new("unshare");
    let yolofs = lab.yolofs();
    let set = yolofs.get_envs();
    command.envs(set.filter_map(|(name, value)| Some((name, value?))));
    command.arg("--mount").arg(yolofs.get_program());
    command.arg("umount").arg(mountpoint);
    command
}

#[test]
fn privileged_users_that_no_list_tells_of_are_served_on_and_told_of() {
    let lab = Lab::new();
    let source = lab.make_dir("source");
    for file in 0..5 {
        fs::write(source.join(file.to_string()), noise(file, 300_000)).unwrap();
    }
    let root = lab.make_dir("root");
    let mountpoint = lab.mount(&source, "mnt", &["--standalone"]);
    // The list of mounts has the path that the overlay was given: from where, nobody knows any more.
    let overlay = Overlay::mount(&lab, Path::new("mnt"), &root);
    let said = output(lab.yolofs().arg("umount").arg(&mountpoint));
    let words = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{words}");
    assert!(
        words.contains("something that the list of mounts does not tell"),
        "{words}"
    );
    read_all(&root);
    drop(overlay);
}

/// `packaging/yolofs@.service` is forking: systemd takes it for ended, and unmounts, when no process of
/// it is left.
#[test]
fn privileged_the_unit_of_a_mount_leaves_a_process_beside_a_node() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/yolofs@.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert!(unit.contains("Type=forking"), "{unit}");
    let source = service.source("unit");
    let mountpoint = lab.make_dir("unit-mnt");
    let line = |name: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap()
            .replace("/usr/bin/yolofs", env!("CARGO_BIN_EXE_yolofs"))
    };
    let run = |line: &str| {
        let mut sh = Command::new("sh");
        sh.args(["-c", line])
            .env("YOLOFS_STORE", lab.store())
            .env("YOLOFS_RUN_DIR", lab.run_dir())
            .env("SOURCE", &source)
            .env("MOUNTPOINT", &mountpoint)
            .env("OPTIONS", "--no-inject");
        ok(&mut sh);
    };
    run(&line("ExecStart="));
    assert!(
        service.listed(&mountpoint).is_none(),
        "it is none of the node's"
    );
    let pid = lab.status(&mountpoint)["pid"].as_u64().unwrap();
    let parent = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = parent.lines().find_map(|line| line.strip_prefix("PPid:\t"));
    // Its parent is who collects orphans: systemd, where it is a service.
    let node = [service.pid(), service.keeper()].map(|pid| pid.to_string());
    assert!(parent.is_some_and(|parent| !node.iter().any(|node| node == parent)));
    run(&line("ExecStop="));
    until("its process to end", || {
        !Path::new(&format!("/proc/{pid}")).exists()
    });
}

/// The list of mounts has the paths that an overlay was given, with the links in them.
#[test]
fn privileged_an_overlay_that_was_given_a_link_is_seen() {
    let lab = Lab::new();
    let source = lab.make_dir("source");
    fs::create_dir(source.join("usr")).unwrap();
    let root = lab.make_dir("root");
    let link = lab.path("link");
    for flags in [&["--standalone"][..], &[]] {
        let mountpoint = lab.mount(&source, "mnt", flags);
        let _before = fs::remove_file(&link);
        std::os::unix::fs::symlink("mnt/usr", &link).unwrap();
        let overlay = Overlay::mount(&lab, &link, &root);
        let why = fails(1, lab.yolofs().arg("umount").arg(&mountpoint));
        assert!(why.contains("the overlay on"), "{why}");
        drop(overlay);
        lab.umount(&mountpoint);
    }
}
