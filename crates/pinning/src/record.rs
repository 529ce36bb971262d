//! Finding which pages of which files a command touches.
//!
//! The kernel reports each page that is read or faulted on. Around a fault it maps pages that were not requested
//! (64 KiB), and it reads ahead; so the command runs twice. The first run finds the files that it uses. These are
//! dropped from memory, read-ahead is switched off, and in the second run each page that is touched is a fault
//! or a read of just that page. Pages that stay in memory in any case, since other programs have them mapped, are
//! recorded in pieces of 64 KiB.
//!
//! Where the kernel lacks these events, the pages in memory before the command are compared with those after it.

mod before_after;
mod line;
mod names;
mod read_ahead;
mod run;
mod tracefs;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use blocks::{Access, Event, FileId, SourceId, Timestamp, Warmth};
use host::interrupt::Interrupt;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rawio::resident::Resident;
use serde::Serialize;
use tracer::{CommandId, Trace, TraceEvent, TraceInfo, TracedFile};

use self::line::{Key, Precision};
use self::names::{bytes_of, files_below, is_same};
use self::read_ahead::{Busy, ReadAheadOff};
use self::tracefs::{Heard, TraceFs};
use crate::pages::{PAGE, Pages};
use crate::profile::{SOURCE, version_of};

/// The parameters of a recording.
#[derive(Clone, Debug)]
pub struct Order {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The directories with the host's own files.
    pub roots: Vec<PathBuf>,
    /// Running processes whose touches count, too.
    pub with: Vec<u32>,
    /// After how long a command that has not ended counts as started.
    pub limit: Option<Duration>,
    /// The directory of the file from which read-ahead is restored.
    pub run_dir: PathBuf,
    /// How it is to be recorded; as precisely as possible if absent.
    pub method: Option<Method>,
}

/// How pages were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By the kernel's events, page by page.
    Pages,
    /// By the kernel's events, in pieces of 64 KiB where files are mapped: read-ahead could not be switched off.
    Around,
    /// From the pages in memory before and after.
    BeforeAfter,
}

/// The result.
#[derive(Debug)]
pub struct Recorded {
    /// A trace whose source is [`SOURCE`].
    pub trace: Trace,
    /// How the pages were found.
    pub method: Method,
    /// Why it was not found more precisely.
    pub why: Option<String>,
    /// Files that were touched and are in none of the directories.
    pub elsewhere: usize,
}

/// Runs a command, twice where the kernel has the events, and returns the pages that it touches.
///
/// # Errors
/// If the command fails, the process lacks the rights, or nothing below the directories was touched.
pub fn record(order: &Order, interrupt: &Interrupt) -> anyhow::Result<Recorded> {
    let roots: Vec<_> = order.roots.iter().filter(|root| root.is_dir()).collect();
    ensure!(
        !roots.is_empty(),
        "none of the directories to look in is there: name others (`under`)"
    );
    let recorded = match (order.method, TraceFs::open()) {
        (Some(Method::BeforeAfter), _) => before_after::record(order, None, interrupt),
        (_, Ok(tracefs)) => by_events(order, &tracefs, interrupt),
        (Some(_), Err(error)) => Err(error),
        (None, Err(error)) => before_after::record(order, Some(format!("{error:#}")), interrupt),
    }?;
    ensure!(
        !recorded.trace.files.is_empty(),
        "the command touched no file below {}: name other directories (`under`)",
        roots
            .iter()
            .map(|root| root.display().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(recorded)
}

/// A file that a recording is about.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    /// Its pages that could not be dropped from memory.
    stayed: Pages,
}

fn by_events(order: &Order, tracefs: &TraceFs, interrupt: &Interrupt) -> anyhow::Result<Recorded> {
    let mut threads = Vec::new();
    for pid in &order.with {
        threads.extend(threads_of(*pid)?);
    }
    let listen = || -> anyhow::Result<Heard> {
        let listener = tracefs.listen(&threads)?;
        run::run(&order.command, order.limit, interrupt)?;
        listener.finish()
    };
    let first = listen()?;
    let touched: HashSet<Key> = first.touches.iter().map(|touch| touch.key).collect();
    let files = files_below(&order.roots, |key| touched.contains(key))?;
    let elsewhere = touched.len() - files.len();
    let own = fs::canonicalize("/proc/self/exe").unwrap_or_default();
    let mut known = HashMap::new();
    let mut untold = 0;
    for (key, path) in files
        .into_iter()
        .filter(|(key, path)| *path != own || !is_same(&own, key))
    {
        untold += u32::from(!is_told(&path)?);
        let stayed = drop_pages(&path)?;
        known.insert(key, Known { path, stayed });
    }
    let mut devices: Vec<_> = known.keys().map(|key| key.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let note = order.run_dir.join("pin-read-ahead");
    let off = match order.method {
        Some(Method::Around) => Err(None),
        _ => match ReadAheadOff::of(&devices, &note) {
            Err(error) if error.is::<Busy>() => return Err(error),
            off => off.map_err(Some),
        },
    };
    let (method, why) = match &off {
        Ok(_) if untold > 0 => {
            let why =
                format!("of {untold} files {UNTOLD}; what is mapped of them is recorded in pieces");
            (Method::Pages, Some(why))
        }
        Ok(_) => (Method::Pages, None),
        Err(why) => (Method::Around, why.as_ref().map(|why| format!("{why:#}"))),
    };
    let second = listen()?;
    drop(off);
    let trace = trace_of(&second, &known, method)?;
    Ok(Recorded {
        trace,
        method,
        why,
        elsewhere,
    })
}

/// Returns the threads of a process.
fn threads_of(pid: u32) -> anyhow::Result<Vec<u32>> {
    let dir = format!("/proc/{pid}/task");
    let entries =
        fs::read_dir(&dir).with_context(|| format!("there is no process {pid}: reading {dir}"))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Why nothing is known of the pages of some files.
const UNTOLD: &str = "the kernel does not tell which pages are in memory (it tells the owner, who may write, and `CAP_FOWNER`)";

/// Returns whether the kernel tells which pages of a file are in memory. One that is gone, or that cannot be opened, has none that
/// matter.
fn is_told(path: &Path) -> anyhow::Result<bool> {
    let Ok(file) = File::open(path) else {
        return Ok(true);
    };
    Resident::is_told(&file).with_context(|| format!("looking at the pages of {}", path.display()))
}

/// Has the kernel forget the pages of a file, and returns those that stay: they are mapped, or being written.
fn drop_pages(path: &Path) -> anyhow::Result<Pages> {
    let mut stayed = Pages::default();
    // It may have gone since it was touched.
    let Ok(file) = File::open(path) else {
        return Ok(stayed);
    };
    let doing = || format!("dropping the pages of {}", path.display());
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).with_context(doing)?;
    let size = file.metadata().with_context(doing)?.len();
    for bytes in Resident::look(&file, 0..size).with_context(doing)?.ranges() {
        stayed.insert(bytes.start / PAGE..bytes.end.div_ceil(PAGE));
    }
    Ok(stayed)
}

/// Makes a trace of what was heard of known files.
fn trace_of(heard: &Heard, known: &HashMap<Key, Known>, method: Method) -> anyhow::Result<Trace> {
    let mut touches: Vec<_> = heard.touches.iter().collect();
    touches.sort_by_key(|touch| touch.at_us);
    let begin = touches.first().map_or(0, |touch| touch.at_us);
    let mut trace = empty_trace(
        heard
            .commands
            .iter()
            .map(|name| name.clone().into_bytes())
            .collect(),
    );
    trace.lost = heard.lost;
    let mut ids: HashMap<Key, (FileId, u64, Pages)> = HashMap::new();
    for touch in touches {
        let Some(file) = known.get(&touch.key) else {
            continue;
        };
        let (id, size, seen) = match ids.entry(touch.key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match add_file(&mut trace, &file.path)? {
                Some((id, size)) => entry.insert((id, size, Pages::default())),
                None => continue,
            },
        };
        let pages = match (touch.precision, method) {
            (Precision::Around, Method::Pages) => file.stayed.common(&touch.pages),
            _ => vec![touch.pages.clone()],
        };
        trace.lasted_us = touch.at_us - begin;
        for pages in pages {
            let bytes = bytes_of(&pages, *size);
            if bytes.is_empty() || seen.insert(pages) == 0 {
                continue;
            }
            trace.events.push(TraceEvent {
                at_us: touch.at_us - begin,
                took_us: 0,
                pid: touch.thread,
                command: CommandId(touch.command),
                what: read_of(*id, &bytes),
            });
        }
    }
    Ok(trace)
}

fn empty_trace(commands: Vec<Vec<u8>>) -> Trace {
    Trace {
        info: TraceInfo {
            label: SOURCE.as_bytes().to_vec(),
            source: SourceId::of_label(SOURCE.as_bytes()),
            started: Timestamp::of(SystemTime::now()),
        },
        commands,
        ..Trace::default()
    }
}

/// Adds a file to a trace, and returns its id and size; `None` if it is gone.
fn add_file(trace: &mut Trace, path: &Path) -> anyhow::Result<Option<(FileId, u64)>> {
    let Ok(about) = path.metadata() else {
        return Ok(None);
    };
    let id = FileId(u32::try_from(trace.files.len()).context("too many files")?);
    let name = path.as_os_str().as_encoded_bytes();
    trace.files.push(TracedFile {
        file: id,
        version: version_of(&about),
        path: name.strip_prefix(b"/").unwrap_or(name).to_vec(),
    });
    Ok(Some((id, about.len())))
}

fn read_of(file: FileId, bytes: &std::ops::Range<u64>) -> Event {
    Event::Read(Access {
        file,
        offset: bytes.start,
        len: bytes.end - bytes.start,
        warmth: Warmth::Unknown,
    })
}
