//! Client programs, called with a deadline and a bound on their output.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::EngineError;

/// The most that is read of an answer: descriptions of a few thousand images.
const OUTPUT_MAX: usize = 32 << 20;
/// The most that is kept of a complaint: a client's usage text is shorter.
const COMPLAINT_MAX: usize = 4 << 10;
/// How long a killed program may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// Pieces of output that wait for their reader; the program waits when there are more.
const PIECES_MAX: usize = 64;

/// The output of a program, and its exit status.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    doing: String,
    status: ExitStatus,
    /// Its standard output.
    pub(crate) stdout: Vec<u8>,
    /// The beginning of its standard error.
    pub(crate) stderr: String,
}

impl ProgramOutput {
    /// Returns the standard output of a program that succeeded.
    ///
    /// # Errors
    /// If it did not.
    pub(crate) fn success(self) -> Result<Vec<u8>, EngineError> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        let said = match self.stderr.trim() {
            "" => format!("the client ended with {}", self.status),
            said => said.to_owned(),
        };
        let doing = self.doing;
        Err(EngineError::Failed { doing, said })
    }

    /// Returns whether the program succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.status.success()
    }
}

/// Runs a program to its end.
///
/// It gets a separate process group, so that a Ctrl-C for us does not interrupt an operation that has
/// to be undone.
///
/// # Errors
/// If it cannot be started, does not end in time, or its output is too long.
pub(crate) fn call(
    doing: &str,
    mut command: Command,
    patience: Duration,
) -> Result<ProgramOutput, EngineError> {
    let mut child = start(doing, &mut command)?;
    let group = group_of(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (sender, ended) = sync_channel(2);
    let complaint = thread(doing, move || drain(stderr, COMPLAINT_MAX).0)?;
    let _detached = thread(doing, move || {
        let output = drain(stdout, OUTPUT_MAX);
        // Nobody listens any more if the program was given up.
        let _sent = sender.send((output, child.wait()));
    })?;
    let ((stdout, rest), status) = ended.recv_timeout(patience).map_err(|_| {
        let _gone = killpg(group, Signal::SIGKILL);
        let _reaped = ended.recv_timeout(KILL_PATIENCE);
        timed_out(doing, patience)
    })?;
    if rest == Rest::Dropped {
        let (doing, limit) = (doing.to_owned(), OUTPUT_MAX);
        return Err(EngineError::TooMuch { doing, limit });
    }
    let stderr = complaint.join().unwrap_or_default();
    Ok(ProgramOutput {
        doing: doing.to_owned(),
        status: status.map_err(|source| not_started(doing, &command, source))?,
        stdout,
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

/// The result of [`Follow::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// Some output.
    Bytes(Vec<u8>),
    /// Nothing, for as long as it was waited.
    Quiet,
    /// The program has ended, and all of its output was seen.
    Ended,
}

/// A program that is followed while it runs. It is killed when this is dropped.
#[derive(Debug)]
pub struct Follow {
    child: Child,
    pieces: Option<Receiver<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Follow {
    /// Starts a program to follow both of its outputs.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(doing: &str, mut command: Command) -> Result<Self, EngineError> {
        let mut child = start(doing, &mut command)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, pieces) = sync_channel(PIECES_MAX);
        let mut follow = Self {
            child,
            pieces: Some(pieces),
            readers: Vec::new(),
        };
        let other = sender.clone();
        follow
            .readers
            .push(thread(doing, move || pass_on(stdout, &sender))?);
        follow
            .readers
            .push(thread(doing, move || pass_on(stderr, &other))?);
        Ok(follow)
    }

    /// Waits for some output, at most for `patience`.
    #[must_use]
    pub fn next(&mut self, patience: Duration) -> Followed {
        let Some(pieces) = &self.pieces else {
            return Followed::Ended;
        };
        match pieces.recv_timeout(patience) {
            Ok(bytes) => Followed::Bytes(bytes),
            Err(RecvTimeoutError::Timeout) => Followed::Quiet,
            Err(RecvTimeoutError::Disconnected) => Followed::Ended,
        }
    }

    /// Returns the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the program and its children, and waits for its end.
    pub fn kill(&mut self) {
        let _gone = killpg(group_of(&self.child), Signal::SIGKILL);
        let _status = self.child.wait();
    }

    /// Returns the exit code of the program, if it has ended; 128 and the signal if it was killed.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn exit_code(&mut self) -> io::Result<Option<i32>> {
        let status = self.child.try_wait()?;
        Ok(status.map(|status| {
            let signal = status.signal().map(|signal| 128 + signal);
            status.code().or(signal).unwrap_or(i32::MAX)
        }))
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.pieces = None; // a reader that waits for room gives up
        self.kill();
        for reader in self.readers.drain(..) {
            let _ended = reader.join();
        }
    }
}

fn start(doing: &str, command: &mut Command) -> Result<Child, EngineError> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|source| not_started(doing, command, source))
}

fn not_started(doing: &str, command: &Command, source: io::Error) -> EngineError {
    EngineError::Start {
        doing: doing.to_owned(),
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}

pub(crate) fn timed_out(doing: &str, after: Duration) -> EngineError {
    let doing = doing.to_owned();
    EngineError::TimedOut { doing, after }
}

/// Returns the group of a program that was started with [`start`].
fn group_of(child: &Child) -> Pid {
    // Process IDs fit an i32 on Linux; no group is called i32::MAX.
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

fn thread<T: Send + 'static>(
    doing: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, EngineError> {
    let named = Builder::new().name("engine".to_owned());
    named.spawn(work).map_err(|source| EngineError::Start {
        doing: doing.to_owned(),
        program: "a thread".to_owned(),
        source,
    })
}

/// Whether there was more output than was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Nothing,
    Dropped,
}

/// Reads to the end, and keeps the first `limit` bytes.
fn drain(pipe: Option<impl Read>, limit: usize) -> (Vec<u8>, Rest) {
    let Some(mut pipe) = pipe else {
        return (Vec::new(), Rest::Nothing);
    };
    let mut kept = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX);
    // A pipe that breaks ends like one that is closed: the program's code says the rest.
    let _read = pipe.by_ref().take(bound).read_to_end(&mut kept);
    let dropped = io::copy(&mut pipe, &mut io::sink()).unwrap_or(0);
    let rest = if dropped > 0 {
        Rest::Dropped
    } else {
        Rest::Nothing
    };
    (kept, rest)
}

fn pass_on(pipe: Option<impl Read>, pieces: &SyncSender<Vec<u8>>) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = vec![0; 16 << 10];
    while let Ok(read @ 1..) = pipe.read(&mut piece) {
        if pieces.send(piece[..read].to_vec()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_complaint_is_part_of_the_error() {
        let answer = call("asking", shell("echo no >&2; exit 3"), LONG).unwrap();
        let error = answer.success().unwrap_err().to_string();
        assert_eq!(error, "asking: no");
        let error = call("asking", shell("exit 3"), LONG).unwrap().success();
        assert!(error.unwrap_err().to_string().contains("exit status: 3"));
        assert_eq!(
            call("asking", shell("echo yes"), LONG)
                .unwrap()
                .success()
                .unwrap(),
            b"yes\n"
        );
    }

    #[test]
    fn who_hangs_is_killed_with_its_children() {
        let error = call(
            "asking",
            shell("sleep 1000 & wait"),
            Duration::from_millis(50),
        );
        assert!(matches!(error, Err(EngineError::TimedOut { .. })));
    }

    #[test]
    fn an_endless_answer_is_not_kept() {
        let endless = shell("head -c 33554433 /dev/zero");
        assert!(matches!(
            call("asking", endless, LONG),
            Err(EngineError::TooMuch { .. })
        ));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = call("asking", Command::new("/nonexistent"), LONG).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }

    #[test]
    fn followed_to_the_end() {
        let mut follow =
            Follow::start("following", shell("echo out; echo err >&2; exit 7")).unwrap();
        let mut seen = Vec::new();
        while let Followed::Bytes(bytes) = follow.next(LONG) {
            seen.extend(bytes);
        }
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.contains("out\n") && seen.contains("err\n"), "{seen}");
        assert_eq!(follow.next(LONG), Followed::Ended);
        while follow.exit_code().unwrap().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(follow.exit_code().unwrap(), Some(7));
    }

    #[test]
    fn dropped_while_it_talks() {
        let mut follow = Follow::start("following", shell("yes")).unwrap();
        assert!(matches!(follow.next(LONG), Followed::Bytes(_)));
        drop(follow);
    }
}
