//! Control groups: they contain the processes of a sandbox, limit them, freeze and kill them.
//!
//! The hierarchy of version 2 does all of it where it has the controllers. Hosts in transition have
//! them in hierarchies of version 1; there a sandbox is in a group of version 2, which freezes and
//! kills, and in one of version 1 for its memory (and its CPU time, if that is limited). Entering each takes
//! time, so none is entered without need: the number of processes, for one, is limited by the user
//! of the sandbox.
//!
//! Groups are made once and reused. Before reuse, a group is thawed, its limits are removed and the
//! kernel is asked whether it has processes: see [`Group::reset`].

mod hierarchies;
mod lent;
mod pool;
mod strays;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rawio::mount::{DetachedMount, Forbids};

pub(crate) use hierarchies::Hierarchies;
pub(crate) use lent::Lent;
pub(crate) use pool::Pool;

use crate::error::{Result, SandboxError, at};

/// How long a group may take to freeze or to lose its last process after a kill: a process that
/// waits for a disk cannot die before the disk answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory that a group may still be charged for when it is used again, such as pages of files that
/// others read, too.
const CHARGED_MAX: u64 = 4 << 20;

/// What a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Bytes of memory, `/tmp` included.
    pub memory_bytes: u64,
    /// The maximum number of processes and threads.
    pub processes: u32,
    /// Thousandths of a processor; `None` for no limit.
    pub cpu_millis: Option<u32>,
    /// Bytes in `/tmp`.
    pub tmp_bytes: u64,
    /// Open descriptors of each process.
    pub descriptors: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 512 << 20,
            processes: 256,
            cpu_millis: None,
            tmp_bytes: 64 << 20,
            descriptors: 1024,
        }
    }
}

/// Where a limit is written.
#[derive(Debug)]
struct Legacy {
    dir: PathBuf,
    /// The file to which a process with one thread writes itself. Moving a thread takes no wait; moving a
    /// process by `cgroup.procs` waits until no other process forks.
    tasks: File,
}

/// What the kernel says of a group's memory, open since it is read at each end.
#[derive(Debug)]
struct Memory {
    usage: File,
    /// With a line `oom_kill N`.
    events: File,
}

/// The control groups of one sandbox.
#[derive(Debug)]
pub(crate) struct Group {
    /// Which of all: it has its own user, too.
    pub(crate) slot: u32,
    unified: PathBuf,
    unified_dir: File,
    events: File,
    /// Whether the group of version 2 bounds memory and CPU time.
    has_controllers: bool,
    memory: Option<Legacy>,
    cpu: Option<Legacy>,
    /// `None` without a controller of memory.
    charged: Option<Memory>,
    /// The limit of memory that was written last; 0 if that is not known. Most sandboxes have the limit of the one
    /// before, and a write takes a lock of all groups.
    memory_limit: AtomicU64,
    /// Whether somebody may have frozen it since it was thawed.
    may_be_frozen: AtomicBool,
    /// Whether the kernel was asked to kill what is in it.
    was_killed: AtomicBool,
    /// Whether CPU time is limited for its present user.
    cpu_in_use: bool,
    /// The directory, mounted alone, if it is lent.
    lent: Option<DetachedMount>,
    /// Processes that were killed for memory in its whole life, at the last query.
    killed_for_memory: u64,
}

impl Memory {
    fn open(dir: &Path, names: [&str; 2]) -> Result<Self> {
        let open = |name| File::open(dir.join(name)).map_err(at("opening", dir.join(name)));
        let [usage, events] = names.map(open);
        Ok(Self {
            usage: usage?,
            events: events?,
        })
    }
}

impl Legacy {
    fn open(parent: &Path, slot: u32) -> Result<Self> {
        let dir = made(parent.join(slot.to_string()))?;
        let tasks = open_write(&dir.join("tasks"))?;
        Ok(Self { dir, tasks })
    }
}

fn made(dir: PathBuf) -> Result<PathBuf> {
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(at("making the control group", dir)(error))
        }
        _ => Ok(dir),
    }
}

/// Has a user be able to move its own processes into a group. It also needs that right for the group
/// above both.
fn lend(dir: &Path, user: u32) -> Result<()> {
    let procs = dir.join("cgroup.procs");
    chown(&procs, Some(user), None).map_err(at("changing the owner of", procs))
}

fn open_write(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.map_err(at("opening", path))
}

fn put(path: &Path, value: &str) -> Result<()> {
    fs::write(path, value).map_err(at("writing", path))
}

/// Reads a file of the kernel's anew, which is short.
fn read_again(file: &File) -> io::Result<String> {
    let mut bytes = [0; 512];
    let len = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

impl Group {
    /// Makes or opens the groups of a slot. That of version 2 is in `dir`.
    pub(crate) fn open_in(hierarchies: &Hierarchies, dir: &Path, slot: u32) -> Result<Self> {
        let unified = made(dir.join(slot.to_string()))?;
        let open = |name: &str| File::open(unified.join(name)).map_err(at("opening", &unified));
        let legacy = |parent: &Option<PathBuf>| {
            let parent = parent.as_deref();
            parent.map(|parent| Legacy::open(parent, slot)).transpose()
        };
        let memory = legacy(&hierarchies.memory)?;
        let charged = match &memory {
            Some(memory) => {
                let names = ["memory.usage_in_bytes", "memory.oom_control"];
                Some(Memory::open(&memory.dir, names)?)
            }
            None if hierarchies.has_controllers => {
                Some(Memory::open(&unified, ["memory.current", "memory.events"])?)
            }
            None => None,
        };
        Ok(Self {
            slot,
            unified_dir: open(".")?,
            events: open("cgroup.events")?,
            has_controllers: hierarchies.has_controllers,
            memory,
            cpu: legacy(&hierarchies.cpu)?,
            charged,
            unified,
            memory_limit: AtomicU64::new(0),
            // By a former program.
            may_be_frozen: AtomicBool::new(true),
            was_killed: AtomicBool::new(false),
            cpu_in_use: false,
            lent: None,
            killed_for_memory: 0,
        })
    }

    /// The directory that a process can be born in.
    pub(crate) fn birth(&self) -> BorrowedFd<'_> {
        self.unified_dir.as_fd()
    }

    /// What a process that was born there writes itself to, to be in all groups.
    pub(crate) fn legacy(&self) -> Vec<BorrowedFd<'_>> {
        let cpu = self.cpu.as_ref().filter(|_| self.cpu_in_use);
        let groups = self.memory.iter().chain(cpu);
        groups.map(|group| group.tasks.as_fd()).collect()
    }

    /// Has a user be able to start processes in it, from a group beside it.
    pub(crate) fn lend_to(&mut self, user: u32) -> Result<()> {
        lend(&self.unified, user)?;
        let copy = DetachedMount::copy_of(self.birth());
        let copy = copy.and_then(|copy| copy.forbid(Forbids::WRITING).map(|()| copy));
        self.lent = Some(copy.map_err(at("mounting", &self.unified))?);
        Ok(())
    }

    /// The directory for processes that must not reach the whole hierarchy: a mount of the group alone, since
    /// from a directory of the whole others could be reached. It is made once, as making and ending one is slow.
    pub(crate) fn lent_birth(&self) -> Result<BorrowedFd<'_>> {
        let lent = self.lent.as_ref().map(|mount| mount.as_fd());
        lent.ok_or_else(|| {
            SandboxError::Invalid("this control group is nobody's to use".to_owned())
        })
    }

    /// Moves a process into the group of version 2. Into those of version 1 it goes itself: see [`Self::legacy`].
    pub(crate) fn adopt(&self, pid: u32) -> Result<()> {
        put(&self.unified.join("cgroup.procs"), &pid.to_string())
    }

    /// Sets the limits for its next user.
    pub(crate) fn limit(&mut self, limits: &Limits) -> Result<()> {
        self.limit_memory(limits.memory_bytes)?;
        self.cpu_in_use = limits.cpu_millis.is_some();
        let Some(millis) = limits.cpu_millis else {
            return Ok(());
        };
        /// The length of a period of the kernel's scheduler, in microseconds.
        const PERIOD_MICROS: u64 = 100_000;
        let quota = (u64::from(millis) * PERIOD_MICROS / 1000).max(1000);
        match &self.cpu {
            Some(cpu) => put(&cpu.dir.join("cpu.cfs_quota_us"), &quota.to_string()),
            None if self.has_controllers => {
                let max = format!("{quota} {PERIOD_MICROS}");
                put(&self.unified.join("cpu.max"), &max)
            }
            None => Err(no_controller("CPU time")),
        }
    }

    /// Limits memory.
    pub(crate) fn limit_memory(&self, bytes: u64) -> Result<()> {
        if self.memory_limit.swap(0, Relaxed) != bytes {
            self.write_memory_limit(bytes)?;
        }
        self.memory_limit.store(bytes, Relaxed);
        Ok(())
    }

    fn write_memory_limit(&self, bytes: u64) -> Result<()> {
        match &self.memory {
            Some(memory) => {
                let bytes = bytes.to_string();
                put(&memory.dir.join("memory.limit_in_bytes"), &bytes)?;
                // Buffers of TCP are counted apart.
                let buffers = memory.dir.join("memory.kmem.tcp.limit_in_bytes");
                if let Err(error) = fs::write(&buffers, bytes) {
                    log::debug!("writing {}: {error}", buffers.display());
                }
                Ok(())
            }
            None if self.has_controllers => {
                put(&self.unified.join("memory.max"), &bytes.to_string())
            }
            None => Err(no_controller("memory")),
        }
    }

    /// Returns the bytes that it is charged for.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let charged = self
            .charged
            .as_ref()
            .ok_or_else(|| no_controller("memory"))?;
        let text =
            read_again(&charged.usage).map_err(at("reading the memory of", &self.unified))?;
        Ok(text.trim().parse().unwrap_or(u64::MAX))
    }

    /// Reclaims memory: pages of files, and others if there is swap.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let (path, value) = match &self.memory {
            Some(memory) => (memory.dir.join("memory.force_empty"), "0".to_owned()),
            None => {
                let bytes = self.memory_bytes()?;
                (self.unified.join("memory.reclaim"), bytes.to_string())
            }
        };
        match fs::write(&path, value) {
            // Not everything could be given back (`EAGAIN`, `EBUSY`), or this kernel is older than
            // the file.
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                log::debug!("reclaiming by {}: {error}", path.display());
                Ok(())
            }
            written => written.map_err(at("writing", path)),
        }
    }

    /// Returns how many processes the kernel has killed here for memory since the last call.
    pub(crate) fn killed_for_memory(&mut self) -> u64 {
        let text = self
            .charged
            .as_ref()
            .map(|charged| read_again(&charged.events));
        let text = text.and_then(io::Result::ok).unwrap_or_default();
        let killed = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let killed = killed.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        let before = std::mem::replace(&mut self.killed_for_memory, killed);
        killed.saturating_sub(before)
    }

    /// Freezes all processes, and waits until they are.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.may_be_frozen.store(true, Relaxed);
        put(&self.unified.join("cgroup.freeze"), "1")?;
        self.await_event("frozen 1", "freezing a sandbox")
    }

    /// Resumes all processes.
    pub(crate) fn thaw(&self) -> Result<()> {
        put(&self.unified.join("cgroup.freeze"), "0")?;
        self.may_be_frozen.store(false, Relaxed);
        Ok(())
    }

    /// Reads whether all processes are frozen.
    pub(crate) fn is_frozen(&self) -> Result<bool> {
        self.says("frozen 1")
    }

    /// Kills all processes, frozen ones too, and waits until none is left.
    pub(crate) fn kill(&self) -> Result<()> {
        if self.says("populated 0")? {
            return Ok(());
        }
        self.was_killed.store(true, Relaxed);
        put(&self.unified.join("cgroup.kill"), "1")?;
        self.await_event("populated 0", "killing a sandbox")
    }

    /// Returns the processes in it.
    pub(crate) fn processes(&self) -> Result<Vec<u32>> {
        let path = self.unified.join("cgroup.procs");
        let text = fs::read_to_string(&path).map_err(at("reading", path))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Prepares it for reuse: without processes, and without its last user's limits or state.
    pub(crate) fn reset(&mut self) -> Result<()> {
        self.kill()?;
        // Since Linux 6.14 whoever is born there from another group is killed, too (`kill_seq` of kernel/cgroup).
        if self.was_killed.load(Relaxed) {
            return Err(SandboxError::Invalid(
                "it was killed, and so would be what is born there".to_owned(),
            ));
        }
        if self.may_be_frozen.load(Relaxed) {
            self.thaw()?;
        }
        if let Some(cpu) = self.cpu.as_ref().filter(|_| self.cpu_in_use) {
            put(&cpu.dir.join("cpu.cfs_quota_us"), "-1")?;
        } else if self.cpu_in_use {
            put(&self.unified.join("cpu.max"), "max 100000")?;
        }
        self.cpu_in_use = false;
        Ok(())
    }

    /// Returns whether its next user would begin with much that it is charged for.
    ///
    /// What is left after the last process are pages of files, which the first to read them is charged for. To reclaim them would
    /// send all others who read them to the disk; without the group they stay.
    pub(crate) fn is_charged(&self) -> Result<bool> {
        Ok(self.memory_bytes()? > CHARGED_MAX)
    }

    /// Removes the groups.
    pub(crate) fn remove(self) -> Result<()> {
        self.kill()?;
        drop(self.lent);
        let legacy = [self.memory, self.cpu].into_iter().flatten();
        for dir in legacy.map(|group| group.dir) {
            strays::end_all_in(&dir)?;
            remove_dir(&dir)?;
        }
        remove_dir(&self.unified)
    }

    /// Reads whether the kernel says this of the group.
    fn says(&self, line: &str) -> Result<bool> {
        let text =
            read_again(&self.events).map_err(at("reading", self.unified.join("cgroup.events")))?;
        Ok(text.lines().any(|event| event == line))
    }

    fn await_event(&self, line: &str, doing: &'static str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.says(line)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let patience = PATIENCE;
                return Err(SandboxError::Late { doing, patience });
            }
            // Wakes when the file has changed since it was read.
            let mut fds = [PollFd::new(self.events.as_fd(), PollFlags::POLLPRI)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let _interrupted = poll(&mut fds, timeout);
        }
        Ok(())
    }
}

/// Removes a group. The kernel holds one as busy for a moment after its last process has ended.
fn remove_dir(dir: &Path) -> Result<()> {
    const TRIES: u32 = 200;
    for _ in 1..TRIES {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => return removed.map_err(at("removing", dir)),
        }
    }
    fs::remove_dir(dir).map_err(at("removing", dir))
}

fn no_controller(what: &str) -> SandboxError {
    SandboxError::Invalid(format!(
        "this machine has no controller that bounds {what}: mount the hierarchy that has it, or \
         delegate it to this control group"
    ))
}
