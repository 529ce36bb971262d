//! Real DAX: a virtual machine with an NVDIMM and with virtio-pmem, whose power is cut, and whose
//! memory fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod programs;

use std::time::Duration;

use e2e::{Base, Bench, SCENARIOS, Scale};
use parking_lot::Mutex;

/// One at a time: each run looks for threads of this process that hang.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs a scenario once, with the same seed every time.
fn run(name: &str) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test mounts file systems: run it as root"
    );
    let alone = ALONE.lock();
    programs::build();
    let base = Base::new(&[]).unwrap();
    let scenario = SCENARIOS.iter().find(|known| known.name == name);
    let scale = Scale {
        length: Duration::ZERO,
        mounts: None,
    };
    let seed = 7;
    let finding = Bench::run(scenario.unwrap(), &base, seed, scale).unwrap();
    println!("{}; {}", finding.tally, finding.figures.join(", "));
    drop(alone);
    if let Some(fault) = finding.fault {
        panic!("{fault:#}\nagain: scripts/soak.sh --only {name} --length 1 --seed {seed}");
    }
}

#[test]
fn privileged_what_was_kept_on_nvm_is_whole_after_a_power_cut() {
    // One cut, and a look at what it left.
    run("power-cuts");
}

#[test]
fn privileged_files_are_passed_through_to_dax_and_its_loss_is_told_as_it_is() {
    run("nvm-lost");
}
