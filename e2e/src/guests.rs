//! Readers behind walls: a container whose root lies over the mount, a virtual machine whose disk
//! and kernel are files of it. Both read the whole tree again and again, and print the checksum
//! of each file; what they print is compared out here.

mod container;
mod vm;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;

use crate::commands::until;
use crate::lab::Lab;
use crate::tally::Outcome;
use crate::{Guest, Rng, Tally, Truth};
use container::Container;

/// A machine boots in 4 s under emulation; on a busy one, and from a source that is held up, in
/// many times that.
const ARRIVAL: Duration = Duration::from_secs(300);

/// How much of what a guest said before its first checksum is told if there never is one.
const LAST_WORDS: usize = 10;

/// A guest that runs.
#[derive(Debug)]
pub(crate) struct Visit {
    guest: Guest,
    child: Child,
    container: Option<Container>,
    heard: Arc<Mutex<Heard>>,
    listener: Option<JoinHandle<()>>,
}

/// What came out of a guest.
#[derive(Debug, Default)]
struct Heard {
    tally: Tally,
    /// When it last said something.
    last: Option<Instant>,
    /// What it said while it came up.
    before: Vec<String>,
    /// Whether it is being ended, so that nothing it says counts.
    ending: bool,
}

impl Visit {
    /// Starts a guest over what is mounted at `root`, and waits until it reads.
    pub(crate) fn start(
        guest: Guest,
        lab: &Lab,
        root: &Path,
        truth: &Truth,
        rng: &mut Rng,
    ) -> anyhow::Result<Self> {
        let (mut child, container) = match guest {
            Guest::Container => {
                let container = Container::make(lab, root)?;
                (container.run()?, Some(container))
            }
            Guest::Vm => (vm::boot(lab, root, rng)?, None),
        };
        let out = child.stdout.take().context("listening to a guest")?;
        let heard = Arc::new(Mutex::new(Heard::default()));
        let listener = listen(out, Arc::clone(&heard), truth.digests());
        let mut visit = Self {
            guest,
            child,
            container,
            heard,
            listener: Some(listener),
        };
        visit.await_checksum(Instant::now() + ARRIVAL)?;
        Ok(visit)
    }

    pub(crate) const fn guest(&self) -> Guest {
        self.guest
    }

    /// Ends it once it has read on, and returns what it saw.
    ///
    /// # Errors
    /// If it ended by itself, or what it asked is not answered.
    pub(crate) fn stop(mut self, deadline: Instant) -> anyhow::Result<Tally> {
        self.await_checksum(deadline)?;
        self.end()?;
        Ok(std::mem::take(&mut self.heard.lock().tally))
    }

    /// Waits until it has printed another checksum.
    fn await_checksum(&mut self, deadline: Instant) -> anyhow::Result<()> {
        let read = |heard: &Mutex<Heard>| heard.lock().tally.took.count();
        let before = read(&self.heard);
        while read(&self.heard) == before {
            let ended = self.child.try_wait()?;
            ensure!(
                ended.is_none() && Instant::now() < deadline,
                "the {:?} reads no more ({}); at first it said: {}",
                self.guest,
                ended.map_or("it is still there".to_owned(), |status| status.to_string()),
                self.heard.lock().before.join(" / ")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.heard.lock().ending = true;
        match self.container.take() {
            Some(container) => container.remove(&mut self.child)?,
            None => {
                self.child.kill().context("ending a guest")?;
                self.child.wait().context("waiting for a guest's end")?;
            }
        }
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        until("a guest to fall silent", || Ok(listener.is_finished()))?;
        if listener.join().is_err() {
            bail!("who listens to a guest panicked");
        }
        Ok(())
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // Nothing is left to end after a stop.
        if self.listener.is_some()
            && let Err(error) = self.end()
        {
            eprintln!("ending the {:?}: {error:#}", self.guest);
        }
    }
}

/// Compares what a guest says, line by line, until it falls silent.
fn listen(
    out: ChildStdout,
    heard: Arc<Mutex<Heard>>,
    truth: BTreeMap<String, String>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        // The last line of one that was killed is not whole.
        while out.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
            let said = String::from_utf8_lossy(&line).trim().to_owned();
            heard.lock().take(&said, &truth);
            line.clear();
        }
    })
}

impl Heard {
    /// Takes a line: a checksum, or words.
    fn take(&mut self, said: &str, truth: &BTreeMap<String, String>) {
        if self.ending {
            return;
        }
        let now = Instant::now();
        match checksum(said, truth) {
            Some(outcome) => {
                let since = self.last.map_or(Duration::ZERO, |last| now - last);
                self.tally.note(since, &outcome);
            }
            // A guest that comes up says a lot; one that reads has nothing to say but checksums.
            None if self.last.is_none() => {
                self.before.push(said.to_owned());
                if self.before.len() > LAST_WORDS {
                    self.before.remove(0);
                }
                return;
            }
            None => self.tally.note(
                now - self.last.unwrap_or(now),
                &Err(std::io::Error::other(said)),
            ),
        }
        self.last = Some(now);
    }
}

/// Judges a line as `sha256sum` prints it, or returns `None` if it is no such line.
fn checksum(said: &str, truth: &BTreeMap<String, String>) -> Option<Outcome> {
    let (digest, path) = said.split_once("  /")?;
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let right = truth.get(path).is_some_and(|known| known == digest);
    Some(Ok(
        (!right).then(|| format!("{path}: its checksum is {digest}"))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_is_told_apart() {
        let digest = "ab".repeat(32);
        let truth = BTreeMap::from([("warm/f".to_owned(), digest.clone())]);
        let mut heard = Heard::default();
        for said in [
            "Linux version 6".to_owned(),
            format!("{digest}  /warm/f"),
            format!("{}  /warm/f", "cd".repeat(32)),
            format!("{digest}  /unheard/of"),
            "sha256sum: /warm/f: I/O error".to_owned(),
        ] {
            heard.take(&said, &truth);
        }
        let tally = &heard.tally;
        assert_eq!(
            (tally.right, tally.wrong_count, tally.failures()),
            (1, 2, 1),
            "{tally}"
        );
        assert_eq!(heard.before, ["Linux version 6"]);
        assert!(tally.to_string().contains("I/O error"), "{tally}");
        heard.ending = true;
        heard.take("killed", &truth);
        assert_eq!(heard.tally.failures(), 1);
    }
}
