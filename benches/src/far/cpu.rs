//! What the parts of a start take of the processors, whatever else the machine does meanwhile.

use std::fs;

use anyhow::Context as _;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// The kernel's unit in `/proc/PID/stat`: `USER_HZ` is 100 on every architecture that we know.
const TICK_MS: f64 = 10.0;

/// Returns the milliseconds of a process and all its threads.
///
/// # Errors
/// If it is gone.
pub(super) fn of_process(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    ticks(&stat)
        .map(|ticks| ticks * TICK_MS)
        .with_context(|| format!("{path} is not as proc(5) says"))
}

/// Returns what `utime` and `stime` say together.
fn ticks(stat: &str) -> Option<f64> {
    // The name of the program may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_ascii_whitespace().skip(11).take(2);
    let ticks: Option<Vec<f64>> = fields.map(|field| field.parse().ok()).collect();
    ticks
        .filter(|ticks| ticks.len() == 2)
        .map(|ticks| ticks.iter().sum())
}

/// Returns the milliseconds of this process, which carries the lines, and of its children that have ended: the
/// programs, and `yolofs mount`.
///
/// # Errors
/// If the kernel does not say.
pub(super) fn of_ours() -> anyhow::Result<[f64; 2]> {
    let of = |who| -> anyhow::Result<f64> {
        let usage = getrusage(who).context("asking for the processor time")?;
        let time = usage.user_time() + usage.system_time();
        Ok(crate::report::count(u64::try_from(time.num_microseconds())?) / 1e3)
    };
    Ok([of(UsageWho::RUSAGE_SELF)?, of(UsageWho::RUSAGE_CHILDREN)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_right_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 12 30 5 6 20 0 1 0 99";
        assert_eq!(ticks(stat), Some(42.0));
        assert_eq!(ticks("7 (a) S 1"), None);
    }
}
