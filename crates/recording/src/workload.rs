//! A recorded command: started, watched until it is ready, stopped.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::line_watch::LineWatch;
use crate::machine::MachineSign;
use crate::not_ready::NotReady;
use crate::until::{Until, http_answers, port_answers};
use host::interrupt::Interrupt;

/// How often ports, URLs and silence are looked at; the error of the time to ready they give.
const PROBE_EVERY: Duration = Duration::from_millis(10);
/// How long a command may take to end when it is asked to, before it is killed: what `docker
/// stop` gives, halved, because its work is done.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The root directory of a command.
#[derive(Debug)]
pub enum WorkingRoot<'a> {
    /// In namespaces of its own, with an overlay on this directory as its root; the second
    /// directory is an empty one to mount things in.
    Overlay {
        /// The lower layer.
        lower: &'a Path,
        /// The empty directory.
        scratch: &'a Path,
    },
    /// That of this process.
    Here,
}

/// A running command.
#[derive(Debug)]
pub struct Workload {
    has_namespaces: bool,
    group: Pid,
    started: Instant,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    ended: Receiver<(std::io::Result<ExitStatus>, Instant)>,
    exit: Option<(ExitStatus, Instant)>,
    exit_signal: Interrupt,
    lines: LineWatch,
}

impl Workload {
    /// Starts `command` with the variable `env` set.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        place: &WorkingRoot<'_>,
        env: (&str, &Path),
        command: &[OsString],
    ) -> anyhow::Result<Self> {
        let mut program = Command::new("/proc/self/exe");
        match place {
            WorkingRoot::Overlay { lower, scratch } => {
                program
                    .arg("__enter")
                    .arg("--lower")
                    .arg(lower)
                    .arg("--scratch")
                    .arg(scratch);
            }
            WorkingRoot::Here => {
                program.arg("__exec");
            }
        }
        let started = Instant::now();
        let mut child = program
            .arg("--")
            .args(command)
            .env(env.0, env.1)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting the command")?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let group = Pid::from_raw(i32::try_from(child.id()).context("reading the command's pid")?);
        let exit_signal = Interrupt::unarmed()?;
        let ended = watch_exit(child, exit_signal.clone())?;
        let lines = LineWatch::default();
        Ok(Self {
            has_namespaces: matches!(place, WorkingRoot::Overlay { .. }),
            group,
            started,
            stdout,
            stderr,
            ended,
            exit: None,
            exit_signal,
            lines,
        })
    }

    /// Waits until the command is ready and returns how long it took.
    ///
    /// `idle` returns the time since the last read from the recorded mount, and `seen` whether a virtual machine
    /// shows that it is ready. `lost` returns whether the recorded mount has ended.
    ///
    /// # Errors
    /// [`NotReady`] if it or the mount ends before, or does not become ready within `timeout`;
    /// [`Interrupted`](host::interrupt::Interrupted) on Ctrl-C.
    pub fn wait_ready(
        &mut self,
        until: &Until,
        timeout: Duration,
        interrupt: &Interrupt,
        idle: &dyn Fn() -> Duration,
        seen: &dyn Fn(&MachineSign) -> bool,
        lost: &dyn Fn() -> bool,
    ) -> anyhow::Result<Duration> {
        loop {
            interrupt.check()?;
            let line = self.next_line(PROBE_EVERY, interrupt, until)?;
            if self.exit.is_none() && lost() {
                // Without this, a command that reads nothing any more would seem to have all that it needs.
                return Err(NotReady(
                    "somebody unmounted the recorded mount, or ended its connection, before the command was ready: \
                     record again"
                        .to_owned(),
                )
                .into());
            }
            let ready = match until {
                Until::Line(_) => line,
                Until::Tcp(port) => port_answers(*port),
                Until::Http(url) => http_answers(url),
                Until::Quiet(time) => idle() >= *time,
                Until::After(time) => self.started.elapsed() >= *time,
                Until::Machine(sign) => seen(sign),
                Until::Exit | Until::Healthy(_) => false,
            };
            if ready {
                let quiet = if let Until::Quiet(time) = until {
                    *time
                } else {
                    Duration::ZERO
                };
                return Ok(self.started.elapsed().saturating_sub(quiet));
            }
            if let Some((status, at)) = self.exit {
                return match until {
                    Until::Exit if status.success() => Ok(at - self.started),
                    Until::Quiet(_) | Until::After(_) if status.success() => Ok(at - self.started),
                    _ => Err(ended_early(status, until).into()),
                };
            }
            if self.started.elapsed() > timeout {
                let waited = timeout.as_secs_f64();
                return Err(NotReady(format!(
                    "the command was not ready within {waited} s: waited for {until}; \
                     give it more time (`timeout`), or wait for something else (`until`)"
                ))
                .into());
            }
        }
    }

    /// Ends the command. One that runs here is asked to, and killed after a while. One in
    /// namespaces of its own is killed at once: its writes are discarded with its overlay, and
    /// as process 1 it does not receive a SIGTERM that it does not handle.
    pub fn stop(mut self) {
        let grace = if self.has_namespaces {
            Duration::ZERO
        } else {
            STOP_GRACE
        };
        if self.exit.is_none() && !self.has_namespaces {
            // Fails only if the group is gone already, which is what we want.
            let _gone = killpg(self.group, Signal::SIGTERM);
        }
        let asked = Instant::now();
        let never = Until::Exit;
        while self.exit.is_none() && asked.elapsed() < grace {
            let left = grace.saturating_sub(asked.elapsed());
            let exit_signal = self.exit_signal.clone();
            if self.next_line(left, &exit_signal, &never).is_err() {
                break;
            }
        }
        // Even when the first process is gone others of its group may live.
        let _gone = killpg(self.group, Signal::SIGKILL);
        if self.exit.is_none() {
            let _status = self.ended.recv();
        }
    }

    /// Waits for output, the command's end or an interrupt, at most for `wait`; passes output on
    /// to standard error, and returns whether a line of it matched.
    fn next_line(
        &mut self,
        wait: Duration,
        interrupt: &Interrupt,
        until: &Until,
    ) -> anyhow::Result<bool> {
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let mut fds = vec![PollFd::new(interrupt.fd(), PollFlags::POLLIN)];
        if self.exit.is_none() {
            fds.push(PollFd::new(self.exit_signal.fd(), PollFlags::POLLIN));
        }
        let pipes = [
            self.stdout.as_ref().map(|pipe| pipe.as_fd()),
            self.stderr.as_ref().map(|pipe| pipe.as_fd()),
        ];
        let readable = |fds: &[PollFd<'_>], index: Option<usize>| {
            index.is_some_and(|index| fds[index].any().unwrap_or(false))
        };
        let places = pipes.map(|pipe| {
            pipe.map(|pipe| {
                fds.push(PollFd::new(pipe, PollFlags::POLLIN));
                fds.len() - 1
            })
        });
        match poll(&mut fds, wait) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("waiting for the command"),
        }
        let [out, err] = places.map(|place| readable(&fds, place));
        drop(fds);
        let mut matched = false;
        if out {
            let chunk = read_chunk(&mut self.stdout);
            matched |= self.pass_on(&chunk, until);
        }
        if err {
            let chunk = read_chunk(&mut self.stderr);
            matched |= self.pass_on(&chunk, until);
        }
        if let Ok((status, at)) = self.ended.try_recv() {
            self.exit = Some((status.context("waiting for the command")?, at));
        }
        Ok(matched)
    }

    /// Shows output to the user and looks for the ready line in it.
    fn pass_on(&mut self, chunk: &[u8], until: &Until) -> bool {
        // Nobody to show it to is no reason to stop.
        let _shown = std::io::stderr().write_all(chunk);
        let wanted = match until {
            Until::Line(regex) => Some(regex),
            _ => None,
        };
        self.lines.sees(chunk, wanted)
    }
}

fn ended_early(status: ExitStatus, until: &Until) -> NotReady {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let wanted = match until {
        Until::Exit | Until::Quiet(_) | Until::After(_) => "code 0 was wanted".to_owned(),
        other => format!("waited for {other}"),
    };
    NotReady(format!("the command {how}: {wanted}; its output is above"))
}

/// Reads what a pipe has; at its end the pipe is closed.
fn read_chunk<R: std::io::Read>(pipe: &mut Option<R>) -> Vec<u8> {
    // A pipe holds 64 KiB by default: one read empties it.
    let mut chunk = vec![0; 64 << 10];
    let read = pipe
        .as_mut()
        .map_or(0, |pipe| pipe.read(&mut chunk).unwrap_or(0));
    if read == 0 {
        *pipe = None;
    }
    chunk.truncate(read);
    chunk
}

/// Waits for the command's end on a thread, so that the moment is exact.
fn watch_exit(
    mut child: Child,
    tell: Interrupt,
) -> anyhow::Result<Receiver<(std::io::Result<ExitStatus>, Instant)>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("workload".to_owned())
        .spawn(move || {
            let status = child.wait();
            // Nobody listens any more if the recording was given up.
            let _sent = sender.send((status, Instant::now()));
            tell.ask();
        })
        .context("starting the thread that waits for the command")?;
    Ok(receiver)
}
