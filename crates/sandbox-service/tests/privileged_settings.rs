//! The settings of a daemon are on the disk before they replace others. One test: the kernel counts the calls of the whole program.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../sandbox/tests/rig/calls.rs"]
mod calls;

use calls::Calls;
use nix::libc;
use sandbox::{BaseSpec, Config};
use sandbox_handlers::Budget;
use sandbox_service::Daemon;

#[test]
fn settings_are_on_the_disk_before_they_replace_others() {
    let dir = tempfile::tempdir().unwrap();
    let cgroup = format!("sandbox-settings-test/{}", std::process::id());
    let config = Config::new(dir.path(), &cgroup);
    let packages = dir.path().join("packages");
    let open = || Daemon::open(config.clone(), &packages, Budget::default()).unwrap();
    let base = |name: &str| BaseSpec {
        name: name.to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    };
    let daemon = open();
    daemon.add_base(base("first")).unwrap();
    let calls = Calls::count();
    daemon.add_base(base("second")).unwrap();
    let counts = calls.stop();
    let number = u32::try_from(libc::SYS_fsync).unwrap();
    // The file, and the directory with its name.
    assert_eq!(counts.get(&number), Some(&2), "{counts:?}");
    drop(daemon);
    let names: Vec<String> = open().bases().into_iter().map(|base| base.name).collect();
    assert_eq!(names, ["first", "second"]);
    let _others = std::fs::remove_dir(format!("/sys/fs/cgroup/unified/{cgroup}"));
}
