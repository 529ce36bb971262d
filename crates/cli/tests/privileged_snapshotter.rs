//! Containers of a real containerd, on snapshots that yolofs keeps and layers that it serves.

#![cfg(feature = "privileged")]

mod node;

use std::fs;

use lab::{Lab, assert_confined_to, json, noise, ok, until};
use node::{IMAGE, Node, archive, pack};

/// Says which directories the container's root is made of.
const LOWERS: &str = "while read -r _ at _ options _; do \
                      [ \"$at\" = / ] && echo \"$options\"; done </proc/mounts; true";

#[test]
fn privileged_runs_images_with_runc_and_crun() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--upper", "tmpfs,max=64M"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    assert_eq!(node.directories(), 2, "layers stay on the disk");
    let script = "echo new >/file; cat /file /srv/greeting /etc/config; mv /srv /moved; ls /moved";
    let expected = "new\nhello\nanswer = 42\ngreeting\nnoise";
    let crun = node.crun();
    assert_eq!(node.run(&[], "with-runc", script), expected);
    let flags = ["--runc-binary", &crun];
    assert_eq!(node.run(&flags, "with-crun", script), expected);
    let mounts = node.run(&[], "upper", LOWERS);
    assert!(mounts.contains("/root/upper/snapshots/"), "{mounts}");
    // Those of docs/security.md.
    assert_confined_to(&node.status()["pid"], 0x8820_401f);
    node.forget_everything();
}

#[test]
fn privileged_the_first_boot_is_recorded_and_the_second_served() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.5"]);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let script = format!("{LOWERS}; cat /srv/greeting; md5sum /srv/noise");
    let first = node.run(&[], "first", &script);
    assert!(first.contains("/root/recorded/"), "{first}");
    until("both layers to be served", || node.served() == 2);
    let second = node.run(&[], "second", &script);
    assert!(second.contains("/root/served/"), "{second}");
    assert!(!second.contains("/recorded/"), "{second}");
    let bytes = |said: &str| said.split_once('\n').unwrap().1.to_owned();
    assert_eq!(bytes(&second), bytes(&first));
    lab::until_boot_reads_nothing(
        &lab,
        || node.reads(),
        |number| {
            let again = node.run(&[], &format!("again-{number}"), &script);
            assert_eq!(bytes(&again), bytes(&first));
        },
    );
    // containerd's own snapshotter is there beside it.
    let overlayfs = ["--snapshotter", "overlayfs"];
    let beside = node.run(&overlayfs, "beside", &script);
    assert!(beside.contains(".overlayfs/snapshots/"), "{beside}");
    assert_eq!(bytes(&beside), bytes(&first));
    until("the recorder to go", || node.mounts().len() == 2);
    node.forget_everything();
    until("the layers to go", || node.mounts().is_empty());
}

#[test]
fn privileged_a_label_asks_for_a_recording() {
    let lab = Lab::new();
    let node = Node::start(&lab, &[]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let plain = node.run(&[], "plain", LOWERS);
    assert!(plain.contains("/root/snapshots/1/fs"), "{plain}");
    let label = "containerd.io/snapshot/yolofs.record=quiet:0.2";
    let recorded = node.run(&["--snapshotter-label", label], "recorded", LOWERS);
    assert!(recorded.contains("/root/recorded/"), "{recorded}");
    until("a layer to be served", || node.served() > 0);
}

#[test]
fn privileged_a_layer_changed_by_hand_is_served_as_it_is() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    node.run(&[], "hand-first", "cat /srv/greeting /srv/noise");
    until("both layers to be served", || node.served() == 2);
    let mut node = node;
    node.stop_snapshotter();
    fs::write(node.root().join("snapshots/2/fs/srv/greeting"), "changed\n").unwrap();
    node.start_snapshotter();
    until("both layers to be served", || node.served() == 2);
    assert_eq!(node.run(&[], "hand-second", "cat /srv/greeting"), "changed");
}

/// Somebody unmounts what serves the layers: an administrator, or a node that drains.
#[test]
fn privileged_layers_that_are_unmounted_are_no_empty_directories() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let script = format!("{LOWERS}; cat /srv/greeting; md5sum /srv/noise");
    let said = node.run(&[], "first", &script);
    let content = |said: &str| said.split_once('\n').unwrap().1.to_owned();
    until("both layers to be served", || node.served() == 2);
    for round in 0..2 {
        for place in node.mounts() {
            if place.contains("/served/") {
                ok(std::process::Command::new("umount").args(["-l", &place]));
            }
        }
        let after = node.run(&[], &format!("after-{round}"), &script);
        assert_eq!(content(&after), content(&said), "{after}");
        until("both layers to be served again", || node.served() == 2);
    }
}

/// The same of the mounts that record: nothing mounts these again.
#[test]
fn privileged_recorders_that_are_unmounted_are_no_empty_directories() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "exit"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let listed = node.ctr(&["snapshots", "ls"]);
    // The layer that stands on another one is the image.
    let mut lines = listed.lines().map(|line| line.split_whitespace());
    let top = lines.find_map(|mut words| {
        let (name, parent) = (words.next()?, words.next()?);
        parent.starts_with("sha256:").then_some(name)
    });
    let lowers = || node.ctr(&["snapshots", "mounts", "/nowhere", "boot"]);
    node.ctr(&["snapshots", "prepare", "boot", top.unwrap()]);
    assert!(lowers().contains("/root/recorded/"), "{}", lowers());
    for place in node.mounts() {
        ok(std::process::Command::new("umount").args(["-l", &place]));
    }
    assert!(!lowers().contains("/recorded/"), "{}", lowers());
    assert!(lowers().contains("/root/snapshots/"), "{}", lowers());
}

#[test]
fn privileged_containers_outlive_the_snapshotter() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    // One over recorders, one over served layers.
    for id in ["recorded", "served"] {
        let script = "echo up >/up; while :; do sleep 1; done";
        node.ctr(&["run", "-d", IMAGE, id, "/bin/sh", "-c", script]);
        until("both layers to be served", || node.served() == 2);
    }
    node.stop_snapshotter();
    node.start_snapshotter();
    let expected = lab.path("noise");
    fs::write(&expected, noise(7, 3_000_000)).unwrap();
    let sum = ok(std::process::Command::new("md5sum").arg(&expected));
    let sum = sum.split(' ').next().unwrap();
    for id in ["recorded", "served"] {
        let said = node.ctr(&[
            "tasks",
            "exec",
            "--exec-id",
            "x",
            id,
            "/bin/md5sum",
            "/srv/noise",
        ]);
        assert!(said.starts_with(sum), "{id}: {said}");
    }
    until("both layers to be served", || node.served() == 2);
    assert_eq!(node.run(&[], "new", "cat /srv/greeting"), "hello");
    assert!(
        !node.former_ended(),
        "somebody must serve the old containers"
    );
    for id in ["recorded", "served"] {
        node.ctr(&["tasks", "rm", "-f", id]);
        node.ctr(&["containers", "rm", id]);
    }
    until("the former snapshotter to end", || node.former_ended());
}

#[test]
fn privileged_a_first_boot_outlives_a_killed_snapshotter() {
    let lab = Lab::new();
    // The first boot is over when the test says so: its first process ends.
    let mut node = Node::start(&lab, &["--auto-record", "--until", "exit"]);
    let archive = archive(&lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let script = "cat /srv/greeting; while :; do sleep 1; done";
    node.ctr(&["run", "-d", IMAGE, "outlives", "/bin/sh", "-c", script]);
    until("it to be recorded", || {
        node.first_boot("outlives").0 == "recording"
    });
    let recorder = node.recorders();
    let expected = lab.path("noise");
    fs::write(&expected, noise(7, 3_000_000)).unwrap();
    let sum = ok(std::process::Command::new("md5sum").arg(&expected));
    let sum = sum.split(' ').next().unwrap();
    let read = |node: &Node<'_>, round: &str| {
        let exec = [
            "tasks",
            "exec",
            "--exec-id",
            round,
            "outlives",
            "/bin/md5sum",
        ];
        let said = node.ctr(&[&exec[..], &["/srv/noise"]].concat());
        assert!(said.starts_with(sum), "{round}: {said}");
    };
    node.kill_snapshotter();
    // What it has not read before has to come from the recorders.
    read(&node, "alone");
    node.start_snapshotter();
    read(&node, "followed");
    assert_eq!(node.first_boot("outlives").0, "recording", "it goes on");
    // Another waits whether it is needed, for a while.
    assert!(recorder.iter().all(|pid| node.recorders().contains(pid)));
    node.kill_snapshotter();
    // It is over while there is no snapshotter, and kept all the same.
    node.ctr(&["tasks", "kill", "--signal", "9", "outlives"]);
    node.start_snapshotter();
    until("the boot to be kept", || {
        node.first_boot("outlives").0 == "recorded"
    });
    until("both layers to be served", || node.served() == 2);
    let script = "cat /srv/greeting; md5sum /srv/noise";
    let said = node.run(&[], "outlives-second", script);
    assert!(said.starts_with("hello") && said.contains(sum), "{said}");
    let recorded = |node: &Node<'_>| node.mounts().iter().any(|m| m.contains("/recorded/"));
    assert!(recorded(&node));
    until("its process to be collected", || {
        node.try_ctr(&["tasks", "rm", "-f", "outlives"])
            .status
            .success()
    });
    node.ctr(&["containers", "rm", "outlives"]);
    until("the recorders to go", || !recorded(&node));
    // Who records goes with the last snapshotter.
    node.end_snapshotter();
    until("the recorder to end", || node.recorders().is_empty());
    node.start_snapshotter();
    node.forget_everything();
}

#[test]
fn privileged_a_killed_snapshotter_is_followed_by_another() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let mut expected = String::new();
    for round in 0..3 {
        let said = node.run(
            &[],
            &format!("round-{round}"),
            "cat /srv/greeting; md5sum /srv/noise",
        );
        assert!(round == 0 || said == expected, "{said}");
        expected = said;
        until("both layers to be served", || node.served() == 2);
        until("the layers to be in the page cache", || node.is_warm());
        node.kill_snapshotter();
        let down = node.try_ctr(&["run", "--rm", IMAGE, "down", "/bin/sh", "-c", "true"]);
        assert!(!down.status.success());
        node.start_snapshotter();
    }
    node.forget_everything();
}

#[test]
fn privileged_a_containerd_killed_while_it_unpacks_leaves_nothing() {
    let lab = Lab::new();
    let mut node = Node::start(&lab, &[]);
    let archive = archive(&lab, 20_000_000);
    let archive = archive.to_str().unwrap();
    for _ in 0..3 {
        let before = node.directories();
        let mut import = node.spawn_ctr(&["images", "import", archive]);
        until("a layer to be unpacked", || {
            node.directories() > before || import.try_wait().unwrap().is_some()
        });
        node.kill_containerd();
        import.wait().unwrap();
        node.start_containerd();
    }
    node.ctr(&["images", "import", archive]);
    assert_eq!(node.run(&[], "after", "cat /srv/greeting"), "hello");
    // Only a snapshot that goes makes containerd look for those that it does not know.
    node.forget_everything();
}

#[test]
fn privileged_what_is_recorded_again_is_served_without_a_restart() {
    let lab = Lab::new();
    // A busy machine may be quiet before anything has been read.
    let node = Node::start(&lab, &["--auto-record", "--until", "exit"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    node.run(&[], "again-first", "cat /srv/greeting");
    until("both layers to be served", || node.served() == 2);
    let wait = "while :; do sleep 1; done";
    node.ctr(&["run", "-d", IMAGE, "on", "/bin/sh", "-c", wait]);
    // On purpose this time, and more of it: over the plain directories, whatever serves them.
    let source = format!("containerd://default/{IMAGE}");
    let mut record = lab.bootimg();
    record.args(["record", &source, "--snapshotter", "yolofs", "--json"]);
    record.arg("--containerd").arg(node.containerd_socket());
    record.args(["--until", "exit", "--", "/bin/cat", "/srv/noise"]);
    let kept = json(&mut record);
    let (top, recorded) = (&kept["layers"][1], &kept["layers"][1]["kept"]);
    let recorded = recorded["recorded_blocks"].as_u64();
    assert!(recorded >= Some(25), "{kept}");
    let blocks_of_top = |state: &str| {
        let status = node.status();
        let layers = status["layers"].as_array().unwrap().iter();
        let mut those = layers.filter(|layer| layer["layer"] == top["layer"]);
        let layer = those.find(|layer| layer["state"] == state)?;
        layer["boot"]["blocks"].as_u64()
    };
    until("the new boot image to be served", || {
        blocks_of_top("serving") >= recorded
    });
    let old = blocks_of_top("leaving");
    assert!(old.is_some() && old < recorded, "one container has the old");
    assert_eq!(node.served(), 2);
    let lowers = node.run(&[], "again-new", LOWERS);
    assert!(lowers.contains("/root/served/"), "{lowers}");
    let sum = node.run(&[], "newer", "md5sum /srv/noise");
    let exec = [
        "tasks",
        "exec",
        "--exec-id",
        "x",
        "on",
        "/bin/md5sum",
        "/srv/noise",
    ];
    assert_eq!(node.ctr(&exec), sum);
    // A report of the node knows what is served.
    let report = json(lab.bootimg().args(["report", "--node", "--json"]));
    let mounts = report["node"]["mounts"].as_array().unwrap().iter();
    let served = mounts.filter(|mount| mount["state"] == "serving").count();
    assert_eq!(served, 2, "{report}");
}

#[test]
fn privileged_a_first_boot_ends_as_it_was_asked_for() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--upper", "tmpfs,max=64M"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let start = |id: &str, until: &str, script: &str| {
        let label = format!("containerd.io/snapshot/yolofs.record={until}");
        let script = format!("cat /srv/greeting; until [ -e /go ]; do sleep 0.1; done; {script}");
        let run = ["run", "-d", "--snapshotter-label", &label];
        node.ctr(&[&run[..], &[IMAGE, id, "/bin/sh", "-c", &script]].concat());
    };
    let go = |id: &str| {
        let exec = ["tasks", "exec", "--exec-id", "go", id];
        // The container may end, and this shell with it, before the shell does.
        let _ended = node.try_ctr(&[&exec[..], &["/bin/sh", "-c", "echo >/go"]].concat());
    };
    let recorded = |id: &str| {
        until("the first boot to be over", || {
            node.first_boot(id).0 != "recording"
        });
        let (state, boot) = node.first_boot(id);
        assert_eq!(state, "recorded", "{boot}");
        assert_eq!(boot["image"], IMAGE);
        ok(lab.bootimg().args(["rm", IMAGE])); // the next boot is a first one again
    };
    // By its end, although its snapshot stays.
    start("ends", "exit", "true");
    assert_eq!(node.first_boot("ends").0, "recording");
    go("ends");
    recorded("ends");
    // By its port.
    start("listens", "tcp:8080", "/bin/nc -l -p 8080");
    assert_eq!(node.first_boot("listens").0, "recording");
    go("listens");
    recorded("listens");
    // By time.
    start("goes-on", "after:0.3", "true");
    recorded("goes-on");
    // An image that is gone by then cannot be kept, and it is said why.
    start("unknown", "exit", "true");
    node.ctr(&["images", "rm", IMAGE]);
    go("unknown");
    until("the first boot to be over", || {
        node.first_boot("unknown").0 == "failed"
    });
    let (_, boot) = node.first_boot("unknown");
    let why = boot["why"].as_str().unwrap();
    assert!(
        why.contains("no image in containerd's namespace default"),
        "{why}"
    );
    // What the four containers wrote.
    let upper = node.status()["upper"].clone();
    assert_eq!(upper["max_bytes"], 64 << 20);
    assert!(upper["used_bytes"].as_u64() > Some(0), "{upper}");
    let said = ok(lab.yolofs().args(["snapshotter", "status"]));
    assert!(said.contains("not recorded: no image"), "{said}");
}

#[test]
fn privileged_eleven_first_boots_at_once_are_all_answered() {
    const IMAGES: usize = 11;
    const RECORDED: usize = 8;
    let lab = Lab::new();
    // No container ever runs, so no boot is over before its snapshot is removed.
    let node = Node::start(&lab, &["--auto-record", "--until", "exit"]);
    let dir = lab.make_dir("images");
    for index in 0..IMAGES {
        let layer = lab.make_dir(&format!("images/layer-{index}"));
        fs::write(layer.join("number"), format!("{index}\n")).unwrap();
        let name = format!("test.local/number:{index}");
        let archive = pack(&dir, &name, &["/bin/sh"], &[&format!("layer-{index}")]);
        node.ctr(&["images", "import", archive.to_str().unwrap()]);
    }
    let listed = node.ctr(&["snapshots", "ls"]);
    let first = |line: &str| {
        line.split_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let tops: Vec<_> = listed.lines().map(first).collect();
    let tops: Vec<_> = tops
        .iter()
        .filter(|top| top.starts_with("sha256:"))
        .collect();
    assert_eq!(tops.len(), IMAGES, "{listed}");
    let name = |index: usize| format!("at-once-{index}");
    // Twice: what was refused or removed the first time must be in nobody's way.
    for _round in 0..2 {
        let prepare = |(index, top): (usize, &&String)| {
            node.spawn_ctr(&["snapshots", "prepare", &name(index), top])
        };
        let prepared: Vec<_> = tops.iter().enumerate().map(prepare).collect();
        for mut prepare in prepared {
            assert!(prepare.wait().unwrap().success(), "each is prepared");
        }
        let boots = (0..IMAGES).map(|index| node.first_boot(&name(index)));
        let (on, off): (Vec<_>, Vec<_>) = boots.partition(|(state, _)| state == "recording");
        assert_eq!(on.len(), RECORDED, "{on:?} {off:?}");
        for (state, boot) in off {
            assert_eq!(state, "failed", "{boot}");
            let why = boot["why"].as_str().unwrap();
            assert_eq!(why, "8 other first boots are being recorded");
        }
        let removed = (0..IMAGES).map(|index| node.spawn_ctr(&["snapshots", "rm", &name(index)]));
        for mut remove in removed.collect::<Vec<_>>() {
            assert!(remove.wait().unwrap().success(), "each is removed");
        }
        node.collect_garbage();
        until("the recorders to go", || node.mounts().is_empty());
    }
}
