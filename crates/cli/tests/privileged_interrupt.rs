//! Ctrl-C, signals and sudden death, at any moment: nothing stays mounted, nothing half done.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use lab::{Lab, busybox_root, json, ok, output, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Returns the mount points below a directory.
fn mounts_below(dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let below = points.filter(|point| Path::new(point).starts_with(dir));
    below.map(str::to_owned).collect()
}

/// Returns how many living processes have `word` in their arguments.
fn processes_with(word: &str) -> usize {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let has_word = |path: &PathBuf| {
        let args = fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&args).contains(word)
    };
    pids.filter(has_word).count()
}

fn root_of(lab: &Lab) -> PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    root
}

/// Returns the same command, for a process that does not ignore signals before it takes them over:
/// a shell has what it runs in the background ignore SIGINT, and these tests inherit that.
fn heeding(command: &Command) -> Command {
    let mut heeding = Command::new("env");
    heeding
        .arg("--default-signal=INT")
        .arg(command.get_program());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => heeding.env(name, value),
            None => heeding.env_remove(name),
        };
    }
    heeding
}

/// Starts a recording whose command says "started", and then runs until it is stopped. The
/// returned word is in the command's arguments, and in those of no other lab's.
fn endless_recording(lab: &Lab, source: &Path) -> (Child, String) {
    // Busybox and coreutils take any number of seconds: this one is the lab's own.
    let place = lab.path("endless");
    let sum = place.to_string_lossy().bytes().fold(7, |sum: u32, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let word = format!("9{sum:010}");
    let script = format!("echo started; sleep {word}; true");
    let child = heeding(&lab.bootimg())
        .args(["record", "--name", "endless"])
        .arg(source)
        .args(["--", "/bin/sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, word)
}

/// Waits until the recorded command says that it has started.
fn wait_until_started(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
    let started = lines
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line == "started");
    assert!(started, "the command never started");
    assert!(processes_with(word) > 1, "the recorder and its command");
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Panics unless nothing is left of a recording but a store that works.
fn assert_nothing_left(lab: &Lab, word: &str) {
    until("the workload's end", || processes_with(word) == 0);
    assert_eq!(mounts_below(&lab.path("")), [""; 0]);
    let left: Vec<_> = fs::read_dir(lab.run_dir()).into_iter().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        json(lab.bootimg().args(["ls", "--json"])),
        serde_json::json!([])
    );
    let gc = json(lab.bootimg().args(["gc", "--json"]));
    assert_eq!(
        (&gc["leftovers"], &gc["bytes_before"]),
        (&0.into(), &0.into())
    );
}

/// Records and keeps a boot image: what must still work afterwards.
fn assert_records(lab: &Lab, root: &Path) {
    ok(lab
        .bootimg()
        .args(["record", "--name", "after"])
        .arg(root)
        .args(["--", "/bin/cat", "/etc/config"]));
    ok(lab
        .bootimg()
        .args(["verify", "after", "--against"])
        .arg(root));
    assert_eq!(mounts_below(&lab.path("")), [""; 0]);
    assert_eq!(fs::read_dir(lab.run_dir()).unwrap().count(), 0);
}

#[test]
fn privileged_a_signal_while_the_workload_runs_ends_all_of_it() {
    for name in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let lab = Lab::new();
        let root = root_of(&lab);
        let (mut child, word) = endless_recording(&lab, &root);
        wait_until_started(&mut child, &word);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}");
        assert_nothing_left(&lab, &word);
        assert_records(&lab, &root);
    }
}

#[test]
fn privileged_a_signal_ends_what_a_recorded_machine_started() {
    let lab = Lab::new();
    let disk = lab.path("disk.raw");
    fs::write(&disk, lab::noise(1, 1 << 20)).unwrap();
    // No namespaces here: the shell and what it started are ended as a group.
    let (mut child, word) = endless_recording(&lab, &disk);
    wait_until_started(&mut child, &word);
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_nothing_left(&lab, &word);
}

#[test]
fn privileged_two_signals_at_once_are_one_request() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let (mut child, word) = endless_recording(&lab, &root);
    wait_until_started(&mut child, &word);
    // As timeout(1) does it: to the child, and to the group that the child is in.
    signal(&child, Signal::SIGTERM);
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_nothing_left(&lab, &word);
}

#[test]
fn privileged_a_signal_at_any_step_leaves_nothing() {
    let lab = Lab::new();
    let root = root_of(&lab);
    // The steps that can be seen from outside; each is reached before the signal is sent.
    type Step = fn(&Lab) -> bool;
    let steps: [(&str, Step); 4] = [
        ("started", |_| true),
        ("run directory", |lab| lab.run_dir().exists()),
        ("scratch directory", |lab| {
            fs::read_dir(lab.run_dir()).is_ok_and(|mut dir| dir.next().is_some())
        }),
        ("mounted", |lab| !mounts_below(&lab.run_dir()).is_empty()),
    ];
    for (step, reached) in steps {
        let (mut child, word) = endless_recording(&lab, &root);
        until(step, || reached(&lab));
        signal(&child, Signal::SIGINT);
        let ended = child.wait().unwrap();
        assert!(is_interrupted(ended), "{step}: {ended}");
        assert_nothing_left(&lab, &word);
    }
    assert_records(&lab, &root);
}

/// Before the program takes signals over the kernel ends it, which shells show as 130, too.
fn is_interrupted(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.code() == Some(130) || status.signal() == Some(Signal::SIGINT as i32)
}

#[test]
fn privileged_a_killed_recorder_takes_its_workload_along_and_the_next_one_cleans_up() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let (mut child, word) = endless_recording(&lab, &root);
    wait_until_started(&mut child, &word);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    until("the workload's end", || processes_with(&word) == 0);
    assert_eq!(mounts_below(&lab.path("")).len(), 1, "a dead mount is left");
    let gc = json(lab.bootimg().args(["gc", "--json"]));
    assert_eq!(gc["lost"], serde_json::json!([]));
    assert_records(&lab, &root);
}

#[test]
fn privileged_yolofs_umount_clears_what_a_killed_recorder_left() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let (mut child, word) = endless_recording(&lab, &root);
    wait_until_started(&mut child, &word);
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    until("the workload's end", || processes_with(&word) == 0);
    for dead in mounts_below(&lab.path("")) {
        lab.umount(Path::new(&dead));
    }
    assert_eq!(mounts_below(&lab.path("")), [""; 0]);
}

#[test]
fn privileged_a_recorder_leaves_its_living_neighbour_alone() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let (mut first, word) = endless_recording(&lab, &root);
    wait_until_started(&mut first, &word);
    let mounts = mounts_below(&lab.path(""));
    ok(lab
        .bootimg()
        .args(["record", "--name", "second"])
        .arg(&root)
        .args(["--", "/bin/cat", "/etc/config"]));
    assert_eq!(mounts_below(&lab.path("")), mounts);
    signal(&first, Signal::SIGINT);
    assert_eq!(first.wait().unwrap().code(), Some(130));
    until("the workload's end", || processes_with(&word) == 0);
    ok(lab.bootimg().args(["rm", "second"]));
    ok(lab.bootimg().arg("gc"));
    assert_nothing_left(&lab, &word);
}

#[test]
fn privileged_records_at_the_same_time_all_keep_their_image() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let start = |index: u32| {
        lab.bootimg()
            .args(["record", "--name", &format!("image{index}")])
            .arg(&root)
            .args(["--", "/bin/cat", &format!("/usr/lib/part{index:02}")])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..4).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for index in 0..4 {
        let name = format!("image{index}");
        ok(lab
            .bootimg()
            .args(["verify", &name, "--against"])
            .arg(&root));
        let shown = json(lab.bootimg().args(["inspect", &name, "--json"]));
        let files = shown["files"].to_string();
        assert!(
            files.contains(&format!("usr/lib/part{index:02}")),
            "{files}"
        );
    }
    assert_eq!(mounts_below(&lab.path("")), [""; 0]);
    assert_eq!(fs::read_dir(lab.run_dir()).unwrap().count(), 0);
}

#[test]
fn privileged_a_mount_in_the_foreground_ends_cleanly() {
    for name in [Signal::SIGTERM, Signal::SIGINT] {
        let lab = Lab::new();
        let (root, mountpoint) = (root_of(&lab), lab.make_dir("mnt"));
        let mut mount = lab
            .yolofs()
            .args(["mount", "--foreground"])
            .args([&root, &mountpoint])
            .spawn()
            .unwrap();
        until("the mount", || mountpoint.join("etc/config").exists());
        signal(&mount, name);
        assert_eq!(mount.wait().unwrap().code(), Some(0), "{name}");
        assert_eq!(mounts_below(&lab.path("")), [""; 0]);
        assert_eq!(fs::read_dir(lab.run_dir()).unwrap().count(), 0);
    }
}

#[test]
fn privileged_twenty_mounts_come_and_go_side_by_side() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let places: Vec<_> = (0..20)
        .map(|index| lab.make_dir(&format!("mnt{index}")))
        .collect();
    let at_once = |command: &dyn Fn(&Path) -> Command| {
        let start = |place: &PathBuf| command(place).stderr(Stdio::piped()).spawn().unwrap();
        let children: Vec<_> = places.iter().map(start).collect();
        for child in children {
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert!(
                ended.status.success() && said.is_empty(),
                "{}: {said}",
                ended.status
            );
        }
    };
    at_once(&|place| {
        let mut command = lab.yolofs();
        command
            .args(["mount", "--threads", "1"])
            .args([&root, place]);
        command
    });
    assert_eq!(mounts_below(&lab.path("")).len(), 20);
    let status = json(lab.yolofs().args(["status", "--json"]));
    let serving = |mount: &&serde_json::Value| mount["state"] == "serving";
    assert_eq!(
        status.as_array().unwrap().iter().filter(serving).count(),
        20
    );
    for place in &places {
        let part = place.join("usr/lib/part07");
        assert!(fs::read(part).unwrap() == fs::read(root.join("usr/lib/part07")).unwrap());
    }
    at_once(&|place| {
        let mut command = lab.yolofs();
        command.arg("umount").arg(place);
        command
    });
    assert_eq!(mounts_below(&lab.path("")), [""; 0]);
    assert_eq!(
        json(lab.yolofs().args(["status", "--json"])),
        serde_json::json!([])
    );
}

#[test]
fn privileged_of_many_mounts_at_one_place_one_wins() {
    let lab = Lab::new();
    let (root, mountpoint) = (root_of(&lab), lab.make_dir("mnt"));
    for _ in 0..5 {
        let start = |_| {
            let mut command = lab.yolofs();
            let mount = command.arg("mount").args([&root, &mountpoint]);
            mount.stderr(Stdio::piped()).spawn().unwrap()
        };
        let children: Vec<_> = (0..6).map(start).collect();
        let mut won = 0;
        for child in children {
            let ended = child.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&ended.stderr);
            // Who comes when it is served finds all done; who meets another on the way is told.
            assert!(
                ended.status.success() || why.contains("served already"),
                "{why}"
            );
            won += u32::from(ended.status.success());
        }
        assert!(won > 0);
        assert_eq!(mounts_below(&lab.path("")).len(), 1);
        assert_eq!(lab.status(&mountpoint)["state"], "serving");
        lab.umount(&mountpoint);
        assert_eq!(mounts_below(&lab.path("")), [""; 0]);
    }
}

#[test]
fn privileged_a_mount_outlives_its_store() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let all = "cat /usr/lib/part* /etc/config > /dev/null";
    ok(lab
        .bootimg()
        .args(["record", "--name", "boot"])
        .arg(&root)
        .args(["--", "/bin/sh", "-c", all]));
    for flags in [
        &["--boot", "boot", "--no-inject"][..],
        &["--boot", "boot", "--wait-prewarm"],
    ] {
        let aside = lab.path("store-aside");
        let mountpoint = lab.mount(&root, "mnt", flags);
        // Half of it is read before, half after.
        lab::twin::assert_same_content(
            &mountpoint.join("usr/lib/part03"),
            &root.join("usr/lib/part03"),
        );
        fs::rename(lab.store(), &aside).unwrap();
        lab::twin::assert_twins(&mountpoint, &root, lab::twin::Times::Compared);
        assert_eq!(lab.status(&mountpoint)["state"], "serving");
        lab.umount(&mountpoint);
        fs::rename(&aside, lab.store()).unwrap();
    }
    // Removed for good it is right as well.
    let mountpoint = lab.mount(&root, "mnt", &["--boot", "boot", "--no-inject"]);
    fs::remove_dir_all(lab.store()).unwrap();
    lab::twin::assert_twins(&mountpoint, &root, lab::twin::Times::Compared);
    lab.umount(&mountpoint);
}

#[test]
fn privileged_a_full_disk_is_named_and_nothing_half_done_is_left() {
    let lab = Lab::new();
    let root = root_of(&lab);
    let small = lab.make_dir("small");
    // Room for the store's own directories, and not for 600 KB of boot image.
    ok(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=300k", "tmpfs"])
        .arg(&small));
    let store = small.join("store");
    let with_store = || {
        let mut command = lab.bootimg();
        command.env("YOLOFS_STORE", &store);
        command
    };
    let command = ["--", "/bin/sh", "-c", "cat /usr/lib/part* > /dev/null"];
    let failed = output(
        with_store()
            .args(["record", "--name", "big"])
            .arg(&root)
            .args(command),
    );
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{why}");
    assert!(
        why.contains("no space left") && why.contains("small"),
        "{why}"
    );
    assert_eq!(
        json(with_store().args(["ls", "--json"])),
        serde_json::json!([])
    );
    assert_eq!(json(with_store().args(["gc", "--json"]))["leftovers"], 0);
    // The same for a file beside the store.
    let out = small.join("out.img");
    let failed = output(
        lab.bootimg()
            .arg("record")
            .arg("--out")
            .args([&out, &root])
            .args(command),
    );
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert_eq!(failed.status.code(), Some(1), "{why}");
    assert!(
        why.contains("no space left") && why.contains("out.img"),
        "{why}"
    );
    let left = fs::read_dir(&small)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["store"]);
    ok(Command::new("umount").arg(&small));
    assert_records(&lab, &root);
}

#[test]
fn privileged_every_field_of_status_is_documented() {
    let docs = include_str!("../../../docs/cli.md");
    let lab = Lab::new();
    let root = root_of(&lab);
    assert_records(&lab, &root);
    let mountpoint = lab.mount(&root, "mnt", &["--boot", "after"]);
    let status = lab.status(&mountpoint);
    let parts = [&status, &status["boot"], &status["served"]];
    let names: Vec<_> = parts
        .iter()
        .flat_map(|part| part.as_object().unwrap().keys())
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(
            docs.contains(&format!("`{name}`")),
            "not in docs/cli.md: {name}"
        );
    }
}
