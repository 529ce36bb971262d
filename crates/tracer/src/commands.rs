//! The names of threads at the time of their requests.
//!
//! A process changes its name when it execs (`sh` becomes `python3`) and its id may be reused when it
//! ends, so a name cannot be cached by id. An open `/proc/PID/comm` can: the
//! descriptor refers to exactly that thread, reading it again gives the present name, and once the thread
//! has ended it fails, even if its id is reused. One `pread` costs a tenth of opening the file.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

/// How many `/proc/PID/comm` are held open. A boot has a few tens of threads alive at a time that
/// read; a recorder must not eat the descriptors of its daemon (1024 by default).
const OPEN_LIMIT: usize = 128;

/// Longest name of a thread: Linux's TASK_COMM_LEN, its NUL replaced by a line feed in `/proc`.
/// Kernel workers show up to 64 bytes.
const NAME_BYTES: usize = 64;

/// The name of a thread: bounded, so that it needs no allocation on the request path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CommandName {
    bytes: [u8; NAME_BYTES],
    len: usize,
}

impl CommandName {
    /// The name of a thread that has ended, or that the daemon cannot see.
    pub(crate) const UNKNOWN: Self = Self {
        bytes: [0; NAME_BYTES],
        len: 0,
    };

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn read(comm: &File) -> Option<Self> {
        let mut name = Self::UNKNOWN;
        let got = comm.read_at(&mut name.bytes, 0).ok()?;
        name.len = name.bytes[..got]
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(got);
        Some(name)
    }
}

/// Looks up the names of threads.
#[derive(Debug)]
pub(crate) struct Commands {
    proc: PathBuf,
    open: Mutex<HashMap<u32, Arc<File>>>,
}

impl Commands {
    /// Looks below `proc`, which is `/proc` outside tests.
    pub(crate) fn new(proc: PathBuf) -> Self {
        Self {
            proc,
            open: Mutex::new(HashMap::new()),
        }
    }

    /// Returns the present name of the thread `pid`; the empty name if it has ended or is not visible.
    pub(crate) fn name_of(&self, pid: u32) -> CommandName {
        if pid == 0 {
            return CommandName::UNKNOWN;
        }
        // The table is locked to find the descriptor, never to read from it.
        let held = self.open.lock().get(&pid).cloned();
        held.and_then(|comm| CommandName::read(&comm))
            .or_else(|| self.open_anew(pid))
            .unwrap_or(CommandName::UNKNOWN)
    }

    fn open_anew(&self, pid: u32) -> Option<CommandName> {
        let opened = File::open(self.proc.join(pid.to_string()).join("comm"));
        let Ok(comm) = opened else {
            self.open.lock().remove(&pid);
            return None;
        };
        let name = CommandName::read(&comm)?;
        let mut open = self.open.lock();
        // Who is dead and who is merely idle cannot be told without asking each: start over.
        let dropped = (open.len() >= OPEN_LIMIT).then(|| std::mem::take(&mut *open));
        open.insert(pid, Arc::new(comm));
        drop(open);
        drop(dropped); // closes descriptors, so not under the lock
        Some(name)
    }

    /// Closes every descriptor.
    pub(crate) fn close(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        drop(open);
    }
}
