//! Harm of each kind, a second or so at a time: `scripts/soak.sh` does more, and longer.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod programs;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use e2e::{Base, Bench, Guest, Rng, SCENARIOS, Scale, Scenario};
use parking_lot::Mutex;

/// For how long runs are begun, and of this at least those that chance has chosen.
const ALL: Duration = Duration::from_secs(120);
const CHANCE: Duration = Duration::from_secs(30);

/// When the first of the tests began.
static BEGIN: OnceLock<Instant> = OnceLock::new();

/// Returns what all runs of a test share.
fn base(guests: &[Guest]) -> Base {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test mounts file systems: run it as root"
    );
    programs::build();
    BEGIN.get_or_init(Instant::now);
    Base::new(guests).unwrap()
}

fn run(base: &Base, scenario: &Scenario, seed: u64) {
    let scale = Scale {
        length: Duration::from_secs(1),
        mounts: None,
    };
    let finding = Bench::run(scenario, base, seed, scale).unwrap();
    println!("{}, seed {seed}: {}", scenario.name, finding.tally);
    if let Some(fault) = finding.fault {
        panic!(
            "{fault:#}\nagain: scripts/soak.sh --only {} --length 1 --seed {seed}",
            scenario.name
        );
    }
}

/// One test at a time: each run looks for threads of this process that hang.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs some scenarios, with the same seeds every time.
fn run_all(names: &[&str], guests: &[Guest]) {
    let alone = ALONE.lock();
    let base = base(guests);
    for (seed, name) in (100..).zip(names) {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == *name);
        run(&base, scenario.unwrap(), seed);
    }
    drop(alone);
}

#[test]
fn privileged_faults_of_daemons_hurt_nobody_else() {
    run_all(
        &[
            "undisturbed",
            "daemon-killed",
            "image-damaged",
            "memory-short",
        ],
        &[],
    );
}

#[test]
fn privileged_faults_of_the_source_are_told_as_they_are() {
    run_all(&["source-fails", "source-slow", "source-changes"], &[]);
}

#[test]
fn privileged_faults_of_the_node_are_felt_by_nobody() {
    run_all(&["anything"], &[]);
}

#[test]
fn privileged_a_container_reads_on_under_harm() {
    run_all(&["upgraded", "worker-killed"], &[Guest::Container]);
}

#[test]
fn privileged_two_minutes_of_chance_harm_nobody() {
    let alone = ALONE.lock();
    let base = base(&[]);
    // The same runs in the same order every time; a slow machine comes less far.
    let mut rng = Rng::new(2);
    let plain = SCENARIOS.iter().filter(|scenario| !scenario.asked);
    let mut scenarios: Vec<_> = plain.collect();
    let end = (*BEGIN.get_or_init(Instant::now) + ALL).max(Instant::now() + CHANCE);
    while Instant::now() < end {
        // Each once before any of them twice.
        for last in (1..scenarios.len()).rev() {
            scenarios.swap(last, rng.index(last + 1));
        }
        for scenario in &scenarios {
            if Instant::now() < end {
                run(&base, scenario, rng.number());
            }
        }
    }
    drop(alone);
}
