//! A machine while it is on: what it says on its console, what it is told there, and its end.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};

/// From one line of a machine to the next, where all else is busy too.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is seldom more than this is told of a machine that fails.
const LAST_WORDS: usize = 12;

/// A machine that is on. Its power is cut when this is dropped.
pub(crate) struct Boot {
    child: Child,
    lines: Receiver<String>,
    listener: Option<JoinHandle<()>>,
    /// What it said last.
    heard: Vec<String>,
}

impl Boot {
    /// Turns on the machine that a command boots; what it writes to its disk goes to `run_dir`.
    pub(crate) fn start(qemu: &mut Command, run_dir: &Path) -> anyhow::Result<Self> {
        let mut child = qemu
            .env("YOLOFS_RUN_DIR", run_dir)
            .env("TMPDIR", run_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting QEMU (apt-get install qemu-system-x86)")?;
        let out = child.stdout.take().context("listening to a machine")?;
        let (say, lines) = channel();
        let listener = std::thread::spawn(move || tell_lines(out, |line| say.send(line).is_ok()));
        Ok(Self {
            child,
            lines,
            listener: Some(listener),
            heard: Vec::new(),
        })
    }

    /// Returns the next line, or `None` if there is none for so long.
    pub(crate) fn next(&mut self, patience: Duration) -> anyhow::Result<Option<String>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                self.heard.push(line.clone());
                if self.heard.len() > LAST_WORDS {
                    self.heard.remove(0);
                }
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine went off by itself"),
        }
    }

    /// Returns the next line, which must come.
    pub(crate) fn must_say(&mut self) -> anyhow::Result<String> {
        let said = self.next(PATIENCE)?;
        said.context("the machine says nothing more")
    }

    /// Types a line on its console.
    pub(crate) fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let console = self.child.stdin.as_mut();
        let console = console.context("a machine has a console")?;
        writeln!(console, "{line}")
            .and_then(|()| console.flush())
            .with_context(|| format!("telling a machine: {line}"))
    }

    /// Returns what it said last, for whoever looks for the reason of a failure.
    pub(crate) fn last_words(&self) -> String {
        self.heard.join(" / ")
    }

    /// Cuts its power.
    pub(crate) fn cut(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cutting the power")?;
        self.child.wait().context("waiting for a machine's end")?;
        match self.listener.take().map(JoinHandle::join) {
            Some(Err(_)) => bail!("who listens to a machine panicked"),
            _ => Ok(()),
        }
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // Nothing is left to end after a cut.
        if self.listener.is_some()
            && let Err(error) = self.cut()
        {
            eprintln!("ending a machine: {error:#}");
        }
    }
}

/// Hands on what a machine says, line by line, until it falls silent or nobody listens. The last
/// line of one that was cut off is not whole, and is no line.
fn tell_lines(out: ChildStdout, mut tell: impl FnMut(String) -> bool) {
    let mut out = BufReader::new(out);
    let mut line = Vec::new();
    while out.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if !tell(String::from_utf8_lossy(&line).trim().to_owned()) {
            return;
        }
        line.clear();
    }
}
