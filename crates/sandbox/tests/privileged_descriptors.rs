//! A program that may open no more descriptors. One test: the limit is the whole program's.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs::{self, File};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rig::{PATIENCE, Rig, shell};
use sandbox::{ExitStatus, Request, Stdio};

/// The children of this program, ended ones too.
fn children() -> String {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let lists = tasks.map(|task| task.unwrap().path().join("children"));
    lists
        .filter_map(|list| fs::read_to_string(list).ok())
        .collect()
}

/// How many descriptors the table of this program has places for.
fn table_size() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    size.unwrap().trim().parse().unwrap()
}

#[test]
fn a_start_without_descriptors_leaves_no_process() {
    const MOST: u64 = 256;
    let rig = Rig::new();
    // Its group and its network are there for the others.
    rig.run(shell("true"));
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // A table that grows has all threads wait that open something.
    assert!(table_size() >= soft.min(8 << 10), "{}", table_size());
    setrlimit(Resource::RLIMIT_NOFILE, MOST, hard).unwrap();
    let (mut started, mut failed) = (0, 0);
    for free in 0..16 {
        let null = || File::open("/dev/null").ok();
        let mut held: Vec<_> = std::iter::from_fn(null).collect();
        held.truncate(held.len() - free);
        let request = Request::new("host", &["/bin/true"]);
        let created = rig.sandboxes().create(request, Stdio::Null);
        drop(held);
        match created {
            Ok(sandbox) => {
                started += 1;
                assert_eq!(sandbox.wait(PATIENCE).unwrap().status, ExitStatus::Code(0));
            }
            Err(_) => failed += 1,
        }
        Rig::wait_until(
            &format!("with {free} descriptors, no child is left"),
            || children().is_empty(),
        );
    }
    assert!(
        started > 0 && failed > 0,
        "{started} started, {failed} failed"
    );
}
