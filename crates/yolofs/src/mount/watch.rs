//! The thread that watches the mount table, one for all mounts of the process.
//!
//! Every mount and unmount on the machine wakes it, and it reads the whole table. With a thread
//! for each mount, mounting 300 layers would read 300 tables 300 times.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

use super::MountError;
use crate::serving::State;
use crate::visible::{MountIds, MountTable, Table};

/// The table is read no more often than this: who mounts many layers makes an event for each.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the watcher waits before it tries again what failed, most likely for want of memory.
const AGAIN: Duration = Duration::from_secs(1);
/// How often it says so while that fails again and again.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// The watcher of this process, as long as there is a mount to watch.
static RUNNING: Mutex<Weak<Watcher>> = Mutex::new(Weak::new());

/// A watch on one mount, until dropped. When the mount is no longer in the table, the state is
/// notified and releases it.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: Arc<Watcher>,
    number: u64,
}

impl Watch {
    /// Has a mount watched, which must be in the table already or have been.
    pub(super) fn start(ids: MountIds, state: &Arc<State>) -> Result<Self, MountError> {
        let watcher = Watcher::running().map_err(MountError::step("watching the mount table"))?;
        let number = watcher.watched.add(ids, state);
        // It may have gone before anybody watched it, with nothing to come that would tell.
        watcher.look.write(1).map_err(|errno| {
            watcher.watched.remove(number);
            MountError::step("watching the mount table")(errno.into())
        })?;
        Ok(Self { watcher, number })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watcher.watched.remove(self.number);
    }
}

/// The mounts that are watched, by a number of their own.
#[derive(Debug, Default)]
struct Watched(Mutex<Mounts>);

#[derive(Debug, Default)]
struct Mounts {
    next: u64,
    by_number: HashMap<u64, (MountIds, Arc<State>)>,
}

impl Watched {
    fn add(&self, ids: MountIds, state: &Arc<State>) -> u64 {
        let mut mounts = self.0.lock();
        let number = mounts.next;
        mounts.next += 1;
        mounts.by_number.insert(number, (ids, Arc::clone(state)));
        number
    }

    fn remove(&self, number: u64) {
        let _removed = self.0.lock().by_number.remove(&number);
    }

    /// Returns the number that the next mount will have.
    fn next(&self) -> u64 {
        self.0.lock().next
    }

    /// Takes out what is no longer listed, of the mounts below the number `before`: those that
    /// were watched before the list was read. A later one may be younger than the list.
    fn take_gone(&self, before: u64, listed: &MountTable) -> Vec<Arc<State>> {
        let mut mounts = self.0.lock();
        let gone = mounts
            .by_number
            .extract_if(|number, (ids, _)| *number < before && !listed.lists(*ids));
        gone.map(|(_, (_, state))| state).collect()
    }
}

/// The thread. Dropped with the last [`Watch`], by its holder, never by the thread itself.
#[derive(Debug)]
struct Watcher {
    watched: Arc<Watched>,
    /// Triggers a check of the table.
    look: Arc<EventFd>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Returns the one of this process, and starts it if there is none.
    fn running() -> io::Result<Arc<Self>> {
        let mut running = RUNNING.lock();
        if let Some(watcher) = running.upgrade() {
            return Ok(watcher);
        }
        let watcher = Arc::new(Self::start()?);
        *running = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> io::Result<Self> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let (look, stop) = (Arc::new(event()?), Arc::new(event()?));
        let watched = Arc::new(Watched::default());
        let table = Table::open()?;
        let worker = (Arc::clone(&watched), Arc::clone(&look), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("yolofs-watch".to_owned())
            .spawn(move || {
                let mut table = table;
                keep_watching(&worker.2, AGAIN, || {
                    watch(&worker.0, &mut table, &worker.1, &worker.2)
                });
            })?;
        Ok(Self {
            watched,
            look,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Err(error) = self.stop.write(1) {
            log::error!("cannot stop watching the mount table: {error}");
            return;
        }
        let thread = self.thread.take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that watches the mount table panicked");
        }
    }
}

/// Watches until it is told to stop. What fails is tried again after a pause: if the watcher ended, mounts that are
/// gone would be held for ever, and nobody would know.
fn keep_watching(stop: &EventFd, pause: Duration, mut watch: impl FnMut() -> io::Result<()>) {
    let mut said: Option<Instant> = None;
    while let Err(error) = watch() {
        if said.is_none_or(|said| said.elapsed() >= SAID_AGAIN) {
            log::error!("cannot watch the mount table: {error}; trying again");
            said = Some(Instant::now());
        }
        let stopped = stopped_within(stop, pause).unwrap_or_else(|_| {
            // What fails may be the waiting.
            std::thread::sleep(pause);
            stop.read().is_ok()
        });
        if stopped {
            return;
        }
    }
}

/// Watches until it is told to stop, or something fails.
fn watch(watched: &Watched, table: &mut Table, look: &EventFd, stop: &EventFd) -> io::Result<()> {
    loop {
        let read_at = Instant::now();
        let before = watched.next();
        let gone = watched.take_gone(before, &table.read()?);
        // All are told before any of them lets go, which may wait for a prewarm to notice.
        let gone: Vec<_> = gone
            .into_iter()
            .map(|state| (state.mark_gone(), state))
            .collect();
        for (private, state) in gone {
            state.let_go(private);
        }
        // The kernel remembers what it last reported to this descriptor: a change between the
        // read above and the poll is not lost.
        let mut waits = [
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
            PollFd::new(look.as_fd(), PollFlags::POLLIN),
            PollFd::new(table.as_fd(), PollFlags::POLLPRI),
        ];
        wait(&mut waits, PollTimeout::NONE)?;
        // Whether it was asked to look or not: it looks next.
        let _asked = look.read();
        if stopped_within(stop, PAUSE.saturating_sub(read_at.elapsed()))? {
            return Ok(());
        }
    }
}

/// Waits out a pause, unless it is to stop, and returns whether it is.
fn stopped_within(stop: &EventFd, pause: Duration) -> io::Result<bool> {
    let mut waits = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    let pause = PollTimeout::try_from(pause).unwrap_or(PollTimeout::ZERO);
    wait(&mut waits, pause)?;
    Ok(waits[0].any().unwrap_or(false))
}

fn wait(waits: &mut [PollFd<'_>], timeout: PollTimeout) -> io::Result<()> {
    match poll(waits, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mount(id: u64, minor: u32) -> MountIds {
        MountIds {
            id,
            major: 0,
            minor,
        }
    }

    #[test]
    fn only_what_is_no_longer_listed_is_taken_out() {
        let watched = Watched::default();
        let states = [Arc::new(State::default()), Arc::new(State::default())];
        watched.add(mount(31, 47), &states[0]);
        watched.add(mount(32, 48), &states[1]);
        // Number 32 is used again, by a mount of another file system.
        let listed = MountTable::parse("31 1 0:47 / /a ro\n32 1 0:25 / /b rw\n");
        let gone = watched.take_gone(watched.next(), &listed);
        assert_eq!(gone.len(), 1);
        assert!(Arc::ptr_eq(&gone[0], &states[1]));
        assert!(watched.take_gone(watched.next(), &listed).is_empty());
    }

    #[test]
    fn a_failure_does_not_end_the_watch() {
        let stop = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let mut failures = [Errno::ENOMEM, Errno::EINTR].into_iter();
        let mut watched = 0;
        keep_watching(&stop, Duration::ZERO, || {
            watched += 1;
            failures.next().map_or(Ok(()), |errno| Err(errno.into()))
        });
        assert_eq!(watched, 3);
        // It is to stop while it fails.
        stop.write(1).unwrap();
        let mut watched = 0;
        keep_watching(&stop, Duration::from_secs(600), || {
            watched += 1;
            Err(Errno::ENOMEM.into())
        });
        assert_eq!(watched, 1);
    }

    #[test]
    fn a_mount_that_is_younger_than_the_list_is_not_gone() {
        let watched = Watched::default();
        let state = Arc::new(State::default());
        let before = watched.next();
        let listed = MountTable::parse("31 1 0:47 / /a ro\n");
        watched.add(mount(32, 48), &state);
        assert!(watched.take_gone(before, &listed).is_empty());
        assert_eq!(watched.take_gone(watched.next(), &listed).len(), 1);
    }
}
