//! `yolofs docker serve`: the parent process that waits for the end of the worker.
//!
//! It does nothing else, so that little can go wrong: when the worker ends unexpectedly, it unmounts
//! the dead mounts, so that Docker sees its plain directories, and starts another
//! worker.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use super::engine::{DockerEngine, DockerPlace};
use super::start::{Started, WhenIdle, first_word, ourselves, tell};
use super::station::Station;
use super::worker::{self, Beginning};
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use mounting::confinement::Service;
use yolofs::XattrAnswers;

/// Deaths within this time count together.
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// So many deaths, and it is given up: something kills every worker.
const DEATHS_MAX: usize = 5;
/// How long the first new worker waits; it doubles with every death that counts.
const PAUSE: Duration = Duration::from_millis(100);

/// The settings of the daemon.
#[derive(Clone, Copy, Debug)]
pub struct ServeSettings {
    /// Whether all images that have boot images are attached, those that come later included.
    pub all: bool,
    /// Which requests for extended attributes are answered where no file has any.
    pub xattrs: XattrAnswers,
    /// Whether a command waits for the result of the start, and the daemon ends when nothing is attached.
    pub background: bool,
    /// The guardian, if this is its worker.
    pub worker: Option<u32>,
}

/// Serves the layers of a Docker until it receives a request to end.
///
/// # Errors
/// If Docker's directory cannot be found, or the layers are served already.
pub fn run(
    args: &ServeSettings,
    engine: &DockerEngine,
    store: &StoreSettings,
    run_dir: &RunDir,
) -> anyhow::Result<()> {
    let place = engine.place()?;
    if place.is_served_by_snapshotter() {
        log::info!("the snapshotter serves the layers of this Docker: nothing is to be done here");
        return if args.background {
            tell(&Started::Serving)
        } else {
            Ok(())
        };
    }
    let station = Station::of(run_dir, &place.data_root);
    let served = match args.worker {
        Some(guardian) => work(args, guardian, store, &place, station),
        None => guard(args, store, run_dir, &place, &station),
    };
    match served {
        // Whoever started this waits for a word, and shows it.
        Err(error) if args.background || args.worker.is_some() => {
            log::error!("{error:#}");
            let why = format!("{error:#}");
            // Nobody listens any more when it was told before.
            let _told = tell(&Started::Failed { why });
            Err(error)
        }
        served => served,
    }
}

fn work(
    args: &ServeSettings,
    guardian: u32,
    store: &StoreSettings,
    place: &DockerPlace,
    station: Station,
) -> anyhow::Result<()> {
    let beginning = if args.all {
        Beginning::All
    } else {
        Beginning::AsBefore
    };
    let when_idle = if args.background {
        WhenIdle::End
    } else {
        WhenIdle::Wait
    };
    let root = place.images(&station)?;
    // BuildKit reads the attributes of what a step changed, and fails if it is told that there are none
    // to be had.
    let xattrs = match place.store {
        Some(_) => XattrAnswers::Always,
        None => args.xattrs,
    };
    let how = (beginning, xattrs);
    worker::run(root, station, store, how, (guardian, when_idle))
}

/// Keeps a worker alive until it ends by itself, or is asked to.
fn guard(
    args: &ServeSettings,
    store: &StoreSettings,
    run_dir: &RunDir,
    place: &DockerPlace,
    station: &Station,
) -> anyhow::Result<()> {
    // The worker inherits both.
    mounting::descriptors::allow_many_files();
    mounting::confinement::engine(Service::Docker)?;
    let interrupt = Interrupt::install()?;
    if args.background {
        // A session of its own: neither Ctrl-C nor the end of the terminal is meant for a daemon.
        setsid().context("leaving the terminal's session")?;
    }
    let mut deaths = Deaths::default();
    let mut has_served = false;
    loop {
        clear(station);
        let mut command = ourselves(store, run_dir, place);
        command.arg("--worker").arg(std::process::id().to_string());
        for (flag, is_set) in [
            ("--all", args.all),
            ("--all-xattrs", args.xattrs == XattrAnswers::Always),
            ("--background", args.background),
        ] {
            command.args(is_set.then_some(flag));
        }
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut worker = Worker::of(spawned.context("starting the process that serves")?)?;
        match first_word(&mut worker.stdout) {
            Some(Started::Failed { why }) if !has_served => bail!("{why}"),
            Some(Started::Serving) if !has_served => {
                has_served = true;
                if args.background {
                    tell(&Started::Serving)?;
                }
            }
            _ => {}
        }
        let status = worker.wait(&interrupt)?;
        clear(station);
        if status.success() || interrupt.asked() {
            return Ok(());
        }
        let pause = deaths.add(Instant::now());
        let Some(pause) = pause else {
            bail!(
                "the worker died {DEATHS_MAX} times within {} s, the last time with \
                 {status}: what it served is Docker's plain directories again",
                DEATHS_WITHIN.as_secs()
            );
        };
        log::warn!("the worker died ({status}); starting another");
        wait(&mut [PollFd::new(interrupt.fd(), PollFlags::POLLIN)], pause)?;
        if interrupt.asked() {
            return Ok(());
        }
    }
}

/// Takes dead mounts away. What cannot be is tried again with the next death.
fn clear(station: &Station) {
    let cleared = station.take_duty().and_then(|duty| match duty {
        Some(duty) => station.clear_dead(&duty),
        // Another worker serves.
        None => Ok(0),
    });
    match cleared {
        Ok(0) => {}
        Ok(cleared) => log::warn!("cleared {cleared} dead mounts"),
        Err(error) => log::error!("{error:#}"),
    }
}

/// The process that serves. Its standard output ends when it does, however that happens.
struct Worker {
    child: Child,
    stdout: ChildStdout,
}

impl Worker {
    fn of(mut child: Child) -> anyhow::Result<Self> {
        let stdout = child.stdout.take().context("listening to the process")?;
        Ok(Self { child, stdout })
    }

    /// Waits until it ends; passes the request to end on to it.
    fn wait(mut self, interrupt: &Interrupt) -> anyhow::Result<ExitStatus> {
        let mut has_asked = false;
        loop {
            let ended = PollFd::new(self.stdout.as_fd(), PollFlags::empty());
            let asked = PollFd::new(interrupt.fd(), PollFlags::POLLIN);
            let mut waits = [ended, asked];
            let count = if has_asked { 1 } else { 2 };
            wait(&mut waits[..count], None)?;
            if waits[0].any().unwrap_or(true) {
                return self
                    .child
                    .wait()
                    .context("waiting for the process that serves");
            }
            if interrupt.asked() && !has_asked {
                has_asked = true;
                let pid = Pid::from_raw(i32::try_from(self.child.id()).context("a process id")?);
                // It may have ended just now.
                let _gone = kill(pid, Signal::SIGTERM);
            }
        }
    }
}

fn wait(waits: &mut [PollFd<'_>], patience: impl Into<Option<Duration>>) -> anyhow::Result<()> {
    let timeout = match patience.into() {
        None => PollTimeout::NONE,
        Some(patience) => PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX),
    };
    match poll(waits, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno).context("waiting for the process that serves"),
    }
}

/// When workers died.
#[derive(Debug, Default)]
struct Deaths(VecDeque<Instant>);

impl Deaths {
    /// Notes a death, and returns how long to wait before the next life, if there is to be one.
    fn add(&mut self, now: Instant) -> Option<Duration> {
        let is_recent = |at: &Instant| now.duration_since(*at) < DEATHS_WITHIN;
        self.0.retain(is_recent);
        self.0.push_back(now);
        let doublings = u32::try_from(self.0.len() - 1).unwrap_or(u32::MAX);
        (self.0.len() < DEATHS_MAX).then(|| PAUSE * 2_u32.saturating_pow(doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_dies_again_and_again_is_given_up() {
        let mut deaths = Deaths::default();
        let start = Instant::now();
        let pauses: Vec<_> = (0..5).map(|_| deaths.add(start)).collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(pauses, [ms(100), ms(200), ms(400), ms(800), None]);
        assert_eq!(deaths.add(start + DEATHS_WITHIN), ms(100), "long ago");
    }
}
