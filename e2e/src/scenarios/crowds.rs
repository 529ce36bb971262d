//! Many at once.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};

use crate::commands::output;
use crate::{Bench, Tally};

/// How many do something at a time.
pub(super) const HANDS: u64 = 8;

/// Mounts and unmounts in parallel.
pub(super) fn many(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mounts = bench.mounts;
    let (lab, truth) = (&bench.lab, bench.truth());
    let hand = |hand: u64| {
        let mut tally = Tally::default();
        let mut made = Vec::new();
        for index in (hand..mounts).step_by(usize::try_from(HANDS)?) {
            let started = Instant::now();
            made.push(lab.mount(&format!("mnt{index}"), &[])?);
            tally.note(started.elapsed(), &Ok(None));
        }
        for mountpoint in &made {
            truth.compare(mountpoint)?;
            let started = Instant::now();
            lab.umount(mountpoint)?;
            tally.note(started.elapsed(), &Ok(None));
        }
        Ok(tally)
    };
    let tally = by_hands(hand)?;
    bench.take(&tally, &[])?;
    bench.harmed(mounts);
    Ok(())
}

/// Does something with several hands, each of which is told which it is.
pub(super) fn by_hands(
    hand: impl Fn(u64) -> anyhow::Result<Tally> + Send + Sync,
) -> anyhow::Result<Tally> {
    let hand = &hand;
    let tallies: Vec<_> = thread::scope(|scope| {
        let hands: Vec<_> = (0..HANDS)
            .map(|index| scope.spawn(move || hand(index)))
            .collect();
        let joined = hands.into_iter().map(|hand| {
            hand.join()
                .unwrap_or_else(|_| Err(anyhow!("a thread that mounts panicked")))
        });
        joined.collect()
    });
    let mut all = Tally::default();
    for tally in tallies {
        all.add(&tally?);
    }
    Ok(all)
}

/// Everybody wants the same place.
pub(super) fn one_place(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mountpoint = bench.lab.make_dir("mnt")?;
    let end = Instant::now() + bench.length;
    let rngs: Vec<_> = (0..4).map(|_| bench.rng.fork()).collect();
    let lab = &bench.lab;
    let tallies = thread::scope(|scope| {
        let contenders: Vec<_> = rngs
            .into_iter()
            .map(|mut rng| {
                let mountpoint = &mountpoint;
                scope.spawn(move || {
                    let mut tally = Tally::default();
                    loop {
                        let started = Instant::now();
                        let mut command = match rng.once_in(2) {
                            true => {
                                let mut mount = lab.mount_command()?;
                                mount.arg(lab.source());
                                mount
                            }
                            false => lab.yolofs(&["umount"])?,
                        };
                        // One of them may fail, such as an umount of what is not mounted; the
                        // state must make sense.
                        output(command.arg(mountpoint))?;
                        tally.note(started.elapsed(), &Ok(None));
                        let there = lab
                            .mounts()?
                            .iter()
                            .filter(|point| *point == mountpoint)
                            .count();
                        ensure!(there <= 1, "{there} mounts lie over each other");
                        if Instant::now() >= end {
                            return Ok(tally);
                        }
                        thread::sleep(Duration::from_millis(rng.below(20)));
                    }
                })
            })
            .collect();
        let joined = contenders.into_iter().map(|contender| {
            contender
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a contender panicked")))
        });
        joined.collect::<Vec<anyhow::Result<Tally>>>()
    });
    for tally in tallies {
        let tally = tally?;
        bench.harmed(tally.right);
        bench.take(&tally, &[])?;
    }
    // Whoever came last: now one mount works as if nothing had been.
    let mut mount = bench.lab.mount_command()?;
    crate::commands::done(mount.arg(bench.lab.source()).arg(&mountpoint))?;
    bench
        .truth()
        .compare(&mountpoint)
        .context("after the crowd")?;
    bench.lab.umount(&mountpoint)
}
