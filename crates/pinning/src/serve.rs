//! The process that locks the pages.
//!
//! One thread owns the [`Holder`]: it locks pages, handles changes of files, and responds. The threads that take
//! requests send them to it, so no lock is held while pages are read.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use fdstore::{Inherited, Notifier};
use host::control;
use host::interrupt::Interrupt;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::group::Group;
use crate::holder::Holder;
use crate::pin_dir::PinDir;
use crate::talk::{DEADLINE, PinStatus, Request, Response, socket};
use crate::watch::Watch;

/// How long nothing may happen before files that changed are looked at: an upgrade changes many.
const QUIET: Duration = Duration::from_millis(200);
/// After how long they are looked at although events continue.
const LATEST: Duration = Duration::from_secs(5);
/// How often all is looked at: a directory in the path of a file may have been replaced, which nobody tells.
const ROUND: Duration = Duration::from_secs(60);
/// How many requests wait.
const REQUESTS_MAX: usize = 8;

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct ServeSettings {
    /// The directory of its socket.
    pub run_dir: PathBuf,
    /// The directory of the profiles.
    pub pins: PinDir,
    /// The most bytes to hold.
    pub budget: u64,
    /// The directory of the memory cgroup that is charged.
    pub group: Option<PathBuf>,
    /// The service manager, as `NOTIFY_SOCKET` names it.
    pub manager: Option<OsString>,
}

/// A request, and the way back to who waits for the answer.
type Asked = (Request, SyncSender<Response>);

/// Locks the pages of the applied profiles until it receives a request to end.
///
/// # Errors
/// If another process does so already, the cgroup cannot be joined, or the socket cannot be created.
pub fn serve(settings: &ServeSettings, interrupt: &Interrupt) -> anyhow::Result<()> {
    let _alone = alone(&settings.run_dir)?;
    let group = settings.group.as_deref().map(Group::join).transpose()?;
    let mut holder = Holder::new(settings.pins.clone(), settings.budget, group);
    let mut watch = Watch::new()?;
    refresh(&mut holder, &mut watch);
    let (send, requests) = sync_channel(REQUESTS_MAX);
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .context("making an eventfd")?;
    let wake = Arc::new(wake);
    let figures = Arc::new(Mutex::new(holder.status().clone()));
    let asked = (send, Arc::clone(&wake), Arc::clone(&figures));
    let callers = listen(&socket(&settings.run_dir), asked)?;
    ready(settings.manager.as_ref())?;
    let mut due = Due::new();
    while !interrupt.asked() {
        wait(&watch, &wake, interrupt, &due)?;
        let _count = wake.read(); // there may be none
        if watch.heard() {
            due.hurry();
        }
        if due.is_now() {
            refresh(&mut holder, &mut watch);
            due = Due::new();
        }
        answer(&requests, &mut holder, &mut watch);
        publish(&figures, &holder);
    }
    callers.wait_until_answered();
    Ok(())
}

/// When the files are looked at next.
struct Due {
    next: Instant,
    latest: Instant,
}

impl Due {
    fn new() -> Self {
        let next = Instant::now() + ROUND;
        Self { next, latest: next }
    }

    /// Something changed: soon, when nothing more does.
    fn hurry(&mut self) {
        let now = Instant::now();
        self.latest = self.latest.min(now + LATEST);
        self.next = (now + QUIET).min(self.latest);
    }

    fn is_now(&self) -> bool {
        Instant::now() >= self.next
    }

    fn patience(&self) -> PollTimeout {
        let left = self.next.saturating_duration_since(Instant::now());
        // A millisecond more, since what is left of one is cut off.
        PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }
}

fn alone(run_dir: &Path) -> anyhow::Result<Flock<File>> {
    let path = run_dir.join("pins.lock");
    let doing = || format!("opening {}", path.display());
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .with_context(doing)?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno);
    ensure!(
        !matches!(locked, Err(Errno::EAGAIN)),
        "pages are held already by another `yolofs pin serve` of {}",
        run_dir.display()
    );
    locked.with_context(|| format!("locking {}", path.display()))
}

fn refresh(holder: &mut Holder, watch: &mut Watch) {
    holder.refresh();
    watch.set(&holder.paths());
}

/// The way to the thread that locks pages, what wakes it, and the status that it published last.
type Way = (SyncSender<Asked>, Arc<EventFd>, Arc<Mutex<PinStatus>>);

fn listen(socket: &Path, (send, wake, figures): Way) -> anyhow::Result<Arc<control::Callers>> {
    let listener = control::listen(socket)?;
    control::serve(listener, move |request: Request| {
        if request == Request::Figures {
            let figures = figures.lock().unwrap_or_else(PoisonError::into_inner);
            return Response::Status(Box::new(figures.clone()));
        }
        let (back, answer) = sync_channel(1);
        if send.try_send((request, back)).is_err() || wake.write(1).is_err() {
            return Response::Failed("too many commands at a time".to_owned());
        }
        match answer.recv_timeout(DEADLINE) {
            Ok(response) => response,
            Err(_) => Response::Failed("it is still reading pages, or ends: ask again".to_owned()),
        }
    })
}

fn publish(figures: &Mutex<PinStatus>, holder: &Holder) {
    let mut figures = figures.lock().unwrap_or_else(PoisonError::into_inner);
    figures.clone_from(holder.status());
}

fn ready(manager: Option<&OsString>) -> anyhow::Result<()> {
    let Some(manager) = manager else {
        return Ok(());
    };
    let notifier = Notifier::find(manager, &mut Inherited::default())
        .context("finding the service manager")?;
    notifier
        .ready()
        .context("telling the service manager that pages are held")
}

fn wait(watch: &Watch, wake: &EventFd, interrupt: &Interrupt, due: &Due) -> anyhow::Result<()> {
    let fds = [watch.as_fd(), wake.as_fd(), interrupt.fd()];
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, due.patience()) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("waiting for changes and requests"),
    }
}

fn answer(requests: &Receiver<Asked>, holder: &mut Holder, watch: &mut Watch) {
    while let Ok((request, back)) = requests.try_recv() {
        if request == Request::Refresh {
            refresh(holder, watch);
        }
        // Who does not wait any more is not told.
        let _told = back.try_send(Response::Status(Box::new(holder.status().clone())));
    }
}
