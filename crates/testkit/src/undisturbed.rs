//! Tests that count on what the kernel remembers, where somebody may have it forget.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Runs a test that counts on what the kernel remembers. A program that drops the kernel's caches
/// in the middle (`/proc/sys/vm/drop_caches`) spoils it, and so does DAMON, where it pages out what
/// nobody maps: then it is run again.
pub fn undisturbed(test: impl Fn()) {
    // What DAMON had paged out when the last run failed; asking it takes half a second.
    let mut before_it = None;
    for _ in 0..20 {
        let before = cache_drops();
        let Err(panic) = catch_unwind(AssertUnwindSafe(&test)) else {
            return;
        };
        let paged_out = paged_out_by_damon();
        if cache_drops() == before && paged_out == before_it {
            resume_unwind(panic);
        }
        before_it = paged_out;
    }
    panic!("somebody drops the kernel's caches all the time");
}

/// Bytes that DAMON has paged out; `None` where it does not.
fn paged_out_by_damon() -> Option<u64> {
    let daemons = Path::new("/sys/kernel/mm/damon/admin/kdamonds");
    let entries = std::fs::read_dir(daemons).ok()?;
    let daemons = entries.map(|entry| entry.unwrap().path());
    let running = daemons.filter(|dir| {
        let state = std::fs::read_to_string(dir.join("state"));
        state.is_ok_and(|state| state.trim() == "on")
    });
    running
        .filter_map(|dir| {
            std::fs::write(dir.join("state"), "update_schemes_stats").ok()?;
            let scheme = dir.join("contexts/0/schemes/0");
            let action = std::fs::read_to_string(scheme.join("action")).ok()?;
            let bytes = std::fs::read_to_string(scheme.join("stats/sz_applied")).ok()?;
            (action.trim() == "pageout").then(|| bytes.trim().parse::<u64>().unwrap())
        })
        .reduce(|a, b| a + b)
}

/// How often anybody dropped caches since the machine started.
fn cache_drops() -> u64 {
    let table = std::fs::read_to_string("/proc/vmstat").unwrap();
    let lines = table.lines().filter(|line| line.starts_with("drop_"));
    let counts = lines.filter_map(|line| line.split(' ').nth(1));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}
