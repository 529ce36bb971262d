//! What a start and an end cost: system calls, those that read and write, and faults of pages. One test: the kernel counts
//! those of the whole program.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;

use rig::calls::Calls;
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

/// Faults of pages of this program, and of its children that have ended.
fn faults() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    [7, 8]
        .map(|at| fields[at].parse::<u64>().unwrap())
        .iter()
        .sum()
}

#[test]
fn a_sandbox_takes_few_calls_and_few_faults() {
    const ROUNDS: u64 = 200;
    const COUNTED: u64 = 50;
    let rig = Rig::new();
    // As a program that has work to do.
    let mut memory = vec![0_u8; 1024 << 12];
    let mut cycle = || {
        memory
            .iter_mut()
            .step_by(1 << 12)
            .for_each(|byte| *byte ^= 1);
        let request = Request::new("host", &["/bin/true"]);
        let sandbox = rig.sandboxes().create(request, Stdio::Null).unwrap();
        sandbox.wait(PATIENCE).unwrap();
    };
    (0..20).for_each(|_| cycle());
    let before = (calls(), faults());
    (0..ROUNDS).for_each(|_| cycle());
    let after = (calls(), faults());
    let [read, written] = [0, 1].map(|at: usize| (after.0[at] - before.0[at]) / ROUNDS);
    // When it began, three files of its group: 4. The others are the program's: the kernel reads it and its loader in
    // five, and it reads its library in three.
    assert!(read <= 13, "{read} calls that read");
    // Its group of memory, and its record; some kernels have no such group.
    assert!(written <= 3, "{written} calls that write");
    // The program's own are most of them. Of a copy there would be one for each page that we write to afterwards.
    let faults = (after.1 - before.1) / ROUNDS;
    println!("{faults} faults of pages of a start");
    assert!(faults <= 200, "{faults} faults of pages");

    let counted = Calls::count_but(Some("sandbox-rooms"));
    (0..COUNTED).for_each(|_| cycle());
    let counts = counted.stop();
    // Some six more are waits of threads for each other, of which a busy machine has more.
    let is_wait = |number: u32| i64::from(number) == nix::libc::SYS_futex;
    let others = counts.iter().filter(|(number, _)| !is_wait(**number));
    let all = others.map(|(_, calls)| calls).sum::<u64>() / COUNTED;
    println!("{all} calls of a start, by number, of {COUNTED}: {counts:?}");
    assert!(
        all <= 114,
        "{all} calls, by number, of {COUNTED}: {counts:?}"
    );
    // One for its network; the others were made in advance. Where the machine is busy, not all sandboxes find some ready.
    let number = u32::try_from(nix::libc::SYS_setns).unwrap();
    let entered = counts.get(&number).copied().unwrap_or(0);
    assert!(entered > COUNTED, "{entered} of {COUNTED}");
}
