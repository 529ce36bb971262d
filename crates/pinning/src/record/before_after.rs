//! Recording without the kernel's events: the pages that are in memory after the command and were not before.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use host::interrupt::Interrupt;
use rawio::cached::cached_pages;
use rawio::resident::Resident;
use tracer::{CommandId, TraceEvent};

use super::line::Key;
use super::names::{bytes_of, files_below};
use super::read_ahead::{Busy, ReadAheadOff};
use super::{
    Method, Order, Recorded, UNTOLD, add_file, drop_pages, empty_trace, is_told, read_of, run,
};
use crate::pages::{PAGE, Pages};

/// Records a command that runs once. All files below the directories are dropped from memory before.
///
/// # Errors
/// As [`super::record`].
pub(super) fn record(
    order: &Order,
    why: Option<String>,
    interrupt: &Interrupt,
) -> anyhow::Result<Recorded> {
    let files = files_below(&order.roots, |_| true)?;
    let mut devices: Vec<_> = files.keys().map(|key| key.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut before: HashMap<Key, Pages> = HashMap::new();
    for (key, path) in &files {
        interrupt.check()?;
        if is_in_memory(path) {
            ensure!(
                is_told(path)?,
                "of {} {UNTOLD}: record as root, or files of your own (`under`)",
                path.display()
            );
            before.insert(*key, drop_pages(path)?);
        }
    }
    // With read-ahead, more than was touched is in memory afterwards; it is held all the same.
    let off = ReadAheadOff::of(&devices, &order.run_dir.join("pin-read-ahead"));
    if let Err(error) = &off {
        ensure!(!error.is::<Busy>(), Busy);
        log::warn!("what the kernel reads ahead is recorded, too: {error:#}");
    }
    run::run(&order.command, order.limit, interrupt)?;
    drop(off);
    let mut paths: Vec<_> = files
        .into_iter()
        .filter(|(_, path)| is_in_memory(path))
        .collect();
    paths.sort_by(|(_, one), (_, other)| one.cmp(other));
    let mut trace = empty_trace(vec![Vec::new()]);
    for (key, path) in paths {
        ensure!(is_told(&path)?, "of {} {UNTOLD}", path.display());
        let before = before.remove(&key).unwrap_or_default();
        let pages = new_pages(&path, &before)?;
        if pages.count() == 0 {
            continue;
        }
        let Some((id, size)) = add_file(&mut trace, &path)? else {
            continue;
        };
        for pages in pages.ranges() {
            trace.events.push(TraceEvent {
                at_us: 0,
                took_us: 0,
                pid: 0,
                command: CommandId(0),
                what: read_of(id, &bytes_of(&pages, size)),
            });
        }
    }
    Ok(Recorded {
        trace,
        method: Method::BeforeAfter,
        why,
        elsewhere: 0,
    })
}

/// Returns whether some page of a file is in memory, or that is unknown (Linux before 6.5).
fn is_in_memory(path: &PathBuf) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    !matches!(cached_pages(&file, 0, u64::MAX >> 1), Ok(0))
}

fn new_pages(path: &PathBuf, before: &Pages) -> anyhow::Result<Pages> {
    let mut new = Pages::default();
    let Ok(file) = File::open(path) else {
        return Ok(new);
    };
    let doing = || format!("looking at the pages of {}", path.display());
    let size = file.metadata().with_context(doing)?.len();
    for bytes in Resident::look(&file, 0..size).with_context(doing)?.ranges() {
        let mut at = bytes.start / PAGE;
        let end = bytes.end.div_ceil(PAGE);
        for old in before.common(&(at..end)) {
            new.insert(at..old.start);
            at = old.end;
        }
        new.insert(at..end);
    }
    Ok(new)
}
