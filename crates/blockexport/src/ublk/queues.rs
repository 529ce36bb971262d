//! The threads of a device: one for each queue, which does nothing that waits, and those that do its requests.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use rawio::ublk::{Event, Queue, QueueRing, Request, data_position};

use super::UblkConfig;
use super::made::Channel;
use super::request::{Data, Served};
use crate::crew;

/// The rings of a device's queues. They take commands of devices and polls only.
#[derive(Debug)]
pub struct Rings(Vec<QueueRing>);

impl Rings {
    /// Makes those of a device that is made, or served on, later: as many queues as it may have.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn prepare(config: &UblkConfig) -> io::Result<Self> {
        Self::new(config.queues, config.depth)
    }

    pub(super) fn of(channel: &Channel) -> io::Result<Self> {
        Self::new(channel.queues, channel.depth)
    }

    fn new(queues: u16, depth: u16) -> io::Result<Self> {
        let rings = (0..queues).map(|_| QueueRing::new(depth));
        Ok(Self(rings.collect::<io::Result<_>>()?))
    }
}

/// The threads. They end when the device is stopped.
pub(super) struct Queues(Vec<JoinHandle<()>>);

/// A request, and its tag.
type Job = (u16, Request);

/// What the threads that do requests tell that of the queue.
struct Answers {
    /// Tags, and results.
    ready: Mutex<Vec<(u16, i32)>>,
    /// Can be read when there are some.
    event: EventFd,
}

impl Queues {
    /// Starts them, and returns when all requests of all queues are being fetched.
    ///
    /// # Errors
    /// If a queue cannot be opened. The other ones end when the device is stopped.
    pub(super) fn start(
        given: Channel,
        rings: Rings,
        served: &Arc<Served>,
        threads: usize,
    ) -> io::Result<Self> {
        let Channel {
            file,
            id: number,
            queues,
            depth,
        } = given;
        if rings.0.len() < usize::from(queues) {
            return Err(io::Error::other(format!(
                "the device has {queues} queues, and its server was started for {}",
                rings.0.len()
            )));
        }
        let device = Arc::new(file);
        let mut all = Vec::new();
        let (opened, results) = channel();
        for (id, ring) in (0..queues).zip(rings.0) {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let answers = Arc::new(Answers {
                ready: Mutex::default(),
                event: EventFd::from_flags(flags)?,
            });
            let (jobs, next) = sync_channel::<Job>(depth.into());
            let (file, served) = (Arc::clone(&device), Arc::clone(served));
            let told = Arc::clone(&answers);
            let work = move || {
                crew::run(
                    "ublk-work",
                    threads,
                    move || next.recv().ok(),
                    |(tag, request)| {
                        let data = Data {
                            file: &file,
                            position: data_position(id, tag),
                        };
                        told.tell(tag, served.answer(&request, data));
                    },
                );
            };
            let device = Arc::clone(&device);
            let opened = opened.clone();
            let serve = move || {
                let queue = open(device, (id, depth), ring, &answers);
                if let Some(queue) = pass(queue, &opened) {
                    drop(opened);
                    if let Err(error) = serve(queue, depth, &answers, &jobs) {
                        log::error!("a queue of the ublk device {number} ended: {error}");
                    }
                }
            };
            let builder = thread::Builder::new().name("ublk-work".to_owned());
            all.push(builder.spawn(work)?);
            let builder = thread::Builder::new().name("ublk-queue".to_owned());
            all.push(builder.spawn(serve)?);
        }
        drop(opened);
        for _ in 0..queues {
            let opened = results.recv().map_err(io::Error::other)?;
            opened?;
        }
        Ok(Self(all))
    }

    /// Waits until they have ended: the device was stopped.
    pub(super) fn join(self) {
        for thread in self.0 {
            if thread.join().is_err() {
                log::error!("a thread of a ublk device panicked");
            }
        }
    }
}

/// Says whether a queue could be opened, and returns it.
fn pass(queue: io::Result<Queue>, opened: &Sender<io::Result<()>>) -> Option<Queue> {
    let (queue, result) = match queue {
        Ok(queue) => (Some(queue), Ok(())),
        Err(error) => (None, Err(error)),
    };
    opened.send(result).ok()?;
    queue
}

fn open(
    device: Arc<File>,
    (id, depth): (u16, u16),
    ring: QueueRing,
    answers: &Answers,
) -> io::Result<Queue> {
    // The kernel looks for partitions on its own when it starts a device that a root's thread serves: it parses a
    // table that anybody may have written, and holds a lock meanwhile that the next server would need.
    caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut queue = Queue::open(device, id, depth, ring)?;
    queue.watch(answers.event.as_fd())?;
    Ok(queue)
}

/// Passes requests on, and answers to the kernel, until the device is over.
fn serve(
    mut queue: Queue,
    depth: u16,
    answers: &Answers,
    jobs: &SyncSender<Job>,
) -> io::Result<()> {
    let (mut events, mut over) = (Vec::new(), 0);
    while over < depth {
        queue.wait(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Requested(tag) => {
                    let job = (tag, queue.request(tag));
                    // There is room: each tag is there once.
                    jobs.send(job).map_err(io::Error::other)?;
                }
                Event::Woken => {
                    answers.clear()?;
                    queue.watch(answers.event.as_fd())?;
                }
                Event::Over(tag, error) => {
                    over += 1;
                    if error != -(Errno::ENODEV as i32) {
                        let error = io::Error::from_raw_os_error(-error);
                        log::error!(
                            "the kernel refuses the request {tag} of a ublk device: {error}"
                        );
                    }
                }
            }
        }
        let ready = std::mem::take(&mut *answers.ready.lock());
        for (tag, result) in ready {
            queue.commit(tag, result)?;
        }
    }
    Ok(())
}

impl Answers {
    fn tell(&self, tag: u16, result: i32) {
        let mut ready = self.ready.lock();
        ready.push((tag, result));
        let first = ready.len() == 1;
        drop(ready);
        if first && let Err(error) = self.event.write(1) {
            log::error!("the queue of a ublk device cannot be woken: {error}");
        }
    }

    /// Makes the event unreadable until it is written again.
    fn clear(&self) -> io::Result<()> {
        match self.event.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
