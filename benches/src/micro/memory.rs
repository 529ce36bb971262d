//! The daemon's own memory, boot after boot.

use std::fs;

use anyhow::Context as _;

use super::Series;
use crate::aims::Aim;
use crate::boots::{Lab, Subject, image_of};
use crate::container::{Container, WORKLOAD};
use crate::programs::Serving;

/// Memory is looked at once in so many boots.
const STRIDE: u32 = 10;
/// What the first boots allocate and keep does not count as growth.
const SETTLED_AFTER: usize = 1;
/// What a flat line may rise: an arena or two of the allocator.
const GROWTH_MAX_MIB: f64 = 2.0;

/// Boots so many containers on one mount, and looks at the daemon's private memory.
///
/// # Errors
/// If a boot fails.
pub fn over_boots(lab: &Lab, boots: u32) -> anyhow::Result<(Series, Vec<Aim>)> {
    let (source, image) = (lab.source(Subject::Container), image_of(Subject::Container));
    let mount =
        lab.programs()
            .mount(&source, &lab.home().join("mount"), image, Serving::Injected)?;
    let pid = mount.status()?.pid;
    let mut series = Series::new("private memory of the daemon", "MiB");
    for boot in 0..=boots {
        if boot % STRIDE == 0 {
            series.values.push(private_mib(pid)?);
        }
        let container = Container::prepare(mount.path(), &lab.home().join("container"))?;
        container.boot(&WORKLOAD)?;
    }
    let highest = series.values.iter().copied().reduce(f64::max);
    let settled = series.values.get(SETTLED_AFTER).copied();
    let growth = series
        .values
        .last()
        .zip(settled)
        .map(|(last, settled)| last - settled);
    let aims = vec![
        Aim::at_most(
            40.0,
            format!("MiB of the daemon's own memory, at most, in {boots} boots"),
            highest,
        ),
        Aim::at_most(
            GROWTH_MAX_MIB,
            format!("MiB that it grew over {boots} boots"),
            growth,
        ),
    ];
    Ok((series, aims))
}

/// Returns what a process has of memory that it shares with nobody.
fn private_mib(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(private_kib(&text) / 1024.0)
}

fn private_kib(rollup: &str) -> f64 {
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    private
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_what_is_private() {
        let rollup = "Rss: 900 kB\nShared_Clean: 5 kB\nPrivate_Clean: 20 kB\nPrivate_Dirty: 3 kB\n";
        assert_eq!(private_kib(rollup), 23.0);
    }

    #[test]
    fn looks_at_a_living_process() {
        assert!(private_mib(std::process::id()).unwrap() > 0.0);
    }
}
