//! Recording a boot.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use blocks::{Caller, Event, Observer, Touch, Tree};
use parking_lot::Mutex;

use crate::commands::{CommandName, Commands};
use crate::raw_trace::RawTrace;
use crate::trace::{self, CommandId, Trace, TraceEvent, TraceInfo};

/// How many names of threads are kept apart; after them, new ones count as unknown. A boot has some
/// tens, but a thread can rename itself as often as it likes.
const COMMAND_LIMIT: usize = 4096;

/// The limits of a recorder.
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

impl Limits {
    /// The limit for the recorders of all layers of a container together, for automatic
    /// recordings: several are made at a time, of images that may be hostile. A container makes a few
    /// thousand events.
    pub const OF_A_CONTAINER: Self = Self {
        events: 1 << 18,
        name_bytes: 8 << 20,
    };
}

/// What recorders that listen to one boot may keep together.
#[derive(Debug)]
pub struct Allowance {
    events: AtomicUsize,
    name_bytes: AtomicUsize,
}

impl Allowance {
    /// Returns one that nothing was taken of.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            events: AtomicUsize::new(limits.events),
            name_bytes: AtomicUsize::new(limits.name_bytes),
        }
    }

    /// Takes what an event with a name of so many bytes needs; returns whether it was there.
    fn take(&self, name_bytes: usize) -> bool {
        let take = |from: &AtomicUsize, count: usize| {
            from.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count))
                .is_ok()
        };
        take(&self.name_bytes, name_bytes) && take(&self.events, 1)
    }
}

/// Records the requests of a boot to a mount.
///
/// [`Observer::note`] costs one read of `/proc/PID/comm` through a descriptor that is held open
/// and one push under a lock that is held only for that. Events beyond the limits are counted,
/// not stored. After [`Recorder::stop`] events are ignored.
#[derive(Debug)]
pub struct Recorder {
    allowance: Arc<Allowance>,
    start: Instant,
    /// When the last response was sent, in microseconds since `start`, plus one; 0 before the
    /// first.
    last_us: AtomicU64,
    /// Whether content was read.
    has_read: AtomicBool,
    commands: Commands,
    notes: Mutex<Notes>,
}

/// What a recorder has heard so far.
#[derive(Debug, Default)]
struct Notes {
    events: Vec<TraceEvent>,
    lost: u64,
    command_ids: HashMap<CommandName, CommandId>,
    command_names: Vec<Vec<u8>>,
    finished: bool,
}

impl Recorder {
    /// Returns a recorder whose clock starts now.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::sharing(&Arc::new(Allowance::new(limits)))
    }

    /// Returns a recorder whose clock starts now, and which stores what the allowance has left, as those
    /// of the other layers of a container do.
    #[must_use]
    pub fn sharing(allowance: &Arc<Allowance>) -> Self {
        Self::with_proc(Arc::clone(allowance), PathBuf::from("/proc"))
    }

    fn with_proc(allowance: Arc<Allowance>, proc: PathBuf) -> Self {
        Self {
            allowance,
            start: Instant::now(),
            last_us: AtomicU64::new(0),
            has_read: AtomicBool::new(false),
            commands: Commands::new(proc),
            notes: Mutex::default(),
        }
    }

    /// Returns the time of the last response, or `None` before the first: a long silence
    /// since then means that a boot is over. Events beyond the limits count.
    #[must_use]
    pub fn last_event(&self) -> Option<Instant> {
        let last_us = self.last_us.load(Relaxed).checked_sub(1)?;
        self.start.checked_add(Duration::from_micros(last_us))
    }

    /// Returns whether content was read so far: mounting a root and making directories in it looks
    /// names up and reads nothing, so it is no boot.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.has_read.load(Relaxed)
    }

    /// Returns how many events were kept so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.notes.lock().events.len()
    }

    /// Returns whether nothing was recorded so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stops recording and returns the recording. A second call returns an empty one.
    #[must_use]
    pub fn stop(&self) -> RawTrace {
        let lasted_us = micros(self.start.elapsed());
        let notes = {
            let mut notes = self.notes.lock();
            let finished = Notes {
                finished: true,
                ..Notes::default()
            };
            std::mem::replace(&mut *notes, finished)
        };
        self.commands.close();
        RawTrace {
            lasted_us,
            lost: notes.lost,
            commands: notes.command_names,
            events: notes.events,
        }
    }

    /// Stops recording and returns the recording as a trace of the source whose metadata is `tree`,
    /// and which was mounted with its ids. Events about files that `tree` does not have count
    /// as lost. A second call returns an empty trace.
    #[must_use]
    pub fn finish(&self, info: TraceInfo, tree: &Tree) -> Trace {
        self.stop().into_trace(info, tree)
    }
}

impl Observer for Recorder {
    fn note(&self, caller: Caller, event: Event, took: Duration) {
        let now = self.start.elapsed();
        self.last_us.fetch_max(micros(now) + 1, Relaxed);
        if matches!(event, Event::Read(_)) {
            self.has_read.store(true, Relaxed);
        }
        // The kernel passes on names that are longer than any name can be; they are no use to a
        // replay.
        if !trace::is_possible(&event) {
            return;
        }
        let command = self.commands.name_of(caller.pid);
        let mut notes = self.notes.lock();
        if notes.finished {
            return;
        }
        if !notes.admit(&event, &self.allowance) {
            notes.lost += 1;
            return;
        }
        let command = notes.command_id(command);
        notes.events.push(TraceEvent {
            at_us: micros(now.saturating_sub(took)),
            took_us: u32::try_from(took.as_micros()).unwrap_or(u32::MAX),
            pid: caller.pid,
            command,
            what: event,
        });
    }
}

impl Notes {
    /// Once a limit is reached nothing is kept any more: a trace is the beginning of a boot, never
    /// a sieve of it.
    fn admit(&self, event: &Event, allowance: &Allowance) -> bool {
        let name_bytes = match event {
            Event::Touch(Touch::Lookup { name, .. }) => name.len(),
            _ => 0,
        };
        self.lost == 0 && allowance.take(name_bytes)
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

/// Microseconds, cut at half a million years.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX - 1)
}
