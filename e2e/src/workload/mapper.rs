//! Reads through mappings: in a process of its own, because one that fails is a signal.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rawio::mapped::MappedFile;

use super::reader::compare;
use crate::commands::soak;
use crate::tally::Outcome;
use crate::{Rng, Tally, Truth};

/// The process.
#[derive(Debug)]
pub(super) struct Mapper(Option<Child>);

impl Mapper {
    pub(super) fn start(root: &Path, pristine: &Path, seed: u64) -> anyhow::Result<Self> {
        let child = Command::new(soak()?)
            .arg("__map")
            .args([root, pristine])
            .arg(seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting who maps")?;
        Ok(Self(Some(child)))
    }

    /// Ends it, and returns what it saw. That a signal killed it counts as one failure.
    pub(super) fn stop(mut self, deadline: Instant) -> anyhow::Result<Tally> {
        let Some(mut child) = self.0.take() else {
            return Ok(Tally::default());
        };
        // The end of its input tells it to stop.
        drop(child.stdin.take());
        let mut out = child.stdout.take().context("reading what the mapper saw")?;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.0 = Some(child);
                bail!("who maps waits for a page that does not come");
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut json = String::new();
        out.read_to_string(&mut json)?;
        let mut tally = Tally::default();
        match child.wait()? {
            status if status.success() => tally = serde_json::from_str(&json)?,
            status => tally.note(
                Duration::ZERO,
                &Err(std::io::Error::other(format!(
                    "who maps ended with {status}"
                ))),
            ),
        }
        Ok(tally)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It goes when it can: one that waits for a page cannot yet, and is not waited for.
            drop(child.kill());
        }
    }
}

/// Reads files below `root` through mappings until standard input ends, compares them with those
/// below `pristine`, and returns what came of it.
///
/// # Errors
/// If the pristine files cannot be read.
pub fn map_until_told(root: &Path, pristine: &Path, seed: u64) -> anyhow::Result<Tally> {
    let truth = Truth::of(pristine)?;
    let stop = AtomicBool::new(false);
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Whether it ends or fails: nobody wants more.
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            stop.store(true, Relaxed);
        });
        while !stop.load(Relaxed) {
            let (path, bytes) = &truth.files()[rng.index(truth.files().len())];
            let started = Instant::now();
            let outcome = map_one(&root.join(path), path, bytes, &mut rng);
            tally.note(started.elapsed(), &outcome);
            thread::sleep(Duration::from_micros(rng.below(2000)));
        }
    });
    Ok(tally)
}

fn map_one(at: &Path, path: &Path, truth: &[u8], rng: &mut Rng) -> Outcome {
    let file = File::open(at)?;
    if truth.is_empty() {
        return Ok(None);
    }
    let map = MappedFile::map(&file)?;
    let offset = rng.index(truth.len());
    let mut buffer = vec![0xEE; rng.index(200_000)];
    let len = map.copy(offset, &mut buffer);
    let expected = &truth[offset..truth.len().min(offset + buffer.len())];
    Ok(compare(path, offset, &buffer[..len], expected))
}
