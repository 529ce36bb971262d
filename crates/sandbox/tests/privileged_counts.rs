//! What a start and an end cost, in calls that read and write. One test: the kernel counts those of the whole program.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;

use rig::{PATIENCE, Rig};
use sandbox::{Request, Stdio};

/// Calls that read and that write, of this program and of its children that have ended.
fn calls() -> [u64; 2] {
    let table = fs::read_to_string("/proc/self/io").unwrap();
    ["syscr: ", "syscw: "].map(|name| {
        let line = table.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    })
}

#[test]
fn a_sandbox_takes_few_calls_that_read_and_write() {
    const ROUNDS: u64 = 200;
    let rig = Rig::new();
    let cycle = || {
        let request = Request::new("host", &["/bin/true"]);
        let sandbox = rig.sandboxes().create(request, Stdio::Null).unwrap();
        sandbox.wait(PATIENCE).unwrap();
    };
    (0..20).for_each(|_| cycle());
    let before = calls();
    (0..ROUNDS).for_each(|_| cycle());
    let after = calls();
    let [read, written] = [0, 1].map(|at: usize| (after[at] - before[at]) / ROUNDS);
    // When it began, that it has arrived, three files of its group: 5. The others are the program's: the kernel reads it
    // and its loader in five, and it reads its library in three.
    assert!(read <= 14, "{read} calls that read");
    // Its group of memory, and its record; some kernels have no such group.
    assert!(written <= 3, "{written} calls that write");
}
