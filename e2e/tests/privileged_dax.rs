//! Real DAX: a virtual machine with an NVDIMM and with virtio-pmem, whose power is cut.

#![cfg(feature = "privileged")]

mod programs;

use std::time::Duration;

use e2e::{Base, Bench, SCENARIOS, Scale};

#[test]
fn privileged_what_was_kept_on_nvm_is_whole_after_a_power_cut() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test mounts file systems: run it as root"
    );
    programs::build();
    let base = Base::new(&[]).unwrap();
    let scenario = SCENARIOS.iter().find(|known| known.name == "power-cuts");
    // One cut, and a look at what it left.
    let scale = Scale {
        length: Duration::ZERO,
        mounts: None,
    };
    let seed = 7;
    let finding = Bench::run(scenario.unwrap(), &base, seed, scale).unwrap();
    println!("{}; {}", finding.tally, finding.figures.join(", "));
    if let Some(fault) = finding.fault {
        panic!("{fault:#}\nagain: scripts/soak.sh --only power-cuts --length 1 --seed {seed}");
    }
}
