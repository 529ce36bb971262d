//! Workers that hang, crash again and again, or are replaced by another program.
#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::sys::signal::Signal;

use lab::service::{Readers, Service, signal_to};
use lab::stopped::Stopped;
use lab::{Lab, busybox_root, fails, ok, until};

#[test]
fn privileged_worker_that_hangs_is_replaced() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let readers = Readers::start(&mountpoint);
    let worker = service.worker(&mountpoint);
    let _stopped = Stopped::stop(worker);
    // It is still told of, and nobody who asks waits for it.
    assert!(service.listed(&mountpoint).is_some());
    until("another worker to serve", || {
        service.state(&mountpoint) == "serving" && service.worker(&mountpoint) != worker
    });
    readers.until_more();
    readers.stop();
    lab.umount(&mountpoint);
}

#[test]
fn privileged_worker_of_one_mount_stays_that_when_the_node_is_killed() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let (bad, good) = (service.mount("bad"), service.mount("good"));
    let mut crashes = 0;
    while service.worker(&bad) == service.worker(&good) {
        assert!(crashes < 100, "they are never told apart");
        service.kill_worker(&bad, Signal::SIGABRT);
        crashes += 1;
    }
    let alone = [service.worker(&bad), service.worker(&good)];
    service.kill_node();
    assert_eq!([service.worker(&bad), service.worker(&good)], alone);
    // Another mount goes to neither.
    let other = service.mount("other");
    assert!(!alone.contains(&service.worker(&other)));
    for mountpoint in [&bad, &good, &other] {
        lab.umount(mountpoint);
    }
}

#[test]
fn privileged_mount_whose_workers_crash_takes_no_other_with_it() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let (bad, good) = (service.mount("bad"), service.mount("good"));
    assert_eq!(service.worker(&bad), service.worker(&good));
    let readers = Readers::start(&good);
    // Three crashes with the other, five of its own; more if the machine is so slow that some are
    // forgotten before the next.
    let mut crashes = 0;
    while service.state(&bad) != "failed" {
        assert!(crashes < 100, "it is not given up");
        service.kill_worker(&bad, Signal::SIGABRT);
        crashes += 1;
    }
    let listed = service.listed(&bad).unwrap();
    assert!(
        listed["error"].as_str().unwrap().contains("crash"),
        "{listed}"
    );
    // The place shows what is below the mount, and nobody waits there. It is told a moment before.
    until("the place to be as it was", || {
        fs::read_dir(&bad).is_ok_and(|names| names.count() == 0)
    });
    readers.until_more();
    readers.stop();
    // Asked for again it gets another chance.
    lab.mount(&lab.path("bad"), "bad-mnt", &[]);
    service.until_state(&bad, "serving");
    assert_eq!(fs::read(bad.join("1")).unwrap(), lab::noise(1, 70_000));
    for place in [&bad, &good] {
        lab.umount(place);
    }
}

#[test]
fn privileged_upgrade_under_readers_fails_no_read() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let mountpoint = service.mount("tree");
    let readers = Readers::start(&mountpoint);
    let why = fails(1, lab.yolofs().args(["upgrade", "--program", "/bin/true"]));
    assert!(why.contains("not yolofs"), "{why}");
    let upgraded = lab.path("upgraded");
    fs::copy(env!("CARGO_BIN_EXE_yolofs"), &upgraded).unwrap();
    let (node, worker) = (service.pid(), service.worker(&mountpoint));
    ok(lab.yolofs().args(["upgrade", "--program"]).arg(&upgraded));
    service.until_another(node);
    assert_ne!(service.worker(&mountpoint), worker);
    for process in [service.pid(), service.worker(&mountpoint)] {
        assert_eq!(program(process), upgraded);
    }
    let workers = service.node()["workers"].clone();
    let workers = workers.as_array().unwrap().iter();
    assert!(workers.clone().all(|worker| worker["current"] == true));
    assert_eq!(service.listed(&mountpoint).unwrap()["restarts"], 0);
    readers.until_more();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    readers.stop();
    lab.umount(&mountpoint);
}

fn program(process: u32) -> std::path::PathBuf {
    fs::read_link(Path::new("/proc").join(process.to_string()).join("exe")).unwrap()
}

#[test]
fn privileged_unmount_while_workers_restart_leaves_nothing() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    for _ in 0..5 {
        let mountpoint = service.mount("tree");
        signal_to(service.worker(&mountpoint), Signal::SIGKILL);
        lab.umount(&mountpoint);
        until("the mount to be forgotten", || {
            service.listed(&mountpoint).is_none()
        });
    }
    let left = fs::read_dir(lab.run_dir().join("node")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

/// What a worker may be and do, of each of its threads.
fn assert_confined(worker: u32) {
    let tasks = fs::read_dir(format!("/proc/{worker}/task")).unwrap();
    // One that ended meanwhile has none.
    let tasks =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    for task in tasks {
        for expected in [
            "Uid:\t65534\t65534\t65534\t65534\n",
            "Gid:\t65534\t65534\t65534\t65534\n",
            "Groups:\t \n",
            // CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_IPC_LOCK and CAP_SYS_ADMIN.
            "CapInh:\t0000000000000000\n",
            "CapPrm:\t000000000020400c\n",
            "CapEff:\t000000000020400c\n",
            "CapBnd:\t000000000020400c\n",
            "CapAmb:\t0000000000000000\n",
            "NoNewPrivs:\t1\n",
            "Seccomp:\t2\n",
        ] {
            assert!(task.contains(expected), "{expected}\n{task}");
        }
    }
}

#[test]
fn privileged_worker_of_another_user_serves_what_only_root_may_read() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let source = service.source("tree");
    let marked = fs::File::open(&source).unwrap();
    rawio::xattr::set_at(&marked, b"0", c"trusted.overlay.opaque", b"y").unwrap();
    busybox_root(&source);
    ok(lab.bootimg().arg("record").arg(&source).args([
        "--",
        "/bin/sh",
        "-c",
        "cat /0 /1 /2 > /dev/null",
    ]));
    for file in 0..24 {
        let file = source.join(file.to_string());
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
    }
    fs::set_permissions(&source, Permissions::from_mode(0o700)).unwrap();
    let mountpoint = lab.mount(&source, "mnt", &["--wait-prewarm", "--lock"]);
    let status = service.listed(&mountpoint).unwrap();
    assert_eq!(status["boot"]["prewarm"], "done", "{status}");
    assert!(
        status["boot"]["injected_pages"].as_u64().unwrap() > 0,
        "{status}"
    );
    let shown = fs::File::open(&mountpoint).unwrap();
    let opaque = rawio::xattr::get_at(&shown, b"0", b"trusted.overlay.opaque").unwrap();
    assert_eq!(opaque.unwrap(), b"y");
    drop(shown);
    let readers = Readers::start(&mountpoint);
    assert_confined(service.worker(&mountpoint));
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    assert_confined(service.worker(&mountpoint));
    readers.stop();
    // The socket and its directory are root's, and the worker made nothing else.
    let listed = ok(std::process::Command::new("find")
        .arg(lab.run_dir())
        .args(["-user", "65534"]));
    assert_eq!(listed, "");
    lab.umount(&mountpoint);
}

#[test]
fn privileged_node_refuses_to_have_workers_of_an_unknown_user() {
    let lab = Lab::new();
    let why = fails(
        1,
        lab.yolofs().args(["node", "--worker-user", "no-such-user"]),
    );
    assert!(why.contains("no-such-user"), "{why}");
}
