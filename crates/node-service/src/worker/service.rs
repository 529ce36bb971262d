//! The server for the node's requests: one request and one response for each connection, each on a
//! thread of its own, so that a slow one does not delay others.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
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
use host::callers::{CONNECTED_MAX, Caller, Callers, part};

/// How long a question may take to arrive, and an answer to be taken.
const TALK: Duration = Duration::from_secs(10);

/// What the node talks to.
#[derive(Debug)]
pub(super) struct WorkerContext {
    mounts: Arc<ServedMounts>,
    devices: Arc<ServedDevices>,
    admission: Admission,
    /// Connects to a block service through the node, if the node does that.
    connector: Option<Arc<NodeConnector>>,
    callers: Arc<Callers>,
    /// When the last one left.
    last: Mutex<Instant>,
}

impl WorkerContext {
    /// Returns one that serves the peers that `admission` admits.
    pub(super) fn new(
        (mounts, devices): (Arc<ServedMounts>, Arc<ServedDevices>),
        admission: Admission,
        connector: Option<Arc<NodeConnector>>,
    ) -> Self {
        Self {
            mounts,
            devices,
            admission,
            connector,
            // Some answers take long, and delay no others: as many as may be connected.
            callers: Arc::new(Callers::new(CONNECTED_MAX, TALK)),
            last: Mutex::new(Instant::now()),
        }
    }

    /// Returns the time since the last request.
    pub(super) fn idle(&self) -> Duration {
        match self.callers.is_empty() {
            true => self.last.lock().elapsed(),
            false => Duration::ZERO,
        }
    }

    fn talk(&self, caller: &Caller) -> anyhow::Result<()> {
        let stream = caller.stream();
        if let Err(why) = self.admission.check_peer(stream) {
            let fault = Fault::Invalid;
            let refused = WorkerResponse::Refused { fault, why };
            caller.takes_refusal();
            host::framed::send(stream, &refused, &[], caller.deadline())?;
            // Were what he says left, he would see the end before the answer.
            part(stream);
            return Ok(());
        }
        let (question, beside) = host::framed::receive(stream, caller.deadline())?;
        let turn = caller.begin().context("too many requests at a time")?;
        let (answer, handed) = self.answer(question, beside);
        let beside = handed.in_order();
        // All that a worker says is short.
        let _taking = caller.takes(turn, 0);
        host::framed::send(stream, &answer, &beside, caller.deadline())
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
                WorkerRequest::Swap { id, boot } => done(self.mounts.swap(&id, &boot))?,
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
                WorkerRequest::GiveUp { id } => done(self.mounts.give_up(&id))?,
                WorkerRequest::Close { id } => done(self.mounts.close(&id))?,
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
                WorkerRequest::Detach { name } => done(self.devices.detach(&name))?,
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

fn done(result: Result<(), Refusal>) -> Result<WorkerResponse, Refusal> {
    result.map(|()| WorkerResponse::Done)
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
        let talking = Arc::clone(&context);
        let talk = move |caller: &Caller| {
            if let Err(error) = talking.talk(caller) {
                log::debug!("the node went away: {error:#}");
            }
            *talking.last.lock() = Instant::now();
        };
        let refuse = |_: &_| log::warn!("too many requests at a time");
        let incoming = listener.incoming();
        context.callers.take("question", incoming, talk, refuse);
    };
    std::thread::Builder::new()
        .name("listen".to_owned())
        .spawn(accept)
        .context("starting the thread that listens")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::wire::ask;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    /// Longer than anything here takes, however busy the machine is.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Eight times as many as may be connected: to wait for all of their deadlines takes longer than the node waits.
    #[test]
    fn two_thousand_idle_connections_keep_no_request_of_the_node_waiting() {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("workers/1.sock");
        let (over, _ends) = std::sync::mpsc::channel();
        let mounts = ServedMounts::start(over, None, Arc::default()).unwrap();
        let devices = ServedDevices::new(Arc::default());
        let served = (Arc::new(mounts), Arc::new(devices));
        let context = Arc::new(WorkerContext::new(served, Admission::own(), None));
        serve(listen(&socket).unwrap(), &context).unwrap();
        let idle: Vec<_> = (0..8 * CONNECTED_MAX)
            .map(|_| UnixStream::connect(&socket).unwrap())
            .collect();
        let address = (std::process::id(), &*socket);
        let question = WorkerRequest::Status { id: None };
        let (answer, _) = ask(address, &question, &[], PATIENCE).unwrap();
        assert!(matches!(answer, WorkerResponse::Status(_)), "{answer:?}");
        drop(idle);
    }
}
