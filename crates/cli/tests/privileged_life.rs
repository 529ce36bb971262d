//! Mounts come and go cleanly, whatever ends them.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lab::{Lab, busybox_root, fails, ok, until};

fn is_mounted(mountpoint: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == mountpoint.to_str())
}

fn daemon_of(lab: &Lab, mountpoint: &Path) -> String {
    lab.status(mountpoint)["pid"].to_string()
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie waits for its parent, which is the test itself: the daemon is gone.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn mounted(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    lab.mount(&root, "mnt", &[])
}

/// One way to unmount: given the lab, the mount point and the daemon's pid.
type Unmount = fn(&Lab, &Path, &str);

fn run(command: &[&str], argument: &Path) {
    ok(Command::new(command[0]).args(&command[1..]).arg(argument));
}

#[test]
fn privileged_every_way_to_unmount_ends_the_daemon() {
    let ways: [(&str, Unmount); 6] = [
        ("yolofs umount", |lab, mountpoint, _| lab.umount(mountpoint)),
        ("umount", |_, mountpoint, _| run(&["umount"], mountpoint)),
        ("umount -l", |_, mountpoint, _| {
            run(&["umount", "-l"], mountpoint);
        }),
        ("fusermount3 -u", |_, mountpoint, _| {
            run(&["fusermount3", "-u"], mountpoint);
        }),
        ("SIGTERM", |_, _, pid| run(&["kill"], Path::new(pid))),
        ("SIGINT", |_, _, pid| run(&["kill", "-INT"], Path::new(pid))),
    ];
    for (name, unmount) in ways {
        let lab = Lab::new();
        let mountpoint = mounted(&lab);
        let pid = daemon_of(&lab, &mountpoint);
        assert!(is_mounted(&mountpoint));
        unmount(&lab, &mountpoint, &pid);
        until(name, || !is_mounted(&mountpoint) && !is_running(&pid));
        assert_eq!(
            lab::json(lab.yolofs().args(["status", "--json"])),
            serde_json::json!([]),
            "{name}"
        );
    }
}

#[test]
fn privileged_a_crash_leaves_a_mount_that_clears() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(Command::new("kill").args(["-9", &pid]));
    until("the daemon's death", || !is_running(&pid));
    assert_eq!(lab.status(&mountpoint)["state"], "dead");
    assert!(fs::read_dir(&mountpoint).is_err(), "ENOTCONN was expected");
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
    lab.umount(&mountpoint); // twice is fine
    // And the place is as good as new.
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert!(mountpoint.join("etc/config").exists());
}

#[test]
fn privileged_a_mount_is_found_by_symbolic_links_alive_and_dead() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let links = ["end", "way"].map(|name| lab.path(name));
    symlink(&mountpoint, &links[0]).unwrap();
    symlink(mountpoint.parent().unwrap(), &links[1]).unwrap();
    let by_way = links[1].join(mountpoint.file_name().unwrap());
    let pid = daemon_of(&lab, &mountpoint);
    for state in ["serving", "dead"] {
        for named in [&links[0], &by_way] {
            assert_eq!(lab.status(named)["state"], state, "{}", named.display());
        }
        if state == "serving" {
            ok(Command::new("kill").args(["-9", &pid]));
            until("the daemon's death", || !is_running(&pid));
        }
    }
    lab.umount(&links[0]);
    assert!(!is_mounted(&mountpoint));
}

#[test]
fn privileged_a_mount_over_a_dead_one_takes_its_place() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(Command::new("kill").args(["-9", &pid]));
    until("the daemon's death", || !is_running(&pid));
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert!(mountpoint.join("etc/config").exists());
    lab.umount(&mountpoint);
    assert!(!is_mounted(&mountpoint));
}

/// Returns the processes that name a path in their arguments.
fn processes_that_name(path: &Path) -> Vec<String> {
    let name = path.as_os_str().as_bytes();
    let named = |pid: &String| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments
            .split(|byte| *byte == 0)
            .any(|argument| argument == name)
    };
    let entries = fs::read_dir("/proc").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(named).collect()
}

/// Returns the pipes that a process has open, by their names.
fn pipes_of(process: &Path) -> Vec<String> {
    let descriptors = fs::read_dir(process.join("fd")).unwrap();
    let places = descriptors.filter_map(|descriptor| {
        let place = fs::read_link(descriptor.unwrap().path()).ok()?;
        place.into_os_string().into_string().ok()
    });
    places.filter(|place| place.starts_with("pipe:")).collect()
}

/// To load this program takes longer than most of what a mount waits for.
#[test]
fn privileged_a_daemon_is_a_copy_of_its_command_and_not_executed_anew() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let status = lab.status(&mountpoint);
    let process = PathBuf::from(format!("/proc/{}", status["pid"]));
    // Of a program that executes itself by /proc, this is `exe`.
    assert_eq!(
        fs::read_to_string(process.join("comm")).unwrap(),
        "yolofs\n"
    );
    let arguments = fs::read(process.join("cmdline")).unwrap();
    let program = arguments.split(|byte| *byte == 0).next().unwrap();
    assert_eq!(program, lab.yolofs().get_program().as_bytes());
    // It belongs to no terminal, and has nothing of the command's but its own log.
    let stat = fs::read_to_string(process.join("stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3);
    assert_eq!(session, Some(status["pid"].to_string().as_str()));
    let log = format!("{}.log", status["id"].as_str().unwrap());
    let places = [
        "/dev/null".into(),
        "/dev/null".into(),
        lab.run_dir().join(log),
    ];
    for (descriptor, place) in places.into_iter().enumerate() {
        let is = fs::read_link(process.join(format!("fd/{descriptor}"))).unwrap();
        assert_eq!(is, place, "{descriptor}");
    }
    // A client that goes away while it is answered is an error, and not the end: SIGPIPE, number 13, is ignored.
    let signals = fs::read_to_string(process.join("status")).unwrap();
    let ignored = signals
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:\t"));
    let ignored = u64::from_str_radix(ignored.unwrap(), 16).unwrap();
    assert_eq!(ignored >> 12 & 1, 1, "{signals}");
    // Who runs the tests may have left some open for all.
    let mut pipes = pipes_of(&process);
    pipes.retain(|pipe| !pipes_of(Path::new("/proc/self")).contains(pipe));
    assert_eq!(pipes, [""; 0], "those to its command");
    lab.umount(&mountpoint);
}

/// A mount is parsed by a description of its own, which the file is for, too.
#[test]
fn privileged_a_mount_follows_the_configuration_file_and_flags_win_over_it() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    let (mountpoint, file) = (lab.make_dir("mnt"), lab.path("yolofs.toml"));
    let [of_file, of_flag] = ["run-of-file", "run-of-flag"].map(|name| lab.path(name));
    fs::write(&file, format!("run-dir = {of_file:?}\n")).unwrap();
    for (flag, made) in [(None, &of_file), (Some(&of_flag), &of_flag)] {
        let run = |verb: &[&OsStr]| {
            let mut command = lab.yolofs();
            command
                .env_remove("YOLOFS_RUN_DIR")
                .env("YOLOFS_CONFIG", &file);
            command.args(verb).arg(&mountpoint);
            ok(command.args(
                flag.map(|dir| ["--run-dir".as_ref(), dir.as_os_str()])
                    .into_iter()
                    .flatten(),
            ));
        };
        run(&["mount".as_ref(), root.as_ref()]);
        let is_made = fs::read_dir(made).is_ok_and(|mut dir| dir.next().is_some());
        run(&["umount".as_ref()]);
        assert!(is_made, "{}", made.display());
    }
}

#[test]
fn privileged_the_process_of_a_daemon_that_is_not_needed_ends() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let before = processes_that_name(&mountpoint);
    assert_eq!(before.len(), 2, "the daemon and its helper: {before:?}");
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    let other = lab.make_dir("other");
    fails(1, lab.yolofs().arg("mount").args([&other, &mountpoint]));
    let nowhere = lab.path("nowhere");
    fails(1, lab.yolofs().arg("mount").args([&other, &nowhere]));
    until("all but these to have ended", || {
        processes_that_name(&mountpoint) == before && processes_that_name(&nowhere).is_empty()
    });
    lab.umount(&mountpoint);
}

/// A mount whose service does not answer, while its daemon waits for that.
struct Waiting {
    lab: Lab,
    command: Child,
    daemon: String,
    log: PathBuf,
    _service: TcpListener,
}

impl Waiting {
    fn start() -> Self {
        let lab = Lab::new();
        let mountpoint = lab.make_dir("mnt");
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let command = lab
            .yolofs()
            .args(["mount", "nic:none", "--nic-cache", "none", "--nic"])
            .arg(service.local_addr().unwrap().to_string())
            .arg(&mountpoint)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let logged = || {
            let files = fs::read_dir(lab.run_dir()).into_iter().flatten();
            let mut paths = files.map(|file| file.unwrap().path());
            paths.find(|path| path.extension().is_some_and(|end| end == "log"))
        };
        until("the daemon to serve at the place", || logged().is_some());
        let log = logged().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", command.id());
        let daemon = fs::read_to_string(children).unwrap().trim().to_owned();
        Self {
            lab,
            command,
            daemon,
            log,
            _service: service,
        }
    }
}

#[test]
fn privileged_the_death_of_a_daemon_before_it_serves_is_told_with_its_log() {
    let waiting = Waiting::start();
    ok(Command::new("kill").args(["-KILL", &waiting.daemon]));
    let ended = waiting.command.wait_with_output().unwrap();
    let why = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{why}");
    for part in [
        "before the mount was ready",
        "SIGKILL",
        waiting.log.to_str().unwrap(),
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn privileged_a_mount_that_is_interrupted_before_it_serves_leaves_no_daemon() {
    let waiting = Waiting::start();
    ok(Command::new("kill").arg(waiting.command.id().to_string()));
    let ended = waiting.command.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert!(!is_running(&waiting.daemon));
    assert!(!is_mounted(&waiting.lab.path("mnt")));
}

#[test]
fn privileged_mounting_twice_changes_nothing() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    ok(lab
        .yolofs()
        .arg("mount")
        .args([&lab.path("root"), &mountpoint]));
    assert_eq!(daemon_of(&lab, &mountpoint), pid);
    let other = lab.make_dir("other");
    let why = fails(1, lab.yolofs().arg("mount").args([&other, &mountpoint]));
    assert!(why.contains("yolofs umount"), "{why}");
}

#[test]
fn privileged_a_busy_mount_is_not_torn_away() {
    let lab = Lab::new();
    let mountpoint = mounted(&lab);
    let pid = daemon_of(&lab, &mountpoint);
    let held = fs::File::open(mountpoint.join("etc/config")).unwrap();
    let why = fails(1, lab.yolofs().arg("umount").arg(&mountpoint));
    assert!(why.contains("busy") || why.contains("use"), "{why}");
    assert!(is_mounted(&mountpoint));
    ok(lab.yolofs().args(["umount", "--lazy"]).arg(&mountpoint));
    assert!(!is_mounted(&mountpoint));
    assert_eq!(
        std::io::read_to_string(&held).unwrap(),
        "answer = 42\n",
        "still served to its user"
    );
    drop(held);
    until("the last user's end", || !is_running(&pid));
}

#[test]
fn privileged_a_mount_over_its_own_source_serves_it() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    ok(lab.yolofs().arg("mount").args([&root, &root]));
    assert_eq!(
        fs::read_to_string(root.join("etc/config")).unwrap(),
        "answer = 42\n"
    );
    assert!(
        fs::write(root.join("etc/config"), "x").is_err(),
        "read-only"
    );
    lab.umount(&root);
    fs::write(root.join("etc/config"), "x").unwrap();
}

#[test]
fn privileged_errors_say_what_to_do() {
    let lab = Lab::new();
    let dir = lab.make_dir("root");
    let nowhere = lab.path("nowhere");
    let why = fails(1, lab.yolofs().arg("mount").args([&nowhere, &dir]));
    assert!(why.contains("nowhere"), "{why}");
    let why = fails(1, lab.yolofs().arg("mount").args([&dir, &nowhere]));
    assert!(
        why.contains("mount point") && why.contains("nowhere"),
        "{why}"
    );
    let why = fails(
        1,
        lab.yolofs()
            .args(["mount", "--boot", "nonesuch"])
            .args([&dir, &dir]),
    );
    assert!(
        why.contains("nonesuch") && why.contains("bootimg ls"),
        "{why}"
    );
    let why = fails(1, lab.yolofs().arg("umount").arg("/proc"));
    assert!(why.contains("not one of yolofs"), "{why}");
    fails(
        2,
        lab.yolofs()
            .args(["mount", "--trust", "--revalidate", "1"])
            .args([&dir, &dir]),
    );
    fails(
        2,
        lab.bootimg()
            .args(["record", "--until", "line:("])
            .arg(&dir)
            .args(["--", "true"]),
    );
    let why = fails(1, lab.bootimg().args(["inspect", "nonesuch"]));
    assert!(why.contains("nonesuch"), "{why}");
}
