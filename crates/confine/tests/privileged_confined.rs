//! What a confined process can do, and what it cannot. Each deed is done by a process of its own
//! (`deed/confined_deed.rs`).

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use confine::{Confinement, Files, Ports, Reads, Set, Unlisted};
use nix::sys::signal::Signal;

/// A directory for a deed.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for dir in ["read", "write"] {
        fs::create_dir(place.path().join(dir)).unwrap();
    }
    for name in ["read/private", "write/of root"] {
        let file = place.path().join(name);
        fs::write(&file, "content").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(place.path().join("read/file"), "content").unwrap();
    File::create(place.path().join("outside")).unwrap();
    place
}

/// Does a deed and returns how that ended: `done`, `failed` with a number, or `killed`.
fn outcome(name: &str) -> String {
    let place = place();
    let output = Command::new(env!("CARGO_BIN_EXE_confined-deed"))
        .arg(name)
        .arg(place.path())
        .output()
        .unwrap();
    if output.status.signal() == Some(Signal::SIGSYS as i32) {
        return "killed".to_owned();
    }
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {:?}\n{why}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn privileged_a_confined_process_does_what_serving_takes() {
    assert_eq!(outcome("work"), "done");
    assert_eq!(outcome("read outside, where that is allowed"), "done");
    assert_eq!(outcome("read as another user"), "done");
}

#[test]
fn privileged_a_confined_process_opens_nothing_outside() {
    let denied = format!("failed {:?}", Some(nix::libc::EACCES));
    for name in [
        "read outside",
        "list outside",
        "write where it may only read",
        "write outside",
        "write as another user",
        "remove outside",
    ] {
        assert_eq!(outcome(name), denied, "{name}");
    }
}

#[test]
fn privileged_what_is_in_no_list_is_refused_as_unknown() {
    let unknown = format!("failed {:?}", Some(nix::libc::ENOSYS));
    for name in [
        "open a port, refused",
        "call a socket",
        "signal another process",
        "change a file's owner",
        "unmount",
    ] {
        assert_eq!(outcome(name), unknown, "{name}");
    }
    assert_eq!(outcome("open a port"), "killed");
}

/// A service manager hears datagrams, and believes who has `CAP_SYS_ADMIN` whatever process he says
/// that he is.
#[test]
fn privileged_a_confined_process_sends_to_no_name_and_calls_only_what_it_was_told() {
    let failed = |errno| format!("failed {:?}", Some(errno));
    for name in [
        "send to a name",
        "send to a name from one of a pair",
        "send to a name beside a service there",
        // libc does so without being asked: it is not killed over it.
        "call a socket beside the network",
        "call a service itself",
    ] {
        assert_eq!(outcome(name), failed(nix::libc::ENOSYS), "{name}");
    }
    // Allowed; nobody is there.
    assert_eq!(outcome("call a service there"), failed(nix::libc::ENOENT));
    assert_eq!(outcome("call a port"), failed(nix::libc::ECONNREFUSED));
    assert_eq!(outcome("call another port"), failed(nix::libc::EACCES));
    assert_eq!(outcome("open a port of a service"), "done");
    let other = outcome("open another port of a service");
    assert_eq!(other, failed(nix::libc::EACCES));
    let any = outcome("call any port as a service");
    assert_eq!(any, failed(nix::libc::ECONNREFUSED));
}

#[test]
fn privileged_what_only_an_intruder_does_is_the_end() {
    for name in [
        "execute",
        "mount",
        "look into another process",
        "leave for a namespace",
    ] {
        assert_eq!(outcome(name), "killed", "{name}");
    }
}

#[test]
fn privileged_a_service_may_mount_and_is_no_way_to_the_rest_of_the_machine() {
    assert_eq!(outcome("mount and unmount as a service"), "done");
    assert_eq!(outcome("execute as a service that does"), "done");
    for name in [
        "look into another process as a service",
        "become another user as a service",
        "execute as a service",
        "execute as a helper",
        "make a directory as a helper",
    ] {
        assert_eq!(outcome(name), "killed", "{name}");
    }
}

#[test]
fn a_process_with_threads_is_not_confined_by_halves() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || held.recv().is_err());
    let confinement = Confinement {
        identity: None,
        capabilities: Vec::new(),
        files: Files {
            reads: Reads::All,
            writes: Vec::new(),
            ports: Ports::Called(Vec::new()),
            ..Files::default()
        },
        calls: Set::Serve,
        unlisted: Unlisted::Refused,
    };
    let error = confinement.apply().unwrap_err();
    assert!(matches!(error, confine::ConfineError::Threads(2..)));
    drop(hold);
    assert!(thread.join().unwrap());
}
