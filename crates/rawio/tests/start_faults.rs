//! A start that shares memory copies none. One test: a copy of this program that another one makes would have its faults here.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rawio::child::{Birth, OnItsWay, Step, Steps};

#[test]
fn a_start_copies_no_memory() {
    const PAGES: usize = 4096;
    const ROUNDS: i64 = 8;
    let mut memory = vec![0_u8; PAGES * 4096];
    let arguments = [c"true".to_owned()];
    let steps = [Step::Execute(c"/bin/true", &arguments, &[])];
    let faults = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        usage.minor_page_faults()
    };
    let mut write_to_all = || memory.iter_mut().step_by(4096).for_each(|byte| *byte ^= 1);
    write_to_all();
    let before = faults();
    for _ in 0..ROUNDS {
        let way = OnItsWay::default();
        let started = Steps(&steps).start_sharing(Birth::default(), &way);
        let pid = Pid::from_raw(started.unwrap().cast_signed());
        waitpid(pid, None).unwrap();
        write_to_all();
    }
    let each = (faults() - before) / ROUNDS;
    // Of a copy, one for each page that is written to again.
    assert!(each < 100, "{each} faults of pages");
}
