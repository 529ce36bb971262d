//! The sandboxes of a former daemon: which keep running, and which are ended.
//!
//! The state in the kernel decides, not the records. Every group of ours is examined: it belongs to
//! a running sandbox only if its record's process is in it and has the recorded start time. All
//! others are ended and removed.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use rawio::pidfd::PidFd;

use crate::cgroup::{Group, Hierarchies};
use crate::error::{Result, at};
use crate::network::Networks;
use crate::output::Stream;
use crate::process;
use crate::record::{Record, Records};
use crate::sandbox::{Controls, Next, Phase, Sandbox};

/// A sandbox that runs.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    /// Where its control group of version 2 is.
    pub(crate) dir: PathBuf,
    record: Record,
    process: PidFd,
    phase: Phase,
}

/// What there is of a former program.
#[derive(Debug, Default)]
pub(crate) struct Former {
    pub(crate) running: Vec<Found>,
    /// Slots of those that have ended and whose groups could not be removed.
    pub(crate) stuck: Vec<u32>,
}

impl Former {
    /// Returns the slots that are not free.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let running = self.running.iter().map(|found| found.slot);
        running.chain(self.stuck.iter().copied()).collect()
    }
}

/// Finds the running sandboxes, and removes the rest of others. What cannot be removed is left for the next program: the
/// sandboxes that run must not wait for that.
pub(crate) fn find(hierarchies: &Hierarchies, records: &Records) -> Result<Former> {
    let mut written = records.list()?;
    let mut found = Former::default();
    find_in(
        &hierarchies.unified,
        hierarchies,
        &mut written,
        records,
        &mut found,
    )?;
    for name in names_in(&hierarchies.unified)? {
        // A directory of a Zygote's.
        if name.starts_with('z') {
            let dir = hierarchies.unified.join(&name);
            find_in(&dir, hierarchies, &mut written, records, &mut found)?;
            // As long as a sandbox is in it, it stays. The next program finds it again.
            let _in_use = fs::remove_dir(dir);
        }
    }
    for (slot, _) in written {
        records.remove(slot);
    }
    Ok(found)
}

/// Returns the names of the groups in a directory.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(at("reading", dir))? {
        let entry = entry.map_err(at("reading", dir))?;
        let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.extend(entry.file_name().into_string().ok().filter(|_| is_group));
    }
    Ok(names)
}

fn find_in(
    dir: &Path,
    hierarchies: &Hierarchies,
    written: &mut Vec<(u32, Option<Record>)>,
    records: &Records,
    found: &mut Former,
) -> Result<()> {
    for name in names_in(dir)? {
        let Ok(slot) = name.parse() else { continue };
        let group = Group::open_in(hierarchies, dir, slot)?;
        let of_slot = written.iter().position(|(of, _)| *of == slot);
        let record = of_slot.and_then(|place| written.swap_remove(place).1);
        match record.and_then(|record| running(dir, slot, record, &group)) {
            Some(sandbox) => found.running.push(sandbox),
            None => {
                log::info!("the sandbox in slot {slot} has ended, or was never told of");
                records.remove(slot);
                if let Err(error) = group.remove() {
                    log::error!("the control group {slot} stays behind: {error}");
                    found.stuck.push(slot);
                }
            }
        }
    }
    Ok(())
}

fn running(dir: &Path, slot: u32, record: Record, group: &Group) -> Option<Found> {
    let process = process::open(record.pid, record.started)?;
    let is_inside = group.processes().ok()?.contains(&record.pid);
    let phase = match group.is_frozen().ok()? {
        true => Phase::Paused,
        false => Phase::Running,
    };
    is_inside.then(|| Found {
        slot,
        dir: dir.to_owned(),
        record,
        process,
        phase,
    })
}

impl Found {
    /// The address that it has on a bridge.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.record.address
    }

    /// Makes a sandbox of it that can be watched. Output that was not read yet is read from now on.
    pub(crate) fn into_sandbox(self, group: Group, networks: &Networks) -> Sandbox {
        let Self {
            record,
            process,
            phase,
            ..
        } = self;
        let streams = record.pipes.map(|pipes| {
            // A program may have closed one of its own and left it to others that it has started.
            let mut processes = vec![record.pid];
            processes.extend(group.processes().unwrap_or_default());
            pipes.map(|inode| Stream::find(&processes, inode))
        });
        let controls = Controls {
            group,
            network: record.address.and_then(|address| networks.adopt(address)),
            next: match record.ancestry.is_empty() {
                true => Next::Anybody,
                false => Next::Nobody,
            },
            mounts: None,
        };
        Sandbox::new(record, process, controls, streams, phase)
    }
}
