//! The server for the node's requests: one request and one response for each connection, each on a
//! thread of its own, so that a slow one does not delay others.

use std::io::Read as _;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use parking_lot::Mutex;

use super::devices::ServedDevices;
use super::prepare::Refusal;
use super::served_mounts::ServedMounts;
use crate::connector::NodeConnector;
use crate::descriptors::MountDescriptors;
use crate::wire::{Fault, WorkerRequest, WorkerResponse, WorkerStatus};
use crate::workers::RETIRE;
use host::admission::Admission;

/// How long a question may take to arrive, and an answer to be taken.
const TALK: Duration = Duration::from_secs(10);

/// Questions that are answered at a time. The node asks a few for each mount at most; beyond that
/// something is wrong with it.
const CALLERS_MAX: usize = 256;

/// How much is read of who was refused: more than any question takes without paths.
const DRAINED_MAX: u64 = 64 << 10;

/// What the node talks to.
#[derive(Debug)]
pub(super) struct WorkerContext {
    mounts: Arc<ServedMounts>,
    devices: Arc<ServedDevices>,
    admission: Admission,
    /// Connects to a block service through the node, if the node does that.
    connector: Option<Arc<NodeConnector>>,
    callers: Mutex<Callers>,
}

#[derive(Debug)]
struct Callers {
    count: usize,
    last: Instant,
}

impl WorkerContext {
    /// Returns one that serves the peers that `admission` admits.
    pub(super) fn new(
        (mounts, devices): (Arc<ServedMounts>, Arc<ServedDevices>),
        admission: Admission,
        connector: Option<Arc<NodeConnector>>,
    ) -> Self {
        let callers = Callers {
            count: 0,
            last: Instant::now(),
        };
        Self {
            mounts,
            devices,
            admission,
            connector,
            callers: Mutex::new(callers),
        }
    }

    /// Returns the time since the last request.
    pub(super) fn idle(&self) -> Duration {
        let callers = self.callers.lock();
        if callers.count > 0 {
            return Duration::ZERO;
        }
        callers.last.elapsed()
    }

    /// Lets one more ask, unless there are too many.
    fn admit(self: &Arc<Self>) -> Option<Caller> {
        let mut callers = self.callers.lock();
        if callers.count >= CALLERS_MAX {
            return None;
        }
        callers.count += 1;
        Some(Caller(Arc::clone(self)))
    }

    fn answer(&self, question: WorkerRequest, beside: Vec<OwnedFd>) -> (WorkerResponse, Handed) {
        let answer = || -> Result<(WorkerResponse, Handed), Refusal> {
            let answer = match question {
                WorkerRequest::Adopt(adoption) => {
                    let handed = MountDescriptors::received(&adoption.spec, beside)
                        .map_err(|error| Refusal::new(Fault::Invalid, error))?;
                    let hello = self.mounts.adopt(*adoption, handed)?;
                    WorkerResponse::Adopted { hello }
                }
                WorkerRequest::Status { id } => WorkerResponse::Status(WorkerStatus {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    mounts: self.mounts.status(id.as_deref()),
                    devices: self.devices.status(),
                }),
                WorkerRequest::Prewarm { id, budget_bytes } => {
                    WorkerResponse::Prewarmed(self.mounts.get(&id)?.prewarm(budget_bytes)?)
                }
                WorkerRequest::Swap { id, boot } => {
                    self.mounts.swap(&id, &boot)?;
                    WorkerResponse::Done
                }
                WorkerRequest::Heard { id } => {
                    let to = only(beside, "to write to")?;
                    self.mounts.get(&id)?.write_heard(to)?;
                    WorkerResponse::Done
                }
                WorkerRequest::Connections => {
                    let connector = self.connector.as_ref().ok_or_else(|| {
                        Refusal::new(Fault::Conflict, anyhow!("this worker connects by itself"))
                    })?;
                    connector.set_link(only(beside, "to ask for connections")?);
                    WorkerResponse::Done
                }
                WorkerRequest::LetGo { id } => {
                    self.mounts.get(&id)?.let_go();
                    WorkerResponse::Done
                }
                WorkerRequest::Close { id } => {
                    self.mounts.close(&id)?;
                    WorkerResponse::Done
                }
                WorkerRequest::Retire { within_ms } => {
                    let within = Duration::from_millis(within_ms).min(RETIRE);
                    self.mounts.retire(Instant::now() + within)?;
                    WorkerResponse::Done
                }
                WorkerRequest::Hand { id } => {
                    let handed = Handed::Mount(self.mounts.get(&id)?.hand()?);
                    return Ok((WorkerResponse::Handed, handed));
                }
                WorkerRequest::KeepPlan { id } => {
                    WorkerResponse::Kept(self.mounts.get(&id)?.keep_plan()?)
                }
                WorkerRequest::Attach(spec) => {
                    self.devices.attach(*spec, beside.into_iter().next())?
                }
                WorkerRequest::ServeQueues(queues) => {
                    let file = only(beside, "to get requests from")?;
                    WorkerResponse::Attached(self.devices.serve_queues(queues, file)?)
                }
                WorkerRequest::Grow { name, size } => {
                    WorkerResponse::Attached(self.devices.grow(&name, size)?)
                }
                WorkerRequest::Detach { name } => {
                    self.devices.detach(&name)?;
                    WorkerResponse::Done
                }
                WorkerRequest::HandSocket { name } => {
                    let handed = Handed::Socket(self.devices.socket(&name)?);
                    return Ok((WorkerResponse::Handed, handed));
                }
            };
            Ok((answer, Handed::Nothing))
        };
        // Unwind safety: the locks are parking_lot's, which do not poison, and what they guard is
        // changed in one step each. A boot image that makes us panic must not end other mounts.
        let answered = catch_unwind(AssertUnwindSafe(answer));
        let answered = answered.unwrap_or_else(|_| Err(panicked()));
        answered.unwrap_or_else(|refusal| (refused(&refusal), Handed::Nothing))
    }
}

fn panicked() -> Refusal {
    let why = anyhow!("the worker panicked on this request: see its log");
    Refusal::new(Fault::Failed, why)
}

fn refused(Refusal { fault, error }: &Refusal) -> WorkerResponse {
    WorkerResponse::Refused {
        fault: *fault,
        why: format!("{error:#}"),
    }
}

/// What travels beside an answer.
enum Handed {
    Nothing,
    Mount(MountDescriptors),
    Socket(OwnedFd),
}

impl Handed {
    fn in_order(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Mount(mount) => mount.in_order(),
            Self::Socket(socket) => vec![socket.as_fd()],
        }
    }
}

/// Returns the descriptor that came beside a request.
fn only(beside: Vec<OwnedFd>, what_for: &str) -> Result<OwnedFd, Refusal> {
    let descriptor = beside.into_iter().next();
    descriptor.ok_or_else(|| {
        let missing = anyhow!("the descriptor {what_for} is missing");
        Refusal::new(Fault::Invalid, missing)
    })
}

/// Somebody who asks.
struct Caller(Arc<WorkerContext>);

impl Caller {
    fn talk(&self, stream: &UnixStream) -> anyhow::Result<()> {
        if let Err(why) = self.0.admission.check_peer(stream) {
            let fault = Fault::Invalid;
            let refused = WorkerResponse::Refused { fault, why };
            host::framed::send(stream, &refused, &[], Instant::now() + TALK)?;
            return drain(stream);
        }
        let (question, beside) = host::framed::receive(stream, Instant::now() + TALK)?;
        let (answer, handed) = self.0.answer(question, beside);
        let beside = handed.in_order();
        host::framed::send(stream, &answer, &beside, Instant::now() + TALK)
    }
}

/// Reads what somebody says who was refused: were it left, he would see the end before the answer.
fn drain(stream: &UnixStream) -> anyhow::Result<()> {
    stream
        .shutdown(Shutdown::Write)
        .context("ending the answer")?;
    stream
        .set_read_timeout(Some(TALK))
        .context("setting a deadline")?;
    std::io::copy(&mut stream.take(DRAINED_MAX), &mut std::io::sink()).context("reading on")?;
    Ok(())
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut callers = self.0.callers.lock();
        callers.count -= 1;
        callers.last = Instant::now();
    }
}

/// Listens where the node expects the worker with our process id. A socket that an earlier process
/// of this id left is replaced.
///
/// # Errors
/// If the socket cannot be made.
pub(super) fn listen(socket: &Path) -> anyhow::Result<UnixListener> {
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    host::control::listen(socket)
}

/// Serves connections until the process ends.
///
/// # Errors
/// If the thread that accepts cannot be started.
pub(super) fn serve(listener: UnixListener, context: &Arc<WorkerContext>) -> anyhow::Result<()> {
    let context = Arc::clone(context);
    let accept = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let Some(caller) = context.admit() else {
                log::warn!("too many requests at a time");
                continue;
            };
            let spawned = std::thread::Builder::new()
                .name("question".to_owned())
                .spawn(move || {
                    if let Err(error) = caller.talk(&stream) {
                        log::debug!("the node went away: {error:#}");
                    }
                });
            if let Err(error) = spawned {
                log::error!("cannot answer a request: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("listen".to_owned())
        .spawn(accept)
        .context("starting the thread that listens")?;
    Ok(())
}
