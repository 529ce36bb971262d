//! The process that serves the layers of one Docker.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use bootimg::ImageId;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rawio::pidfd::PidFd;

use super::images::{Images, Stamp};
use super::reconcile::{Problems, known_images, reconcile};
use super::start::{Started, WhenIdle, tell};
use super::station::Station;
use super::talk::{DockerStatus, Request, Response};
use super::wanted::Wanted;
use bootstore::store::StoreSettings;
use host::caught::caught_round;
use host::control::{Callers, listen, serve as serve_commands};
use host::interrupt::Interrupt;
use layers::server::{LayerServer, ServedBy};
use yolofs::XattrAnswers;

/// How often Docker's directory and the store are looked at for images that came or went: three
/// calls of stat(2).
const LOOK_EVERY_MS: u16 = 1000;

/// What a worker works with.
#[derive(Debug)]
struct Worker {
    station: Station,
    root: Box<dyn Images>,
    server: Box<dyn LayerServer>,
    /// Held by the one command or check of Docker's images that attaches or detaches now. Status requests do
    /// not wait for it.
    changing: Mutex<Changing>,
    /// Held for a moment, for changes and for status requests.
    now: Mutex<WorkerState>,
    /// Rung when nothing is wanted any more.
    idle: EventFd,
}

/// What the next change goes by.
#[derive(Debug, Default)]
struct Changing {
    problems: Problems,
    seen: Seen,
}

#[derive(Debug, Default)]
struct WorkerState {
    wanted: Wanted,
    /// The failures of the last change, for people.
    problems: Vec<String>,
    /// Nothing is attached any more: another daemon has to.
    leaving: bool,
}

/// What was there at the last look.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    docker: Stamp,
    store: Option<SystemTime>,
    /// Mounts that other programs had unmounted by then.
    lost: u64,
    /// Whether Docker's directory still has to be bind-mounted over itself; `None` if that is unknown.
    hides_mounts: Option<bool>,
}

/// How long after its signal the end of a guardian that was killed may be to be seen.
const ORPHANED: Duration = Duration::from_millis(100);

/// How long the duty to serve may be with somebody who only looks for dead mounts.
const DUTY_PATIENCE: Duration = Duration::from_secs(5);

/// The initial list of desired images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The stored list.
    AsBefore,
    /// All images.
    All,
}

/// Serves until it receives a request to end, and then until the last user of a layer is gone.
pub fn run(
    root: Box<dyn Images>,
    station: Station,
    store: &StoreSettings,
    (beginning, xattrs): (Beginning, XattrAnswers),
    (guardian, when_idle): (u32, WhenIdle),
) -> anyhow::Result<()> {
    mounting::confinement::execute_nothing()?;
    let interrupt = Interrupt::install()?;
    let guardians_thread = stay_with(guardian)?;
    mounting::descriptors::allow_many_files();
    let Some(duty) = station.await_duty(DUTY_PATIENCE)? else {
        bail!(
            "the layers of {} are served already: see yolofs docker status",
            root.data_root().display()
        );
    };
    let mut wanted = Wanted::load(&station.wanted())?;
    if beginning == Beginning::All {
        wanted.all = true;
        wanted.save(&station.wanted())?;
    }
    let idle = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
    let worker = Arc::new(Worker {
        server: layers::choose::server(
            store.open()?,
            &station.label(),
            station.run_dir(),
            xattrs,
            &interrupt,
        )?,
        root,
        changing: Mutex::default(),
        now: Mutex::new(WorkerState {
            wanted,
            ..WorkerState::default()
        }),
        idle: idle.context("making an eventfd")?,
        station,
    });
    let listener = listen(&worker.station.socket())?;
    let answering = Arc::clone(&worker);
    let callers = serve_commands(listener, move |ask| answering.answer(&ask))?;
    worker.look();
    tell(&Started::Serving)?;
    worker.watch(&interrupt, when_idle)?;
    // Nobody has asked to end if the guardian was killed: what does not need us stays.
    if worker.server.served_by() == ServedBy::Node && guardians_thread.ended_within(ORPHANED)? {
        log::warn!("the guardian was killed: the node keeps serving the layers");
        worker.turn_away(&callers);
        return Ok(());
    }
    worker.leave(&callers);
    // From here on another worker may serve; this one only has users of layers that nobody sees.
    drop(duty);
    worker.serve_the_last()
}

/// Has this process asked to end when its guardian does. A worker that died with no guardian would
/// leave dead mounts, so it lets go while it can. Returns the thread whose end tells of the
/// guardian's: others of a process that was killed may be there a little longer, and take us for
/// theirs.
fn stay_with(guardian: u32) -> anyhow::Result<PidFd> {
    set_pdeathsig(Signal::SIGTERM).context("tying this process to its guardian")?;
    let thread = PidFd::open_first_thread(guardian).context("watching over the guardian")?;
    if parent_id() != guardian {
        bail!("the guardian is gone");
    }
    Ok(thread)
}

impl Worker {
    /// Follows what happens until it is time to end.
    fn watch(&self, interrupt: &Interrupt, when_idle: WhenIdle) -> anyhow::Result<()> {
        let mounts = mount_events()?;
        while !interrupt.asked() {
            let mut waits = [
                PollFd::new(interrupt.fd(), PollFlags::POLLIN),
                PollFd::new(self.idle.as_fd(), PollFlags::POLLIN),
                PollFd::new(mounts.as_fd(), PollFlags::POLLPRI),
            ];
            wait(&mut waits)?;
            let rung = self.idle.read().is_ok();
            if rung && when_idle == WhenIdle::End && self.ends_if_idle() {
                return Ok(());
            }
            // What is not done is seen again.
            caught_round("looking what came or went", || self.look());
        }
        Ok(())
    }

    /// Sees whether anything came or went, and acts on it.
    fn look(&self) {
        let mut changing = self.changing.lock();
        let seen = Seen {
            docker: self.root.stamp(),
            store: self.server.store().named_at(),
            lost: self.server.lost(),
            hides_mounts: self.root.hides_mounts().ok(),
        };
        let next_try = changing.problems.next_try();
        if seen == changing.seen && next_try.is_none_or(|at| at > Instant::now()) {
            return;
        }
        if seen.store != changing.seen.store {
            // A recording that was in the way is over.
            changing.problems.forget();
        }
        match self.reconcile(&mut changing) {
            // What changes from here on is seen next time.
            Ok(()) => changing.seen = seen,
            Err(error) => log::warn!("{error:#}; trying again"),
        }
    }

    fn reconcile(&self, changing: &mut Changing) -> anyhow::Result<()> {
        let label = self.station.label();
        // It changes only with `changing`.
        let wanted = self.now.lock().wanted.clone();
        let problems = &mut changing.problems;
        let done = reconcile(&*self.server, &*self.root, &wanted, &label, problems);
        self.now.lock().problems = problems.texts();
        done
    }

    fn answer(&self, ask: &Request) -> Response {
        let done = match ask {
            Request::Attach(chosen) => self.change(|wanted| wanted.add(chosen)),
            Request::Detach(chosen) => self.change(|wanted| wanted.remove(chosen)),
            Request::Status => Ok(()),
            Request::Prewarm(image) => return self.prewarm(image),
        };
        if self.now.lock().leaving {
            return Response::Leaving;
        }
        match done.and_then(|()| self.status()) {
            Ok(status) => Response::Status(Box::new(status)),
            Err(error) => Response::Failed(format!("{error:#}")),
        }
    }

    fn prewarm(&self, image: &str) -> Response {
        match image.parse::<ImageId>() {
            Ok(image) => Response::Warmed(self.server.prewarm(&image)),
            Err(error) => Response::Failed(format!("{image} is no boot image: {error}")),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) -> anyhow::Result<()> {
        let mut changing = self.changing.lock();
        let mut wanted = {
            let now = self.now.lock();
            if now.leaving {
                return Ok(());
            }
            now.wanted.clone()
        };
        change(&mut wanted);
        wanted.save(&self.station.wanted())?;
        let is_nothing = wanted.is_nothing();
        self.now.lock().wanted = wanted;
        changing.problems.forget();
        self.reconcile(&mut changing)?;
        if is_nothing {
            self.idle.write(1).context("waking the daemon")?;
        }
        Ok(())
    }

    /// Decides to end if nothing is wanted; then no command is taken any more.
    fn ends_if_idle(&self) -> bool {
        let _unchanged = self.changing.lock();
        let mut now = self.now.lock();
        now.leaving |= now.wanted.is_nothing();
        now.leaving
    }

    fn status(&self) -> anyhow::Result<DockerStatus> {
        let (wanted, problems) = {
            let now = self.now.lock();
            (now.wanted.clone(), now.problems.clone())
        };
        Ok(DockerStatus {
            data_root: self.root.data_root().to_owned(),
            state: "serving".to_owned(),
            served_by: self.server.served_by(),
            pid: Some(std::process::id()),
            images: known_images(&*self.server, &*self.root, &wanted)?,
            wanted,
            layers: self.server.status(),
            problems,
            dead_mounts: 0,
        })
    }

    /// Removes all mounts, and responds to no request any more.
    fn leave(&self, callers: &Callers) {
        // Whoever has the turn finishes; who comes later is turned away.
        self.end_changes();
        self.server.detach_all();
        let served = self.server.targets().into_iter().collect();
        if let Err(error) = self.root.release_all_but(&served) {
            log::warn!("{error:#}");
        }
        self.turn_away(callers);
    }

    /// Lets a change that is under way finish, and allows no further one.
    fn end_changes(&self) {
        let _unchanged = self.changing.lock();
        self.now.lock().leaving = true;
    }

    /// Responds to no request any more.
    fn turn_away(&self, callers: &Callers) {
        self.end_changes();
        if let Err(error) = std::fs::remove_file(self.station.socket()) {
            log::debug!("the socket stays: {error}");
        }
        callers.wait_until_answered();
    }

    /// Serves those who have a detached layer below them until the last of them is gone.
    fn serve_the_last(&self) -> anyhow::Result<()> {
        let mounts = mount_events()?;
        let users = || self.server.leaving() + self.server.targets().len();
        let at_first = users();
        if at_first > 0 {
            log::warn!("{at_first} layers are still in use: serving them until they are released");
        }
        while users() > 0 {
            wait(&mut [PollFd::new(mounts.as_fd(), PollFlags::POLLPRI)])?;
            self.server.detach_all(); // what was recorded meanwhile
        }
        Ok(())
    }
}

/// Opens the mount table, which wakes whoever polls it for POLLPRI when it has changed since the
/// last poll.
fn mount_events() -> anyhow::Result<File> {
    File::open("/proc/self/mountinfo").context("opening the list of mounts")
}

/// Waits until one of these happens, or until it is time to look.
fn wait(waits: &mut [PollFd<'_>]) -> anyhow::Result<()> {
    match poll(waits, PollTimeout::from(LOOK_EVERY_MS)) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno).context("waiting for something to happen"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use host::run_dir::RunDir;

    use super::super::data_root::DataRoot;
    use super::*;

    #[test]
    fn who_asks_how_things_are_waits_for_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(&dir.path().join("run")).unwrap();
        let station = Station::of(&run_dir, dir.path());
        let store = StoreSettings::to_read(dir.path().join("store")).open();
        let server = layers::choose::server(
            store.unwrap(),
            &station.label(),
            &run_dir,
            XattrAnswers::default(),
            &Interrupt::unarmed().unwrap(),
        );
        let now = WorkerState {
            problems: vec!["a layer is gone".to_owned()],
            ..WorkerState::default()
        };
        let worker = Worker {
            station,
            root: Box::new(DataRoot::new(dir.path())),
            server: server.unwrap(),
            changing: Mutex::default(),
            now: Mutex::new(now),
            idle: EventFd::new().unwrap(),
        };
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let change = worker.changing.lock();
            scope.spawn(|| tell.send(worker.answer(&Request::Status)));
            // The change goes on until the answer is there.
            let answer = told.recv_timeout(Duration::from_secs(60));
            drop(change);
            match answer {
                Ok(Response::Status(status)) => assert_eq!(status.problems, ["a layer is gone"]),
                other => panic!("{other:?}"),
            }
        });
        worker.reconcile(&mut worker.changing.lock()).unwrap();
        assert!(worker.now.lock().problems.is_empty(), "told after a change");
    }
}
