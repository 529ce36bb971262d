//! Programs that speak as libtest does, and hang, crash, fail once or fail always.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

/// Far more than a script takes, on any machine.
const LONG: Duration = Duration::from_secs(120);

/// A script: `run NAME` is what it does as the test NAME.
const LIBTEST: &str = r#"#!/bin/bash
if [ "$1" = --list ]; then printf '%s: test\n' $TESTS; exit; fi
[ "$1" = --exact ] && TESTS=$2
set -- $TESTS
echo "running $# tests"
failed=()
for name; do
    if run "$name"; then echo "test $name ... ok"
    else echo "test $name ... FAILED"; failed+=("$name"); fi
done
passed=$(($# - ${#failed[@]}))
if [ ${#failed[@]} = 0 ]; then echo "test result: ok. $passed passed; 0 failed; 0 ignored"; exit; fi
echo; echo failures:; printf '    %s\n' "${failed[@]}"; echo
echo "test result: FAILED. $passed passed; ${#failed[@]} failed; 0 ignored"
exit 101
"#;

struct Rig {
    dir: TempDir,
    tally: Tally,
    shown: Vec<u8>,
    limits: Limits,
}

impl Rig {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            tally: Tally::default(),
            shown: Vec::new(),
            limits: Limits {
                stall: LONG,
                end: Instant::now() + LONG,
                interrupted: Arc::new(AtomicBool::new(false)),
            },
        }
    }

    /// Runs a script of its own.
    fn script(&mut self, text: &str) {
        let file = self.dir.path().join("program");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            name: "a program".to_owned(),
            file: "/bin/bash".into(), // not the script: another thread's child may have it open for writing
            arguments: vec![file.to_str().unwrap().to_owned()],
            directory: self.dir.path().to_owned(),
            environment: Vec::new(),
        };
        let mut sink = Sink {
            logs: &self.dir.path().join("logs"),
            shown: &mut self.shown,
        };
        let first = run(&program, &[], &self.limits, sink.logs, sink.shown).unwrap();
        self.tally
            .add(&program, &first, &self.limits, &mut sink)
            .unwrap();
    }

    /// Runs what speaks as libtest does.
    fn libtest(&mut self, tests: &str, run: &str) {
        self.script(&LIBTEST.replacen(
            '\n',
            &format!("\nTESTS='{tests}'\nrun() {{ {run}\n}}\n"),
            1,
        ));
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// How the run ends.
    fn last_line(&self) -> String {
        let mut shown = Vec::new();
        self.tally.report(&mut shown).unwrap();
        let shown = String::from_utf8(shown).unwrap();
        shown.lines().last().unwrap().to_owned()
    }
}

fn tests(faults: &[Fault]) -> Vec<&str> {
    let names = faults.iter().map(|fault| fault.test.as_deref());
    names.map(|name| name.unwrap_or("all")).collect()
}

#[test]
fn counts_what_passes() {
    let mut rig = Rig::new();
    rig.libtest("a b c", "true");
    assert!(rig.tally.is_good());
    assert_eq!(rig.last_line(), "3 passed, 0 failed, 0 skipped");
}

#[test]
fn one_that_fails_twice_fails_the_run() {
    let mut rig = Rig::new();
    rig.libtest("a b c", "[ $1 != b ]");
    assert!(!rig.tally.is_good());
    assert_eq!(tests(&rig.tally.failed), ["b"]);
    assert_eq!(rig.last_line(), "2 passed, 1 failed, 0 skipped");
}

#[test]
fn one_that_passes_alone_is_called_flaky() {
    let mut rig = Rig::new();
    rig.libtest("a b", "[ $1 = a ] || [ -e mark ] || ! touch mark");
    assert!(rig.tally.is_good());
    assert_eq!(tests(&rig.tally.flaky), ["b"]);
    assert_eq!(rig.last_line(), "2 passed, 0 failed, 0 skipped");
    assert_eq!(rig.tally.json()["flaky"][0]["test"], "b");
}

#[test]
fn more_than_a_few_flaky_ones_fail_the_run() {
    let mut rig = Rig::new();
    let run = "[ -e $1 ] || ! touch $1";
    rig.libtest("a b c", run);
    assert!(rig.tally.is_good());
    rig.libtest("d", run);
    assert!(!rig.tally.is_good());
    assert_eq!(rig.last_line(), "4 passed, 4 failed, 0 skipped");
}

#[test]
fn one_that_hangs_is_ended_with_its_daemons_and_described() {
    let mut rig = Rig::new();
    rig.limits.stall = Duration::from_secs(5);
    rig.libtest(
        "a hangs c",
        "[ $1 != hangs ] || { setsid -f bash -c 'echo $$ >>daemons; sleep 1000'; sleep 1000; }",
    );
    assert_eq!(tests(&rig.tally.failed), ["hangs"]);
    // The last was never begun, and passes alone. Nobody is to blame for it.
    assert_eq!(tests(&rig.tally.flaky), [""; 0]);
    assert_eq!(rig.last_line(), "2 passed, 1 failed, 0 skipped");
    let shown = rig.shown();
    assert!(shown.contains("(sleep) S, in "), "{shown}");
    assert!(shown.contains("not finished: hangs"), "{shown}");
    let daemons = fs::read_to_string(rig.dir.path().join("daemons")).unwrap();
    assert_eq!(daemons.lines().count(), 2);
    for daemon in daemons.lines() {
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
}

#[test]
fn one_that_crashes_is_found() {
    let mut rig = Rig::new();
    rig.libtest("a crashes c", "[ $1 != crashes ] || kill -ABRT $$");
    assert_eq!(tests(&rig.tally.failed), ["crashes"]);
    assert!(rig.tally.failed[0].why.contains("signal: 6"));
    assert_eq!(rig.last_line(), "2 passed, 1 failed, 0 skipped");
}

#[test]
fn a_crash_that_none_causes_alone_is_flaky() {
    let mut rig = Rig::new();
    rig.libtest("a b c", "[ -e mark ] || { touch mark; kill -ABRT $$; }");
    assert_eq!(tests(&rig.tally.flaky), ["all"]);
    assert_eq!(rig.last_line(), "3 passed, 0 failed, 0 skipped");
}

#[test]
fn an_end_without_a_summary_is_no_success() {
    let mut rig = Rig::new();
    rig.libtest("a leaves c", "[ $1 != leaves ] || exit 0");
    assert_eq!(tests(&rig.tally.failed), ["leaves"]);
    assert_eq!(rig.last_line(), "2 passed, 1 failed, 0 skipped");
}

#[test]
fn a_failure_that_names_no_test_fails_the_run() {
    let mut rig = Rig::new();
    rig.script(
        "echo running 1 test; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit 3",
    );
    assert_eq!(tests(&rig.tally.failed), ["all"]);
}

#[test]
fn a_program_with_a_main_of_its_own_is_one_test() {
    let mut rig = Rig::new();
    rig.script("echo 'test one ...'; echo 'test result: ok'");
    assert_eq!(rig.last_line(), "1 passed, 0 failed, 0 skipped");
    rig.script("[ -e mark ] || ! touch mark");
    assert_eq!(tests(&rig.tally.flaky), ["all"]);
    rig.script("false");
    assert_eq!(tests(&rig.tally.failed), ["all"]);
    assert_eq!(rig.last_line(), "2 passed, 1 failed, 0 skipped");
}

#[test]
fn what_is_left_when_the_time_is_over_has_failed() {
    let mut rig = Rig::new();
    rig.limits.end = Instant::now() + Duration::from_millis(300);
    rig.libtest("hangs", "sleep 1000");
    assert_eq!(tests(&rig.tally.failed), ["all"]);
    assert!(
        rig.tally.failed[0]
            .why
            .contains("the time of the whole run")
    );
}

#[test]
fn an_interrupted_run_ends() {
    let mut rig = Rig::new();
    rig.limits.interrupted = Arc::new(AtomicBool::new(true));
    rig.script("echo running 1 test; sleep 1000");
    assert_eq!(rig.tally.failed[0].why, "interrupted");
}

#[test]
fn a_daemon_that_stays_does_not_keep_the_run() {
    let mut rig = Rig::new();
    rig.script("echo 'test result: ok'; sleep 3600 & echo $! >daemon");
    let daemon = fs::read_to_string(rig.dir.path().join("daemon")).unwrap();
    let daemon = nix::unistd::Pid::from_raw(daemon.trim().parse().unwrap());
    nix::sys::signal::kill(daemon, nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(rig.last_line(), "1 passed, 0 failed, 0 skipped");
}

#[test]
fn understands_the_real_libtest() {
    let mut rig = Rig::new();
    let name = "workspace::tests::refuses_what_is_not_metadata";
    let program = Program {
        name: "this one".to_owned(),
        file: std::env::current_exe().unwrap(),
        arguments: ["--exact", name].map(str::to_owned).to_vec(),
        directory: rig.dir.path().to_owned(),
        environment: Vec::new(),
    };
    let mut sink = Sink {
        logs: &rig.dir.path().join("logs"),
        shown: &mut rig.shown,
    };
    let ran = run(&program, &[], &rig.limits, sink.logs, sink.shown).unwrap();
    assert_eq!(ran.transcript.done, BTreeSet::from([name.to_owned()]));
    let nothing = run(&program, &["--list"], &rig.limits, sink.logs, sink.shown).unwrap();
    assert_eq!(nothing.transcript.counts, None);
    let unfinished = unfinished_tests(&program, &nothing, &rig.limits, &mut sink).unwrap();
    assert_eq!(unfinished, BTreeSet::from([name.to_owned()]));
    let first = run(&program, &[], &rig.limits, sink.logs, sink.shown).unwrap();
    rig.tally
        .add(&program, &first, &rig.limits, &mut sink)
        .unwrap();
    assert_eq!(rig.last_line(), "1 passed, 0 failed, 0 skipped");
}
