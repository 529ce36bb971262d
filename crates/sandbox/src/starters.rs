//! The threads that start sandboxes of a base: they are in the namespace of mounts that has its root.
//!
//! Each has a table of descriptors of its own, since a new process begins with a copy of that: a manager of a thousand
//! sandboxes has thousands of descriptors, and copying and closing these would take longer than all else. So what a
//! process needs is sent to the thread that starts it, through a socket, which is also the queue of what is to be started.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use parking_lot::Mutex;
use rawio::{fd, passing};

use crate::ahead::Ahead;
use crate::base::{self, BaseSpec};
use crate::cgroup::Limits;
use crate::confinement::confine_starter;
use crate::error::{Result, SandboxError, step};
use crate::rooms::{self, Room};

/// How long a thread may take to be done once the process that it starts was killed: one that waits for a disk cannot die
/// before the disk answers.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce(&[BorrowedFd<'_>]) + Send>;

/// What was asked for and no thread has begun, by the number that is sent with its descriptors. There are as many as
/// threads that wait in [`Starters::run`].
#[derive(Default)]
struct Jobs(Mutex<HashMap<u64, Job>>);

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jobs")
    }
}

impl Jobs {
    /// Does what comes, until the other end of the socket is closed and nothing is left.
    fn run(&self, socket: BorrowedFd<'_>) {
        let mut number = [0; 8];
        loop {
            let received = match passing::receive_message(socket, &mut number) {
                Ok(received) if received.len > 0 => received,
                Ok(_) => return,
                Err(error) => {
                    log::error!("a thread starts no more sandboxes: {error}");
                    return;
                }
            };
            let job = self.0.lock().remove(&u64::from_le_bytes(number));
            let descriptors = received.descriptors.iter().map(OwnedFd::as_fd);
            if let Some(job) = job {
                job(&descriptors.collect::<Vec<_>>());
            }
        }
    }
}

/// The threads of one base. Dropping it ends them after their pending work.
#[derive(Debug)]
pub(crate) struct Starters {
    /// `None` when there is to be no more work.
    queue: Option<OwnedFd>,
    jobs: Arc<Jobs>,
    next: AtomicU64,
    threads: Vec<JoinHandle<()>>,
    /// Whose other ends the threads have.
    running: Mutex<Receiver<()>>,
    /// `None` until the base is mounted.
    rooms: Option<Ahead<Room>>,
}

impl Starters {
    /// Starts the threads. `aside` is any directory.
    ///
    /// # Errors
    /// If the base cannot be mounted.
    pub(crate) fn start(spec: &BaseSpec, aside: &Path) -> Result<Self> {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        );
        let (queue, theirs) = pair.map_err(step("making a socket"))?;
        let theirs = Arc::new(theirs);
        let (sender, running) = sync_channel(1);
        let mut starters = Self {
            queue: Some(queue),
            jobs: Arc::default(),
            next: AtomicU64::new(0),
            threads: Vec::new(),
            running: Mutex::new(running),
            rooms: None,
        };
        // Dropped before the threads are waited for.
        let runs = sender;
        // A start is work of the kernel, so as many at a time as there are processors.
        let count = std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8));
        let (spec, aside) = (spec.clone(), aside.to_owned());
        let namespace = starters.add(&theirs, &runs, move || base::enter(&spec, &aside))?;
        for _ in 1..count {
            let namespace = namespace
                .try_clone()
                .map_err(step("copying a descriptor"))?;
            starters.add(&theirs, &runs, move || base::join(&namespace))?;
        }
        starters.rooms = Some(rooms::ahead(namespace, Limits::default().tmp_bytes)?);
        Ok(starters)
    }

    /// Takes namespaces that are ready for one sandbox, if there are any.
    pub(crate) fn room(&self) -> Option<Room> {
        self.rooms.as_ref().and_then(Ahead::take)
    }

    /// Starts a thread that enters a namespace and then does what is asked of it.
    fn add<T: Send + 'static>(
        &mut self,
        socket: &Arc<OwnedFd>,
        runs: &SyncSender<()>,
        enter: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, entered) = sync_channel(1);
        let jobs = Arc::clone(&self.jobs);
        let socket = Arc::clone(socket);
        let runs = runs.clone();
        let thread = std::thread::Builder::new().name("sandbox-starter".to_owned());
        let thread = thread
            .spawn(move || {
                let _runs = runs;
                let entered = enter().and_then(|entered| {
                    confine_starter()?;
                    Ok(entered)
                });
                let own = fd::own_table(socket.as_fd());
                let own = own.map_err(step("making a table of descriptors"));
                // Not the last one: who waits has it, too.
                drop(socket);
                let (entered, own) = match (entered, own) {
                    (Ok(entered), Ok(own)) => (Ok(entered), Some(own)),
                    (Err(error), _) | (_, Err(error)) => (Err(error), None),
                };
                let _nobody_waits = send.send(entered);
                if let Some(own) = own {
                    jobs.run(own.as_fd());
                    // Whoever waits for something that is not done is told so.
                    jobs.0.lock().clear();
                }
            })
            .map_err(step("starting a thread"))?;
        self.threads.push(thread);
        entered.recv().map_err(|_| SandboxError::Closed)?
    }

    /// Runs a function on one of the threads, with these descriptors as they are there, and returns its result. Neither
    /// the function nor its result may own a descriptor: its number would mean another one there, or here. `late` is
    /// called if the result is not there in time, and is to have the function return.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
        late: impl FnOnce(),
        job: impl FnOnce(&[BorrowedFd<'_>]) -> T + Send + 'static,
    ) -> Result<T> {
        let queue = self.queue.as_ref().ok_or(SandboxError::Closed)?;
        let (send, receive) = sync_channel(1);
        let job: Job = Box::new(move |descriptors| {
            let _nobody_waits = send.send(job(descriptors));
        });
        let number = self.next.fetch_add(1, Relaxed);
        self.jobs.0.lock().insert(number, job);
        let sent = passing::send(queue.as_fd(), &number.to_le_bytes(), descriptors);
        if let Err(error) = sent {
            self.jobs.0.lock().remove(&number);
            return Err(step("asking for the start of a process")(error));
        }
        match receive.recv_timeout(patience) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(SandboxError::Closed),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // What no thread has begun is not begun any more.
        if self.jobs.0.lock().remove(&number).is_none() {
            late();
            let _ended = receive.recv_timeout(DEATH_PATIENCE);
        }
        let doing = "the start of a process";
        Err(SandboxError::Late { doing, patience })
    }
}

impl Drop for Starters {
    fn drop(&mut self) {
        self.queue = None;
        // One whose process waits for a disk waits with it.
        let ended = self.running.get_mut().recv_timeout(DEATH_PATIENCE);
        if ended == Err(RecvTimeoutError::Timeout) {
            log::error!("threads that start sandboxes are left: their base does not answer");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread that starts sandboxes ended in a panic");
            }
        }
    }
}

#[cfg(all(test, feature = "privileged"))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Something that says when it is dropped, as a process that nobody takes is ended.
    struct Late(std::sync::mpsc::Sender<()>);

    impl Drop for Late {
        fn drop(&mut self) {
            let _nobody_waits = self.0.send(());
        }
    }

    #[test]
    fn privileged_who_waits_too_long_is_told_and_what_came_late_is_dropped() {
        const LONG: Duration = Duration::from_secs(60);
        let dir = tempfile::tempdir().expect("a directory");
        let spec = BaseSpec {
            name: "host".to_owned(),
            root: "/".into(),
            hide: vec!["work".to_owned()],
        };
        let starters = Starters::start(&spec, dir.path()).expect("a base");
        let (go, wait) = channel();
        let (dropped, is_dropped) = channel();
        let late = starters.run(
            &[],
            Duration::from_millis(10),
            || go.send(()).expect("it waits"),
            move |_| {
                wait.recv_timeout(LONG).expect("it is told to end");
                Late(dropped)
            },
        );
        assert!(matches!(late, Err(SandboxError::Late { .. })));
        is_dropped.recv_timeout(LONG).expect("nobody has it");

        // With all threads busy, what was not begun is never begun.
        let (busy, is_busy) = channel();
        let (end, is_over) = channel::<()>();
        let is_over = Mutex::new(is_over);
        let is_over = Arc::new(is_over);
        let starters = Arc::new(starters);
        let waiting: Vec<_> = starters
            .threads
            .iter()
            .map(|_| {
                let (starters, busy, is_over) =
                    (Arc::clone(&starters), busy.clone(), Arc::clone(&is_over));
                std::thread::spawn(move || {
                    starters.run(
                        &[],
                        LONG,
                        || (),
                        move |_| {
                            let _nobody_waits = busy.send(());
                            let _ended = is_over.lock().recv_timeout(LONG);
                        },
                    )
                })
            })
            .collect();
        waiting
            .iter()
            .for_each(|_| is_busy.recv_timeout(LONG).expect("it runs"));
        let (ran, has_run) = channel();
        let late = starters.run(&[], Duration::from_millis(10), || (), move |_| ran.send(()));
        assert!(matches!(late, Err(SandboxError::Late { .. })));
        drop(end);
        for thread in waiting {
            thread.join().expect("no panic").expect("it has run");
        }
        assert_eq!(starters.run(&[], LONG, || (), |_| 7).ok(), Some(7));
        assert!(has_run.try_recv().is_err());
    }
}
