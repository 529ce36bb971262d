//! One node for a run directory, and nothing of it left when it ends.

#![cfg(feature = "privileged")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lab::service::{Readers, Service, signal_to};
use lab::{Lab, fails, until};
use nix::sys::signal::Signal;

/// `yolofs node` beside the one of the lab, with its directories.
fn second(lab: &Lab) -> Command {
    let mut command = lab.yolofs();
    command
        .env_remove("NOTIFY_SOCKET")
        .args(["node", "--state-dir"])
        .arg(lab.path("state"));
    command
}

fn assert_named(why: &str, owner: u32) {
    let words = format!("another node (process {owner}) owns the mounts of");
    assert!(why.contains(&words), "{owner}: {why}");
}

#[test]
fn privileged_a_second_node_ends_and_harms_nobody() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let mountpoint = service.mount("source");
    let readers = Readers::start(&mountpoint);
    let (keeper, node) = (service.keeper(), service.pid());
    for _ in 0..3 {
        assert_named(&fails(1, &mut second(&lab)), node);
    }
    // As systemd starts it: without a keeper.
    let manager = lab.path("manager.sock");
    let _listening = std::os::unix::net::UnixDatagram::bind(&manager).unwrap();
    let why = fails(1, second(&lab).env("NOTIFY_SOCKET", &manager));
    assert_named(&why, node);
    assert_eq!(
        (service.keeper(), service.pid()),
        (keeper, node),
        "it goes on"
    );
    // What the keeper has was not lost with its socket: another node comes, and has the mounts.
    service.kill_node();
    service.kill_worker(&mountpoint, Signal::SIGKILL);
    readers.until_more();
    // A keeper that waits for the next start of its node owns all of it, too.
    let node = service.pid();
    signal_to(node, Signal::SIGSTOP);
    assert_named(&fails(1, &mut second(&lab)), node);
    signal_to(node, Signal::SIGCONT);
    readers.stop();
    lab.umount(&mountpoint);
    // When it is gone, its place is free.
    service.stop();
    service.start_again();
}

#[test]
fn privileged_of_two_nodes_at_once_one_stays() {
    let lab = Lab::new();
    let log = lab.path("both.log");
    for _ in 0..5 {
        let spawn = |_| -> Child {
            let log = File::options()
                .create(true)
                .append(true)
                .open(&log)
                .unwrap();
            let mut command = second(&lab);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log);
            command.spawn().unwrap()
        };
        let mut both: Vec<Child> = (0..2).map(spawn).collect();
        until("one of them to end", || {
            both.iter_mut()
                .any(|child| child.try_wait().unwrap().is_some())
        });
        until("the other to answer", || {
            lab.yolofs()
                .args(["node", "status"])
                .output()
                .unwrap()
                .status
                .success()
        });
        let mut stayed: Vec<_> = both
            .iter_mut()
            .filter_map(|child| child.try_wait().unwrap().is_none().then_some(child))
            .collect();
        assert_eq!(stayed.len(), 1, "{}", fs::read_to_string(&log).unwrap());
        signal_to(stayed[0].id(), Signal::SIGTERM);
        until("it to end", || stayed[0].try_wait().unwrap().is_some());
    }
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("owns the mounts of").count(), 5, "{said}");
}

#[test]
fn privileged_a_node_without_mounts_leaves_no_process() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    for round in 0..3 {
        // A worker that has nothing to serve any more waits for the next mount, for a while.
        let mountpoint = service.mount(&format!("source-{round}"));
        let (worker, node) = (service.worker(&mountpoint), service.pid());
        lab.umount(&mountpoint);
        assert!(
            Path::new(&format!("/proc/{worker}")).exists(),
            "nothing is shown"
        );
        service.stop();
        for (name, pid) in [("node", node), ("worker", worker)] {
            assert!(!lives(pid), "the {name} is left");
        }
        let sockets = fs::read_dir(lab.run_dir().join("workers")).unwrap();
        assert_eq!(sockets.count(), 0);
        service.start_again();
    }
    // One that serves stays.
    let mountpoint = service.mount("source");
    let readers = Readers::start(&mountpoint);
    let worker = service.worker(&mountpoint);
    service.stop();
    assert!(lives(worker));
    readers.until_more();
    service.start_again();
    readers.stop();
}

/// Whether a process is there that does more than to wait to be collected.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Each would make the other's mounts after a reboot, and forget what it does not know.
#[test]
fn privileged_two_nodes_do_not_share_a_state_directory() {
    let lab = Lab::new();
    let mut service = Service::start(&lab);
    let run_dir = lab.make_dir("other-run");
    fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o700)).unwrap();
    let other = || {
        let mut other = second(&lab);
        other.env("YOLOFS_RUN_DIR", &run_dir);
        other
    };
    let why = fails(1, &mut other());
    let words = format!("another node (process {})", service.pid());
    assert!(why.contains(&words), "{why}");
    assert!(why.contains("state directory of its own"), "{why}");
    // It is nobody's when that one is gone.
    service.stop();
    service.start_again();
    service.stop();
}
