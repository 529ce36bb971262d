//! Scripts that meet each other, or find out that they cannot.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::run::End;
use std::time::Instant;

use super::*;

/// Far more than a script takes, on any machine.
const LONG: Duration = Duration::from_secs(120);

/// Scripts with names, in a directory of their own.
struct Rig {
    dir: tempfile::TempDir,
    limits: Limits,
}

impl Rig {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            limits: Limits {
                stall: LONG,
                end: Instant::now() + LONG,
                interrupted: Arc::new(AtomicBool::new(false)),
            },
        }
    }

    fn program(&self, name: &str, script: &str) -> Program {
        Program {
            name: name.to_owned(),
            file: "/bin/bash".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            directory: self.dir.path().to_owned(),
            environment: Vec::new(),
        }
    }

    fn run(&self, programs: &[Program]) -> (Results, String) {
        let mut shown = Vec::new();
        let logs = self.dir.path().join("logs");
        let results = run_each(programs, &self.limits, &logs, &mut shown).unwrap();
        (results, String::from_utf8(shown).unwrap())
    }
}

#[test]
fn three_lanes_run_beside_each_other() {
    let rig = Rig::new();
    let meet = |own: &str| {
        format!(
            "nice >{own}.nice; touch {own}; until [ -e a -a -e b -a -e c ]; do sleep 0.01; done"
        )
    };
    let (results, shown) = rig.run(&[
        rig.program("cli test privileged_a", &meet("a")),
        rig.program("cli lib cli", &meet("b")),
        rig.program("sandbox test privileged_c", &meet("c")),
    ]);
    assert!(results.values().all(Ran::succeeded) && results.len() == 3);
    // Each lane's output is whole, in whatever order they end.
    for title in [
        "1 of 3: cli test privileged_a",
        "2 of 3: cli lib cli",
        "3 of 3: sandbox test privileged_c",
    ] {
        assert!(shown.contains(&format!("==> {title}\n")), "{shown}");
    }
    let niceness = |name: &str| -> i32 {
        let file = rig.dir.path().join(format!("{name}.nice"));
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    };
    assert_eq!(niceness("b"), 19.min(niceness("a") + 5));
    assert_eq!(niceness("c"), niceness("a"));
}

#[test]
fn two_that_count_what_mounts_do_never_run_together() {
    let rig = Rig::new();
    let alone = "mkdir alone && sleep 0.1 && rmdir alone";
    let programs = [("cli", "a"), ("yolofs", "b"), ("cli", "c")].map(|(package, name)| {
        let name = format!("{package} test privileged_{name}");
        rig.program(&name, alone)
    });
    let (results, _) = rig.run(&programs);
    assert!(results.values().all(Ran::succeeded) && results.len() == 3);
}

#[test]
fn those_that_run_apart_exist_and_do() {
    let rig = Rig::new();
    let tests = crate::workspace::root().unwrap().join("crates/cli/tests");
    for name in APART {
        let file = name.strip_prefix("cli test ").unwrap();
        assert!(tests.join(file).with_extension("rs").exists(), "{name}");
        assert!(!is_first_lane(&rig.program(name, "true")), "{name}");
    }
    assert!(is_first_lane(
        &rig.program("cli test privileged_nic", "true")
    ));
}

#[test]
fn after_an_interruption_nothing_begins() {
    let rig = Rig::new();
    rig.limits
        .interrupted
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let (results, _) = rig.run(&[
        rig.program("a test privileged_a", "exit 1"),
        rig.program("b lib b", "exit 1"),
    ]);
    assert!(results.is_empty());
    assert_eq!(rig.limits.reached(), Some(End::Interrupted));
}
