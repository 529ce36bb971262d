//! Listening to a boot.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blocks::{Caller, Event, FileId, Observer, Touch, Tree};
use parking_lot::Mutex;

use crate::commands::{CommandName, Commands};
use crate::trace::{self, CommandId, Trace, TraceEvent, TraceInfo, TracedFile};

/// How many names of threads are kept apart; after them, new ones count as unknown. A boot has some
/// tens, but a thread can rename itself as often as it likes.
const COMMAND_LIMIT: usize = 4096;

/// How much a recorder keeps before it stops listening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many events.
    pub events: usize,
    /// How many bytes of names looked up, in all.
    pub name_bytes: usize,
}

impl Default for Limits {
    /// A boot of a whole Debian makes some 1 400 reads and a few ten thousand look-ups; a million
    /// events is far beyond that and costs some 100 MB at worst, while it is being recorded.
    fn default() -> Self {
        Self {
            events: 1 << 20,
            name_bytes: 16 << 20,
        }
    }
}

/// Notes what a boot asks of a mount.
///
/// [`Observer::note`] costs one read of `/proc/PID/comm` through a descriptor that is held open
/// and one push under a lock that nobody holds for longer. What is beyond the limits is counted,
/// not kept. After [`Recorder::finish`] it is deaf.
#[derive(Debug)]
pub struct Recorder {
    limits: Limits,
    start: Instant,
    /// When the last answer was given, in microseconds since `start`, plus one; 0 before the
    /// first.
    last_us: AtomicU64,
    commands: Commands,
    heard: Mutex<Heard>,
}

/// What a recorder has heard so far.
#[derive(Debug, Default)]
struct Heard {
    events: Vec<TraceEvent>,
    name_bytes: usize,
    lost: u64,
    command_ids: HashMap<CommandName, CommandId>,
    command_names: Vec<Vec<u8>>,
    finished: bool,
}

impl Recorder {
    /// Returns a recorder whose clock starts now.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_proc(limits, PathBuf::from("/proc"))
    }

    fn with_proc(limits: Limits, proc: PathBuf) -> Self {
        Self {
            limits,
            start: Instant::now(),
            last_us: AtomicU64::new(0),
            commands: Commands::new(proc),
            heard: Mutex::new(Heard::default()),
        }
    }

    /// Returns when the last event was answered, or `None` before the first: what has been quiet
    /// since then tells that a boot is over. Events beyond the limits count.
    #[must_use]
    pub fn last_event(&self) -> Option<Instant> {
        let last_us = self.last_us.load(Relaxed).checked_sub(1)?;
        self.start.checked_add(Duration::from_micros(last_us))
    }

    /// Returns how many events were kept so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heard.lock().events.len()
    }

    /// Returns whether nothing was heard so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stops listening and returns what was heard, as a trace of the source whose metadata `tree`
    /// is. Events about files that `tree` does not have count as lost. A second call returns an
    /// empty trace.
    #[must_use]
    pub fn finish(&self, info: TraceInfo, tree: &Tree) -> Trace {
        let lasted_us = micros(self.start.elapsed());
        let heard = {
            let mut heard = self.heard.lock();
            let finished = Heard {
                finished: true,
                ..Heard::default()
            };
            std::mem::replace(&mut *heard, finished)
        };
        self.commands.close();
        let mut trace = Trace {
            info,
            lasted_us,
            lost: heard.lost,
            files: traced_files(&heard.events, tree),
            commands: heard.command_names,
            events: Vec::new(),
        };
        let mut events = heard.events;
        let before = events.len();
        events.retain(|event| trace.file(trace::file_of(&event.what)).is_some());
        trace.lost += (before - events.len()) as u64;
        // Answers come in another order than questions do where several threads serve.
        events.sort_by_key(|event| event.at_us);
        trace.events = events;
        trace
    }
}

impl Observer for Recorder {
    fn note(&self, caller: Caller, event: Event, took: Duration) {
        let now = self.start.elapsed();
        self.last_us.fetch_max(micros(now) + 1, Relaxed);
        // The kernel passes on names that are longer than any name can be; they are no use to a
        // replay.
        if !trace::is_possible(&event) {
            return;
        }
        let command = self.commands.name_of(caller.pid);
        let mut heard = self.heard.lock();
        if heard.finished {
            return;
        }
        if !heard.admit(&event, self.limits) {
            heard.lost += 1;
            return;
        }
        let command = heard.command_id(command);
        heard.events.push(TraceEvent {
            at_us: micros(now.saturating_sub(took)),
            took_us: u32::try_from(took.as_micros()).unwrap_or(u32::MAX),
            pid: caller.pid,
            command,
            what: event,
        });
    }
}

impl Heard {
    /// Once a limit is reached nothing is kept any more: a trace is the beginning of a boot, never
    /// a sieve of it.
    fn admit(&mut self, event: &Event, limits: Limits) -> bool {
        let name_bytes = match event {
            Event::Touch(Touch::Lookup { name, .. }) => name.len(),
            _ => 0,
        };
        let fits = self.lost == 0
            && self.events.len() < limits.events
            && self.name_bytes + name_bytes <= limits.name_bytes;
        if fits {
            self.name_bytes += name_bytes;
        }
        fits
    }

    fn command_id(&mut self, name: CommandName) -> CommandId {
        let known = self.command_names.len();
        let name = if known < COMMAND_LIMIT || self.command_ids.contains_key(&name) {
            name
        } else {
            CommandName::UNKNOWN
        };
        let next = CommandId(u32::try_from(known).unwrap_or(u32::MAX));
        *self.command_ids.entry(name).or_insert_with(|| {
            self.command_names.push(name.as_bytes().to_vec());
            next
        })
    }
}

/// The files that events are about, as the tree has them.
fn traced_files(events: &[TraceEvent], tree: &Tree) -> Vec<TracedFile> {
    let mut mentioned: Vec<FileId> = events.iter().map(|e| trace::file_of(&e.what)).collect();
    mentioned.sort_unstable();
    mentioned.dedup();
    let traced = |file: FileId| {
        let path = tree.path(file)?;
        let fits = path.len() <= trace::PATH_LIMIT;
        fits.then_some(TracedFile {
            file,
            version: tree.key(file)?.version,
            path,
        })
    };
    mentioned.into_iter().filter_map(traced).collect()
}

/// Microseconds, cut at half a million years.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX - 1)
}
