//! A private instance of the kernel's tracer, which records the touches of some processes and their children.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use host::interrupt::Interrupt;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::gettid;
use rawio::mount::{DetachedMount, MountContext};

use super::line::{EVENTS, Key, Precision, Said, parse};
use crate::pages::{PAGE, Pages};

/// Instances are called so, and by the process that made them.
const PREFIX: &str = "yolofs-pin-";
/// Memory for events of each processor, in KiB: some 60 000 events.
const BUFFER_KIB: &str = "4096";
/// The most touches that are kept; what is touched again makes none.
const TOUCHES_MAX: usize = 1_000_000;
/// The most programs that are distinguished.
const COMMANDS_MAX: usize = 4096;

/// Pages that a thread touched for the first time, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) at_us: u64,
    pub(super) thread: u32,
    /// An index into [`Heard::commands`].
    pub(super) command: u32,
    pub(super) key: Key,
    pub(super) pages: Range<u64>,
    pub(super) precision: Precision,
}

/// The recorded events.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) touches: Vec<Touch>,
    pub(super) commands: Vec<String>,
    /// Events that found no room.
    pub(super) lost: u64,
    seen: HashMap<(Key, Precision), Pages>,
    numbers: HashMap<String, u32>,
}

impl Heard {
    fn note(&mut self, line: &str, own_thread: u32) {
        let line = match parse(line) {
            Some(Said::Lost(lost)) => {
                self.lost += lost;
                return;
            }
            Some(Said::Touched(line)) if line.thread != own_thread => line,
            _ => return,
        };
        let pages = line.bytes.start / PAGE..line.bytes.end.div_ceil(PAGE);
        let seen = self.seen.entry((line.key, line.precision)).or_default();
        if seen.insert(pages.clone()) == 0 {
            return;
        }
        if self.touches.len() >= TOUCHES_MAX {
            self.lost += 1;
            return;
        }
        let command = self.number(line.command);
        self.touches.push(Touch {
            at_us: line.at_us,
            thread: line.thread,
            command,
            key: line.key,
            pages,
            precision: line.precision,
        });
    }

    fn number(&mut self, command: &str) -> u32 {
        if let Some(&number) = self.numbers.get(command) {
            return number;
        }
        let number = u32::try_from(self.commands.len().min(COMMANDS_MAX - 1)).unwrap_or(0);
        if self.commands.len() < COMMANDS_MAX {
            self.commands.push(command.to_owned());
            self.numbers.insert(command.to_owned(), number);
        }
        number
    }
}

/// Where the kernel's tracer is controlled.
#[derive(Debug)]
pub(super) struct TraceFs {
    path: PathBuf,
    /// Our mount of it, if none existed.
    _mount: Option<DetachedMount>,
}

impl TraceFs {
    /// Finds tracefs, or mounts it for this process alone.
    ///
    /// # Errors
    /// If the kernel has no such events, or the process lacks the rights.
    pub(super) fn open() -> anyhow::Result<Self> {
        let has_events = |path: &Path| {
            EVENTS
                .iter()
                .all(|event| path.join("events/filemap").join(event).is_dir())
        };
        let known = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].map(Path::new);
        if let Some(path) = known.into_iter().find(|path| has_events(path)) {
            return Ok(Self {
                path: path.to_owned(),
                _mount: None,
            });
        }
        let mount = MountContext::open(c"tracefs").and_then(MountContext::mount_writable);
        let mount = mount.context("mounting tracefs")?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_fd().as_raw_fd()));
        if has_events(&path) {
            return Ok(Self {
                path,
                _mount: Some(mount),
            });
        }
        Err(anyhow!(
            "this kernel has no event {} (Linux 6.18 has)",
            EVENTS[0]
        ))
    }

    /// Starts to listen to what this thread and these threads start from now on, and what these touch.
    ///
    /// # Errors
    /// If the tracer refuses.
    pub(super) fn listen(&self, threads: &[u32]) -> anyhow::Result<Listener> {
        self.sweep();
        let instance = Instance::make(&self.path)?;
        instance.set("buffer_size_kb", BUFFER_KIB)?;
        // Comparable among processors, and with nothing else: times count from the first event.
        instance.set("trace_clock", "mono")?;
        instance.set("options/event-fork", "1")?;
        let own = gettid().as_raw().cast_unsigned();
        for thread in threads.iter().chain([&own]) {
            instance.append("set_event_pid", &thread.to_string())?;
        }
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(instance.0.join("trace_pipe"))
            .context("opening the kernel's trace")?;
        for event in EVENTS {
            instance.set(&format!("events/filemap/{event}/enable"), "1")?;
        }
        let stop = Interrupt::unarmed()?;
        let stopped = stop.clone();
        let reader = std::thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || read_all(pipe, &stopped, own))
            .context("starting the thread that reads the kernel's trace")?;
        Ok(Listener {
            instance,
            stop,
            reader: Some(reader),
        })
    }

    /// Removes what recorders that were killed left behind.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.path.join("instances")) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // One whose trace is still read stays.
                let _gone = fs::remove_dir(entry.path());
            }
        }
    }
}

/// An instance of the tracer, removed when dropped.
#[derive(Debug)]
struct Instance(PathBuf);

impl Instance {
    fn make(tracefs: &Path) -> anyhow::Result<Self> {
        let path = tracefs
            .join("instances")
            .join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)
            .with_context(|| format!("making {} (are you root?)", path.display()))?;
        Ok(Self(path))
    }

    fn set(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))
    }

    fn append(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = self.0.join(file);
        let opened = OpenOptions::new().append(true).open(&path);
        let written = opened.and_then(|mut file| file.write_all(value.as_bytes()));
        written.with_context(|| format!("adding {value} to {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            log::warn!("{} stays: {error}", self.0.display());
        }
    }
}

/// The tracer while it records.
#[derive(Debug)]
pub(super) struct Listener {
    instance: Instance,
    stop: Interrupt,
    reader: Option<JoinHandle<io::Result<Heard>>>,
}

impl Listener {
    /// Stops recording, and returns the events.
    ///
    /// # Errors
    /// If the trace could not be read.
    pub(super) fn finish(mut self) -> anyhow::Result<Heard> {
        for event in EVENTS {
            self.instance
                .set(&format!("events/filemap/{event}/enable"), "0")?;
        }
        let read = self
            .join()
            .context("the thread that reads the kernel's trace is gone")?;
        read.context("reading the kernel's trace")
    }

    fn join(&mut self) -> Option<io::Result<Heard>> {
        self.stop.ask();
        self.reader.take().and_then(|reader| reader.join().ok())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The instance cannot be removed while its trace is open.
        let _heard = self.join();
    }
}

/// Reads the trace until it is stopped and nothing is left to read.
fn read_all(mut pipe: File, stop: &Interrupt, own_thread: u32) -> io::Result<Heard> {
    let mut heard = Heard::default();
    let mut buffer = vec![0; 64 << 10];
    let mut left = Vec::new();
    loop {
        let asked = stop.asked();
        match pipe.read(&mut buffer) {
            Ok(len) => {
                left.extend_from_slice(buffer.get(..len).unwrap_or_default());
                let whole = left
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1);
                for line in left.drain(..whole).as_slice().split(|byte| *byte == b'\n') {
                    heard.note(&String::from_utf8_lossy(line), own_thread);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && asked => return Ok(heard),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [
                    PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stop.fd(), PollFlags::POLLIN),
                ];
                // The trace is not always told of as readable before its buffer is half full.
                poll(&mut fds, PollTimeout::from(50_u8))?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
