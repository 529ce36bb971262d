//! The main job, end to end: record a boot, keep it, serve the next one from it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use lab::{Lab, busybox_root, fails, json, noise, ok, output, until};
use testkit::undisturbed::undisturbed;

/// What the recorded boots of these tests run: it reads two of twenty files, and part of a third.
const BOOT: &str = "cat /usr/lib/part03 /usr/lib/part07 /etc/config > /dev/null; \
                    dd if=/usr/lib/part11 of=/dev/null bs=4096 skip=2 count=1 2> /dev/null; \
                    cat /missing 2> /dev/null; true";

fn recorded(lab: &Lab) -> std::path::PathBuf {
    let root = lab.make_dir("root");
    busybox_root(&root);
    let report = json(
        lab.bootimg()
            .args(["record", "--json", "--name", "boot"])
            .arg(&root)
            .args(["--", "sh", "-c", BOOT]),
    );
    assert_eq!(report["name"], "boot", "{report}");
    assert!(report["blocks"].as_u64().unwrap() > 2 * 8, "{report}");
    root
}

/// Boots once more in the sandbox, on a mount: overlay, namespaces and all, but not recorded.
fn boot_on(lab: &Lab, mountpoint: &Path) {
    let scratch = lab.make_dir("scratch");
    ok(Command::new(env!("CARGO_BIN_EXE_bootimg"))
        .arg("__enter")
        .arg("--lower")
        .arg(mountpoint)
        .arg("--scratch")
        .arg(&scratch)
        .args(["--", "sh", "-c", BOOT]));
}

#[test]
fn privileged_a_prewarmed_boot_asks_the_daemon_for_nothing() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = recorded(&lab);
        let mountpoint = lab.mount(&root, "mnt", &["--boot", "boot", "--wait-prewarm"]);
        let before = lab.status(&mountpoint);
        assert_eq!(before["boot"]["prewarm"], "done", "{before}");
        assert!(
            before["boot"]["injected_pages"].as_u64().unwrap() > 0,
            "{before}"
        );
        boot_on(&lab, &mountpoint);
        let after = lab.status(&mountpoint);
        for kind in ["read", "open", "readlink"] {
            assert_eq!(
                before["served"]["requests"][kind], after["served"]["requests"][kind],
                "{kind}: {after}"
            );
        }
        assert_eq!(after["served"]["fallthrough_bytes"], 0, "{after}");
        lab.umount(&mountpoint);
    });
}

#[test]
fn privileged_without_injection_the_boot_image_answers() {
    let lab = Lab::new();
    let root = recorded(&lab);
    let mountpoint = lab.mount(&root, "mnt", &["--boot", "boot", "--no-inject"]);
    boot_on(&lab, &mountpoint);
    let status = lab.status(&mountpoint);
    assert!(
        status["served"]["hit_bytes"].as_u64().unwrap() > 60_000,
        "{status}"
    );
    assert_eq!(status["served"]["fallthrough_bytes"], 0, "{status}");
    // What was not recorded falls through, and is right.
    assert_eq!(
        fs::read(mountpoint.join("usr/lib/part15")).unwrap(),
        noise(15, 30_000)
    );
    let status = lab.status(&mountpoint);
    assert!(
        status["served"]["fallthrough_bytes"].as_u64().unwrap() >= 30_000,
        "{status}"
    );
    assert!(
        status["served"]["divergence_permille"].as_u64().unwrap() > 0,
        "{status}"
    );
}

#[test]
fn privileged_the_recording_is_exact() {
    let lab = Lab::new();
    recorded(&lab);
    let shown = json(lab.bootimg().args(["inspect", "--json", "boot"]));
    let files = shown["files"].as_array().unwrap();
    let blocks = |path: &str| {
        files
            .iter()
            .find(|file| file["path"] == path)
            .map_or(0, |file| file["blocks"].as_u64().unwrap())
    };
    assert_eq!(blocks("usr/lib/part03"), 8, "{shown}");
    assert_eq!(blocks("usr/lib/part07"), 8, "{shown}");
    assert_eq!(blocks("etc/config"), 1, "{shown}");
    assert_eq!(blocks("usr/lib/part11"), 1, "{shown}");
    assert_eq!(blocks("usr/lib/part15"), 0, "{shown}");
}

/// The source is a mount of ours, which counts what it is asked.
#[test]
fn privileged_the_source_is_scanned_after_the_boot_and_not_before() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let source = lab.mount(&root, "source", &["--boot", "none"]);
    let listings = || lab.requests(&source, "readdir") + lab.requests(&source, "readdirplus");
    let (began, go) = (lab.path("began"), lab.path("go"));
    let boot = "cat \"$YOLOFS_MNT/usr/lib/part03\" > /dev/null; touch \"$0\"; \
                until [ -e \"$1\" ]; do sleep 0.1; done";
    let mut recorder = lab.bootimg();
    recorder
        .args([
            "record",
            "--no-chroot",
            "--name",
            "late",
            "--timeout",
            "120",
        ])
        .arg(&source)
        .args(["--", "sh", "-c", boot])
        .args([&began, &go]);
    let report = std::thread::scope(|scope| {
        let recording = scope.spawn(|| ok(&mut recorder));
        until("a boot that began", || {
            began.exists() || recording.is_finished()
        });
        let (listed, looked_up) = (listings(), lab.requests(&source, "lookup"));
        fs::write(&go, "").unwrap();
        let report = recording.join().unwrap();
        assert_eq!(listed, 0, "a boot that lists nothing has nothing listed");
        assert!(looked_up <= 6, "{looked_up} names for one file");
        report
    });
    assert!(report.contains("1 file, 8 blocks"), "{report}");
    // What was counted is what a scan does.
    assert!(listings() > 0);
    lab.umount(&source);
}

#[test]
fn privileged_runs_are_merged() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let report = json(
        lab.bootimg()
            .args(["record", "--json", "--runs", "3"])
            .arg(&root)
            .args(["--", "sh", "-c", "cat /usr/lib/part01"]),
    );
    assert_eq!(report["runs"].as_array().unwrap().len(), 3, "{report}");
    assert_eq!(report["similarity"]["jaccard_min"], 1.0, "{report}");
}

#[test]
fn privileged_readiness_has_many_faces() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let record = |until: &str, script: &str| {
        let mut command = lab.bootimg();
        command
            .args(["record", "--json", "--timeout", "20", "--until", until])
            .arg(&root);
        command.args(["--", "sh", "-c", script]);
        command
    };
    let line = json(&mut record(
        "line:ready",
        "cat /usr/lib/part01 > /dev/null; echo ready; sleep 1000",
    ));
    assert_eq!(line["runs"].as_array().unwrap().len(), 1);
    json(&mut record("tcp:29871", "nc -l -p 29871; sleep 1000"));
    json(&mut record(
        "http:http://127.0.0.1:29872/config",
        "httpd -f -p 29872 -h /etc",
    ));
    json(&mut record("quiet:0.3", "cat /usr/lib/part01; sleep 1000"));
    let why = fails(3, &mut record("exit", "exit 7"));
    assert!(why.contains("code 7"), "{why}");
    let mut late = lab.bootimg();
    late.args(["record", "--timeout", "0.3", "--until", "line:never"])
        .arg(&root)
        .args(["--", "sleep", "100"]);
    let why = fails(3, &mut late);
    assert!(why.contains("--timeout"), "{why}");
    let left = output(Command::new("pgrep").args(["-f", "sleep 1000"]));
    assert!(
        left.stdout.is_empty(),
        "a recorded command survived its recording"
    );
}

#[test]
fn privileged_a_disk_image_is_recorded_and_served() {
    undisturbed(|| {
        let lab = Lab::new();
        let disk = lab.path("disk.raw");
        fs::write(&disk, noise(1, 8 << 20)).unwrap();
        let script = "dd if=\"$YOLOFS_IMAGE\" of=/dev/null bs=64k count=4 2> /dev/null; \
                  dd if=\"$YOLOFS_IMAGE\" of=/dev/null bs=4k skip=1000 count=3 2> /dev/null";
        let report = json(
            lab.bootimg()
                .args(["record", "--json", "--name", "disk"])
                .arg(&disk)
                .args(["--", "sh", "-c", script]),
        );
        assert_eq!(report["blocks"], 64 + 3, "{report}");
        let mountpoint = lab.mount(&disk, "mnt", &["--wait-prewarm"]);
        let served = mountpoint.join("disk.raw");
        assert_eq!(fs::metadata(&served).unwrap().size(), 8 << 20);
        let reads = lab.requests(&mountpoint, "read");
        let file = fs::File::open(&served).unwrap();
        let mut recorded = vec![0; 256 << 10];
        file.read_exact_at(&mut recorded, 0).unwrap();
        assert_eq!(recorded, noise(1, 256 << 10));
        assert_eq!(
            lab.requests(&mountpoint, "read"),
            reads,
            "recorded blocks are in the page cache"
        );
        assert_eq!(fs::read(&served).unwrap(), noise(1, 8 << 20));
        drop(file);
        lab.umount(&mountpoint);
    });
}

#[test]
fn privileged_a_trace_of_a_mount_makes_a_boot_image() {
    undisturbed(|| {
        let lab = Lab::new();
        let root = lab.make_dir("root");
        busybox_root(&root);
        let trace = lab.path("boot.trace");
        let mountpoint = lab.mount(
            &root,
            "mnt",
            &["--boot", "none", "--record", trace.to_str().unwrap()],
        );
        boot_on(&lab, &mountpoint);
        lab.umount(&mountpoint);
        let made = json(
            lab.bootimg()
                .args(["from-trace", "--json", "--name", "traced"])
                .arg(&root)
                .arg("--trace")
                .arg(&trace),
        );
        assert!(made["blocks"].as_u64().unwrap() > 16, "{made}");
        let mountpoint = lab.mount(&root, "mnt", &["--boot", "traced", "--wait-prewarm"]);
        let reads = lab.requests(&mountpoint, "read");
        boot_on(&lab, &mountpoint);
        assert_eq!(lab.requests(&mountpoint, "read"), reads);
    });
}
