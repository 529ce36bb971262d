//! Many mounts of one node.

use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::crowds::{HANDS, by_hands};
use crate::commands::done;
use crate::lab::Lab;
use crate::names::IMAGE;
use crate::node::{self, Reads, Service, replace};
use crate::processes::{Role, private_memory};
use crate::{Bench, Tally};

/// The most that one mount may cost in memory of the node's processes.
const MOST_BYTES: u64 = 3 << 20;

/// One in so many mounts is read from the first to the last byte.
const COMPARED: usize = 16;

/// Has a node make many mounts, kills it, and has it unmount them.
pub(super) fn many(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mounts = bench.mounts;
    let mut service = Service::start(&bench.lab)?;
    let empty = memory(&bench.lab)?;
    let lab = &bench.lab;
    let started = Instant::now();
    let tally = by_hands(|hand| {
        let mut tally = Tally::default();
        for index in (hand..mounts).step_by(usize::try_from(HANDS)?) {
            let started = Instant::now();
            node::mount(lab, &place(index), IMAGE, Reads::FromWorker)?;
            tally.note(started.elapsed(), &Ok(None));
        }
        Ok(tally)
    })?;
    let made = started.elapsed();
    bench.take(&tally, &[])?;
    bench.measured(format!("{mounts} mounts made in {made:.1?}"));
    compare_some(bench)?;
    measure(bench, empty, "")?;

    replace(&bench.lab, Role::Node)?;
    let started = Instant::now();
    crate::commands::until("the node to answer with all its mounts", || {
        Ok(listed(&bench.lab).is_ok_and(|listed| listed == mounts))
    })?;
    bench.measured(format!(
        "another node answers with all of them after {:.1?}",
        started.elapsed()
    ));
    compare_some(bench)?;
    measure(bench, empty, " after it was killed")?;
    bench.harmed(1);

    let started = Instant::now();
    service.stop(&bench.lab)?;
    bench.measured(format!("all unmounted in {:.1?}", started.elapsed()));
    Ok(())
}

fn place(index: u64) -> String {
    format!("mnt{index}")
}

fn compare_some(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    for index in (0..bench.mounts).step_by(COMPARED) {
        let started = Instant::now();
        bench
            .truth()
            .compare(&bench.lab.path(&place(index)))
            .with_context(|| format!("mount {index} of many"))?;
        tally.note(started.elapsed(), &Ok(None));
    }
    bench.take(&tally, &[])
}

/// Looks at what all mounts together cost.
fn measure(bench: &mut Bench<'_>, empty: u64, when: &str) -> anyhow::Result<()> {
    let each = memory(&bench.lab)?.saturating_sub(empty) / bench.mounts;
    let asked = [&["status"][..], &["node", "status"], &["node", "mounts"]];
    let [status, node, mounts] = asked.map(|args| {
        let started = Instant::now();
        done(&mut bench.lab.yolofs(args)?)?;
        anyhow::Ok(started.elapsed())
    });
    bench.measured(format!(
        "{} KiB of private memory each{when}; `status` in {:.0?}, `node status` in {:.0?}, \
         `node mounts` in {:.0?}",
        each >> 10,
        status?,
        node?,
        mounts?
    ));
    ensure!(each <= MOST_BYTES, "a mount takes {each} bytes of memory");
    Ok(())
}

/// The memory that the processes of the node have for themselves, in bytes.
fn memory(lab: &Lab) -> anyhow::Result<u64> {
    let processes = lab.all_processes();
    ensure!(!processes.is_empty(), "the node is gone");
    let each = processes
        .iter()
        .filter_map(|process| private_memory(process.pid));
    Ok(each.sum())
}

/// How many mounts the node lists.
fn listed(lab: &Lab) -> anyhow::Result<u64> {
    let json = done(&mut lab.yolofs(&["node", "mounts", "--json"])?)?;
    let mounts: serde_json::Value = serde_json::from_str(&json)?;
    let mounts = mounts.as_array().context("the node lists no mounts")?;
    Ok(u64::try_from(mounts.len())?)
}
