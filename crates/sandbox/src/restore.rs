//! The sandboxes that a former process has left: which go on, and what is ended.
//!
//! What the kernel has counts, not what was written down. Every group of ours is looked at: it belongs to
//! a sandbox that goes on only if its record's process is in it and is the one that was started then. All
//! else is ended and removed.

use std::fs;

use rawio::pidfd::PidFd;

use crate::cgroup::{Group, Hierarchies};
use crate::error::{Result, at};
use crate::output::Stream;
use crate::process;
use crate::record::{Record, Records};
use crate::sandbox::{Controls, Next, Phase, Sandbox};

/// A sandbox that runs.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    record: Record,
    process: PidFd,
    phase: Phase,
}

/// Finds the sandboxes that run, and ends what is left of others.
pub(crate) fn find(hierarchies: &Hierarchies, records: &Records) -> Result<Vec<Found>> {
    let mut written = records.list()?;
    let mut found = Vec::new();
    let dir = &hierarchies.unified;
    for entry in fs::read_dir(dir).map_err(at("reading", dir))? {
        let name = entry.map_err(at("reading", dir))?.file_name();
        let Some(slot) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let group = Group::open(hierarchies, slot)?;
        let of_slot = written.iter().position(|(of, _)| *of == slot);
        let record = of_slot.and_then(|place| written.swap_remove(place).1);
        match record.and_then(|record| running(slot, record, &group)) {
            Some(sandbox) => found.push(sandbox),
            None => {
                log::info!("the sandbox in slot {slot} has ended, or was never told of");
                records.remove(slot);
                group.remove()?;
            }
        }
    }
    for (slot, _) in written {
        records.remove(slot);
    }
    Ok(found)
}

fn running(slot: u32, record: Record, group: &Group) -> Option<Found> {
    let process = process::open(record.pid, record.started)?;
    let is_inside = group.processes().ok()?.contains(&record.pid);
    let phase = match group.is_frozen().ok()? {
        true => Phase::Paused,
        false => Phase::Running,
    };
    is_inside.then_some(Found {
        slot,
        record,
        process,
        phase,
    })
}

impl Found {
    /// Makes a sandbox of it that can be watched. What it wrote and nobody had read is read from now on.
    pub(crate) fn into_sandbox(self, group: Group) -> Sandbox {
        let Self {
            record,
            process,
            phase,
            ..
        } = self;
        let streams = record.pipes.and_then(|[out, err]| {
            let out = Stream::reopen(record.pid, 1, out)?;
            let err = Stream::reopen(record.pid, 2, err)?;
            Some([out, err])
        });
        let controls = Controls {
            group,
            network: None,
            next: match record.ancestry.is_empty() {
                true => Next::Anybody,
                false => Next::Nobody,
            },
        };
        Sandbox::new(record, process, controls, streams, phase)
    }
}
