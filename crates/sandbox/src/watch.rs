//! The thread that waits for everything that happens to sandboxes: output, ends, and times that are over.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use crate::cgroup::Pool;
use crate::error::{Result, step};
use crate::later::Later;
use crate::network::Networks;
use crate::process::{self, exit_status};
use crate::record::Records;
use crate::sandbox::{Cause, Next, Sandbox};
use crate::zygote::Zygotes;

/// The longest sleep: a deadline that is set meanwhile wakes the thread, so this is for nothing but a
/// clock that jumps.
const SLEEP: Duration = Duration::from_secs(60);

/// How long until strays are looked for that are about to end.
const STRAYS: Duration = Duration::from_secs(1);

/// Threads that end namespaces of mounts. Each waits for all processors meanwhile, and those that do at the same time wait
/// for the same.
const CLOSERS: usize = 4;

/// What an event is about: the key of a sandbox times this, plus one of these.
const KINDS: u64 = 4;
const END: u64 = 0;
const STREAMS: [u64; 2] = [1, 2];
const WAKE: u64 = u64::MAX;

/// What the sandboxes of a program share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Pool,
    pub(crate) networks: Networks,
    pub(crate) records: Records,
    pub(crate) zygotes: Zygotes,
    /// Ends namespaces of mounts. Whoever drops the last reference to one takes its mounts apart, and waits until no
    /// processor looks at them any more. That would be the last process of a sandbox, before its end can be seen.
    closer: Later,
    /// What the thread waits for.
    pub(crate) epoll: Epoll,
    wake: EventFd,
    closing: AtomicBool,
    watched: Mutex<HashMap<u64, Arc<Sandbox>>>,
    deadlines: Mutex<BTreeSet<(Instant, u64)>>,
    next_key: AtomicU64,
    pub(crate) ended: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        pool: Pool,
        networks: Networks,
        records: Records,
        zygotes: Zygotes,
    ) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(step("watching"))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_flags(flags).map_err(step("watching"))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, WAKE);
        epoll.add(&wake, event).map_err(step("watching"))?;
        Ok(Self {
            pool,
            networks,
            records,
            zygotes,
            closer: Later::start("sandbox-closer", CLOSERS)?,
            epoll,
            wake,
            closing: AtomicBool::new(false),
            watched: Mutex::default(),
            deadlines: Mutex::default(),
            next_key: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        })
    }

    /// Starts the thread.
    pub(crate) fn watch(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        std::thread::Builder::new()
            .name("sandbox-watch".to_owned())
            .spawn(move || shared.run())
            .map_err(step("starting a thread"))
    }

    /// Ends the thread. Watched sandboxes keep running.
    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        // The counter is full only if the thread is woken already.
        let _full = self.wake.write(1);
    }

    /// Watches a sandbox from now on, to its end. One that cannot be watched is the caller's to end.
    pub(crate) fn add(&self, sandbox: &Arc<Sandbox>) -> Result<()> {
        let key = self.next_key.fetch_add(1, Relaxed);
        self.watched.lock().insert(key, Arc::clone(sandbox));
        if let Some(deadline) = sandbox.deadline {
            self.deadlines.lock().insert((deadline, key));
            self.wake();
        }
        let mut added = Ok(());
        sandbox.with_streams(|streams| {
            for (stream, kind) in streams.iter().zip(STREAMS) {
                if let Some(pipe) = stream.pipe() {
                    let event = EpollEvent::new(EpollFlags::EPOLLIN, key * KINDS + kind);
                    added = added.and(self.epoll.add(pipe, event));
                }
            }
        });
        // The end last: whatever it finds, it takes away.
        let event = EpollEvent::new(EpollFlags::EPOLLIN, key * KINDS + END);
        let added = added.and_then(|()| self.epoll.add(sandbox.process.as_fd(), event));
        if added.is_err() {
            if let Some(deadline) = sandbox.deadline {
                self.deadlines.lock().remove(&(deadline, key));
            }
            self.watched.lock().remove(&key);
        }
        added.map_err(step("watching a sandbox"))
    }

    /// Ends a sandbox that could not be watched, and gives back all that it had.
    pub(crate) fn end_unwatched(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        if !process::killed(&sandbox.process) {
            log::error!("the sandbox {} was killed and has not ended", sandbox.id());
        }
        self.bury(None, sandbox);
    }

    /// Returns the numbers of the processes whose ends are waited for.
    pub(crate) fn pids(&self) -> HashSet<u32> {
        let watched = self.watched.lock();
        watched.values().map(|sandbox| sandbox.pid()).collect()
    }

    /// Returns the users of those that run.
    pub(crate) fn users(&self) -> BTreeSet<u32> {
        let watched = self.watched.lock();
        watched.values().map(|sandbox| sandbox.user()).collect()
    }

    fn run(self: &Arc<Self>) {
        let mut events = [EpollEvent::empty(); 64];
        while !self.closing.load(Relaxed) {
            let mut timeout = self.end_late_ones();
            if self.zygotes.strays.are_due() {
                timeout = timeout.min(STRAYS);
            }
            let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::NONE);
            let count = match self.epoll.wait(&mut events, timeout) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(errno) => {
                    log::error!("sandboxes are not watched any more: {errno}");
                    return;
                }
            };
            if count == 0 {
                self.reap_strays_later();
            }
            for event in &events[..count] {
                self.take(event.data());
            }
        }
    }

    /// Reaps what packages in Zygotes have left to us.
    pub(crate) fn reap_strays(&self) {
        let zygotes = &self.zygotes;
        zygotes.strays.reap(&zygotes.users(), || {
            let mut known = self.pids();
            known.extend(zygotes.pids());
            known
        });
    }

    fn reap_strays_later(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        self.closer.run(move || shared.reap_strays());
    }

    fn take(self: &Arc<Self>, about: u64) {
        if about == WAKE {
            let _woken = self.wake.read();
            return;
        }
        let (key, kind) = (about / KINDS, about % KINDS);
        let Some(sandbox) = self.watched.lock().get(&key).cloned() else {
            return;
        };
        if kind == END {
            self.bury(Some(key), &sandbox);
            return;
        }
        sandbox.with_streams(|streams| {
            for (stream, of) in streams.iter_mut().zip(STREAMS) {
                if of == kind {
                    stream.read_some();
                }
            }
        });
    }

    /// Gives back all that a sandbox had, now that its first process has ended. One that was never watched has no key.
    fn bury(self: &Arc<Self>, key: Option<u64>, sandbox: &Arc<Sandbox>) {
        if let (Some(deadline), Some(key)) = (sandbox.deadline, key) {
            self.deadlines.lock().remove(&(deadline, key));
        }
        let _unwatched = self.epoll.delete(sandbox.process.as_fd());
        sandbox.with_streams(|streams| {
            for stream in streams {
                if let Some(pipe) = stream.pipe() {
                    let _unwatched = self.epoll.delete(pipe);
                }
                stream.finish();
            }
        });
        let mut killed_for_memory = 0;
        let (mut status, mut mounts) = (None, None);
        if let Some(mut controls) = sandbox.take_controls() {
            killed_for_memory = controls.group.killed_for_memory();
            self.records.remove(controls.group.slot);
            // Reaped after its record is gone: its number can be another's from then on.
            status = Some(exit_status(&sandbox.process, sandbox.pid()));
            mounts = controls.mounts.take();
            let is_zygotes = matches!(controls.next, Next::Siblings(_));
            controls.give_back(&self.pool, &self.networks);
            if is_zygotes && self.zygotes.strays.are_due() {
                self.reap_strays_later();
            }
        }
        let status = status.unwrap_or_else(|| exit_status(&sandbox.process, sandbox.pid()));
        // Nobody else reaps those that are watched.
        if let Some(key) = key {
            self.watched.lock().remove(&key);
        }
        self.ended.fetch_add(1, Relaxed);
        let exit = sandbox.ended_as(status, killed_for_memory);
        if let Some(mounts) = mounts {
            self.closer.run(move || drop(mounts));
        }
        log::debug!("sandbox {} ended: {exit:?}", sandbox.id());
    }

    /// Kills those whose time is over, and returns how long to sleep until the next one's is.
    fn end_late_ones(&self) -> Duration {
        loop {
            let now = Instant::now();
            let (deadline, key) = match self.deadlines.lock().first() {
                Some(first) => *first,
                None => return SLEEP,
            };
            if deadline > now {
                // Not before it: a sleep is counted in milliseconds.
                return (deadline - now).min(SLEEP) + Duration::from_millis(1);
            }
            self.deadlines.lock().remove(&(deadline, key));
            let late = self.watched.lock().get(&key).cloned();
            if let Some(sandbox) = late
                && let Err(error) = sandbox.end(Cause::Timeout)
            {
                log::warn!("sandbox {} outlives its time: {error}", sandbox.id());
            }
        }
    }
}
