//! Processes that a package in a Zygote has started, and told nobody: they end with it, and none stays as a zombie.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;

use rig::python::{script, store, zygote};
use rig::{PATIENCE, Rig};
use sandbox::{ExitStatus, Phase};

/// A package whose Zygote starts a process of its own beside the first one that it is asked for, in the same control group. In
/// version 1 that one stays in the group of the Zygote.
const STRAY: &str = r#"
import os, sys, time
zygote = sys.modules["__main__"]
fork_to, strays = zygote.fork_to, []
def with_stray(thread_number, group, namespaces):
    asked_for = fork_to(thread_number, group, namespaces)
    if asked_for[0] and not strays:
        number, child = fork_to(thread_number, group, 0)
        if number == 0:
            zygote.libc.prctl(15, b"stray", 0, 0, 0)
            while True:
                time.sleep(1000)
        strays.append(child)
    return asked_for
zygote.fork_to = with_stray
"#;

/// A package whose Zygote starts three more that end at once, for each process that it is asked for, and one that it never reaps.
const SWARM: &str = r#"
import os, sys
zygote = sys.modules["__main__"]
fork_to = zygote.fork_to
def with_swarm(thread_number, group, namespaces):
    asked_for = fork_to(thread_number, group, namespaces)
    if asked_for[0]:
        for _ in range(3):
            number, child = fork_to(thread_number, group, 0)
            if number == 0:
                os._exit(0)
            os.close(child)
        if os.fork() == 0:
            os._exit(0)
    return asked_for
zygote.fork_to = with_swarm
"#;

/// A child of this program, from `/proc/PID/stat`.
struct Child {
    name: String,
    is_zombie: bool,
}

impl Child {
    fn is_stray(&self) -> bool {
        self.name == "stray"
    }
}

/// Children of this program, zombies too.
fn children() -> Vec<Child> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let list = fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default();
        for pid in list.split_whitespace() {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some((name, rest)) = stat.rsplit_once(") ") {
                found.push(Child {
                    name: name.split_once('(').unwrap().1.to_owned(),
                    is_zombie: rest.starts_with('Z'),
                });
            }
        }
    }
    found
}

fn zombies() -> usize {
    children().iter().filter(|child| child.is_zombie).count()
}

fn strays() -> usize {
    children().iter().filter(|child| child.is_stray()).count()
}

/// One test after the other: both look at all children of this program.
#[test]
fn what_a_package_has_started_is_ended_and_reaped() {
    one_in_a_sandboxs_group_ends_with_its_zygote();
    those_that_end_are_reaped();
}

fn one_in_a_sandboxs_group_ends_with_its_zygote() {
    let rig = Rig::new();
    let store = store(&[("stray==1", STRAY)]);
    let zygote = zygote(&rig, &["stray==1"], store.path());
    let request = script(
        "import time; time.sleep(1000)",
        &["stray==1"],
        Some(store.path()),
    );
    let sandbox = rig.start(request);
    assert_eq!(sandbox.ancestry().len(), 1);
    Rig::wait_until("the stray has its name", || strays() == 1);

    rig.sandboxes().evict(&zygote.id).unwrap();
    let in_version_1 = fs::exists("/sys/fs/cgroup/memory/cgroup.procs").unwrap();
    if in_version_1 {
        assert!(
            !children()
                .iter()
                .any(|child| child.is_stray() && !child.is_zombie)
        );
        Rig::wait_until("it is reaped", || strays() == 0);
    }
    assert_eq!(sandbox.phase(), Phase::Running);
    // With version 2 alone it is in no group but the sandbox's.
    sandbox.kill().unwrap();
    assert_eq!(
        sandbox.wait(PATIENCE).unwrap().status,
        ExitStatus::Signal(9)
    );
    Rig::wait_until("the stray has ended, and is reaped", || strays() == 0);
    let groups = || rig.groups().len();
    Rig::wait_until("no control group of the Zygote is left", || groups() == 0);
}

fn those_that_end_are_reaped() {
    let rig = Rig::new();
    let store = store(&[("swarm==1", SWARM)]);
    let zygote = zygote(&rig, &["swarm==1"], store.path());
    for _ in 0..40 {
        let (exit, said) = rig.run(script("pass", &["swarm==1"], Some(store.path())));
        assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    }
    assert_eq!(rig.sandboxes().zygotes()[0].forks, 40);
    // It has made 120 by now, and still runs.
    assert!(zombies() <= 60, "{} zombies", zombies());
    rig.sandboxes().evict(&zygote.id).unwrap();
    Rig::wait_until("no zombie is left", || zombies() == 0);
}
