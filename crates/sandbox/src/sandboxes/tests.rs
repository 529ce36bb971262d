//! A sandbox that cannot be watched, as the kernel refuses what it waits for already.

use std::os::fd::AsFd as _;

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::*;

#[test]
fn privileged_one_that_cannot_be_watched_is_ended_and_leaves_nothing() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let cgroup = format!("sandbox-unwatched-test/{pid}");
    let mut config = Config::new(dir.path().join("run"), &cgroup);
    config.first_uid += (pid % 30_000) * 0x4000;
    let sandboxes = Sandboxes::open(config).unwrap();
    let base = BaseSpec {
        name: "host".to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    };
    sandboxes.add_base(&base).unwrap();
    let shared = Arc::clone(&sandboxes.shared);

    let mut request = Request::new("host", &["/bin/sleep", "1000"]);
    request.timeout_ms = Some(1_000_000);
    let (stdio, streams) = open_stdio(Stdio::Captured).unwrap();
    let mut group = shared.pool.take().unwrap();
    group.limit(&request.limits).unwrap();
    let slot = group.slot;
    let user = sandboxes.user_of(slot);
    let parts = Parts {
        group: &group,
        network: None,
        room: None,
        mounts: &Mounts::default(),
        stdio: &stdio,
        user,
    };
    let starters = sandboxes.starters("host").unwrap();
    let started = Launch::start(&request, &parts, &sandboxes.confinement, &starters).unwrap();
    let child = Pid::from_raw(started.pid.cast_signed());
    // It is watched already, for nobody: no event is about it.
    let nothing = EpollEvent::new(EpollFlags::empty(), u64::MAX - 1);
    shared.epoll.add(started.process.as_fd(), nothing).unwrap();
    let newborn = Newborn {
        started,
        user,
        ancestry: Vec::new(),
    };
    let controls = Controls {
        group,
        network: None,
        next: Next::Anybody,
        mounts: None,
    };
    let refused = sandboxes.enroll(request, newborn, controls, streams);
    let error = refused.map(drop).unwrap_err().to_string();
    assert!(error.contains("watching a sandbox"), "{error}");

    // Reaped: there is no such child.
    let waited = waitpid(child, Some(WaitPidFlag::WNOHANG));
    assert_eq!(waited, Err(nix::errno::Errno::ECHILD));
    assert!(sandboxes.list().is_empty());
    assert!(shared.records.list().unwrap().is_empty());
    assert!(shared.pids().is_empty());
    // Its control group is there for the next one, and takes it.
    let next = Request::new("host", &["/bin/true"]);
    let next = sandboxes.create(next, Stdio::Null).unwrap();
    assert_eq!(next.user(), sandboxes.user_of(slot).0);
    assert!(next.wait(PATIENCE).is_some());
    drop(sandboxes);
    for hierarchy in ["unified", "memory", "cpu", ""] {
        let _none = remove_group(hierarchy, &cgroup);
    }
}

/// Removes a control group of a hierarchy, if there is one.
fn remove_group(hierarchy: &str, cgroup: &str) -> std::io::Result<()> {
    let dir = Path::new("/sys/fs/cgroup").join(hierarchy);
    std::fs::remove_dir(dir.join(cgroup))
}
