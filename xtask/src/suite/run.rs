//! Runs one program, and ends it when nothing more comes of it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::unistd::Pid;

use super::family::{Family, VARIABLE};
use super::program::Program;
use super::transcript::Transcript;
use crate::cargo::forget_this_package;

/// How often to look at a program. There are some hundred, and most end at once.
const GLANCE: Duration = Duration::from_millis(20);
/// How long a killed program may take to be gone: one in a system call that cannot be killed never is.
const FAREWELL: Duration = Duration::from_secs(20);

/// When to give up.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// How long a program may run without finishing another test.
    pub(crate) stall: Duration,
    /// When the whole run is over.
    pub(crate) end: Instant,
    /// Set by Ctrl-C.
    pub(crate) interrupted: Arc<AtomicBool>,
}

impl Limits {
    /// Why no other program is to be run, if so.
    pub(crate) fn reached(&self) -> Option<End> {
        if self.interrupted.load(Ordering::Relaxed) {
            Some(End::Interrupted)
        } else if Instant::now() > self.end {
            Some(End::OutOfTime)
        } else {
            None
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// Killed, since it finished no test for too long.
    Stalled,
    /// Killed, since the whole run was over.
    OutOfTime,
    /// Killed by Ctrl-C.
    Interrupted,
}

/// What became of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) end: End,
    pub(crate) transcript: Transcript,
    pub(crate) took: Duration,
    /// All that it wrote.
    pub(crate) log: PathBuf,
}

impl Ran {
    /// Whether it said of itself that all is well.
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }
}

/// Runs a program with more arguments, and shows its output as it comes.
///
/// The output goes to a file in `logs`, not through a pipe: a daemon that a test left behind would keep a pipe
/// open, and this waiting.
pub(crate) fn run(
    program: &Program,
    more: &[&str],
    limits: &Limits,
    logs: &std::path::Path,
    shown: &mut dyn Write,
) -> anyhow::Result<Ran> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let name = program.name.replace(['/', ' '], "-");
    let log = logs.join(format!("{number:04}-{name}.log"));
    fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
    let output = File::options().create_new(true).append(true).open(&log);
    let output = output.with_context(|| format!("making {}", log.display()))?;
    let mark = format!("{}-{number}", std::process::id());
    let started = Instant::now();
    let mut command = Command::new(&program.file);
    forget_this_package(&mut command);
    let mut child = command
        .args(&program.arguments)
        .args(more)
        .current_dir(&program.directory)
        .envs(
            program
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        )
        .env(VARIABLE, &mark)
        .stdin(Stdio::null())
        .stderr(output.try_clone().context("sharing the log")?)
        .stdout(output)
        .process_group(0)
        .spawn()
        .with_context(|| format!("running {}", program.file.display()))?;
    let leader = Pid::from_raw(child.id().try_into().context("a process's number")?);
    let family = Family { leader, mark };
    let mut follower = Follower::new(&log)?;
    let end = follow(&mut child, &mut follower, limits, shown);
    if !matches!(end, Ok(End::Exited(_))) {
        for line in family.describe() {
            writeln!(shown, "{line}")?;
        }
        family.kill();
        bury(&mut child, shown)?;
        follower.read(shown)?;
    }
    Ok(Ran {
        end: end?,
        transcript: follower.finish(),
        took: started.elapsed(),
        log,
    })
}

/// Shows the output until the program ends or a limit is reached.
fn follow(
    child: &mut Child,
    follower: &mut Follower,
    limits: &Limits,
    shown: &mut dyn Write,
) -> anyhow::Result<End> {
    let (mut steps, mut progress) = (0, Instant::now());
    loop {
        let status = child.try_wait().context("waiting for a program")?;
        follower.read(shown)?; // after the look: what it wrote last is there
        if let Some(status) = status {
            return Ok(End::Exited(status));
        }
        if follower.transcript.steps > steps {
            (steps, progress) = (follower.transcript.steps, Instant::now());
        }
        if let Some(end) = limits.reached() {
            return Ok(end);
        }
        if progress.elapsed() > limits.stall {
            return Ok(End::Stalled);
        }
        thread::sleep(GLANCE);
    }
}

fn bury(child: &mut Child, shown: &mut dyn Write) -> anyhow::Result<()> {
    let end = Instant::now() + FAREWELL;
    while child.try_wait().context("waiting for a program")?.is_none() {
        if Instant::now() > end {
            writeln!(shown, "it cannot be killed, and is left behind")?;
            break;
        }
        thread::sleep(GLANCE);
    }
    Ok(())
}

/// Reads a file that grows.
struct Follower {
    file: File,
    /// The beginning of a line whose end is not written yet.
    line: Vec<u8>,
    transcript: Transcript,
}

impl Follower {
    fn new(log: &std::path::Path) -> anyhow::Result<Self> {
        let file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
        Ok(Self {
            file,
            line: Vec::new(),
            transcript: Transcript::default(),
        })
    }

    /// Shows what is new.
    fn read(&mut self, shown: &mut dyn Write) -> io::Result<()> {
        let mut buffer = [0; 16 << 10];
        loop {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return shown.flush();
            }
            shown.write_all(&buffer[..count])?;
            for part in buffer[..count].split_inclusive(|&byte| byte == b'\n') {
                self.line.extend_from_slice(part);
                if part.ends_with(b"\n") {
                    self.take_line();
                }
            }
        }
    }

    fn take_line(&mut self) {
        self.transcript.read(&String::from_utf8_lossy(&self.line));
        self.line.clear();
    }

    fn finish(mut self) -> Transcript {
        self.take_line();
        self.transcript
    }
}
