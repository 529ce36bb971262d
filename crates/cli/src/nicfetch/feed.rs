//! Chunks made of what the mirror has: each image that was asked for, or that clients have pulled,
//! becomes a source, from the mirror's own blobs.
//!
//! One thread, one image at a time, and none while the machine is pressed. What is to be done is noted
//! on the disk first, so that it is taken up again after a restart; doing it twice does no harm.
//!
//! ```text
//! STORE/feed/<hash of the name>     {"name": …, "digest": …, "done": …}
//! ```

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use blocks::{ContentId, Digest};
use nicfetch::Stay;
use nicfetch::load::{Level, Load};
use nicfetch::mirror::{Fed, Feed, Mirror, WholeImage};
use oci::{ImageConfig, LayerBlob, Manifest};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::image::take_image;
use super::shelf::Here;

/// Images that may wait. One that finds no place is taken up with the next pull, or the next start.
const WAITING_MAX: usize = 1024;
/// How often it is looked whether clients have pulled something, or the machine has time again.
const LOOK: Duration = Duration::from_secs(1);
/// How often all tags are looked at, whatever has changed.
const LOOK_AT_ALL: Duration = Duration::from_secs(60);
/// A configuration has some KiB.
const CONFIG_MAX: u64 = 8 << 20;

/// Which images are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Those that the operator asks for.
    WhenAsked,
    /// Those that clients pull, too.
    WhenPulled,
}

/// Takes images until it is dropped.
pub(super) struct Feeder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    mirror: Arc<Mirror>,
    load: Arc<Load>,
    shelf: Here,
    dir: PathBuf,
    taken: Taken,
    state: Mutex<State>,
    /// Held while a note is written.
    noting: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<WholeImage>,
    at: Option<WholeImage>,
    done: u64,
    failed: u64,
    /// What became, or did not become, of which name: the digest of its manifest.
    seen: HashMap<String, String>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("dir", &self.dir)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Takes the next image out, unless the machine is pressed: nobody waits for it.
    fn due(&mut self, level: Level) -> Option<WholeImage> {
        if level >= Level::Careful {
            return None;
        }
        let image = self.queue.pop_front()?;
        self.at = Some(image.clone());
        Some(image)
    }
}

/// What is noted of an image.
#[derive(Debug, Deserialize, Serialize)]
struct Note {
    name: String,
    digest: String,
    done: bool,
}

impl Feeder {
    /// Starts, with what an earlier process left to do. Notes lie in `dir`.
    ///
    /// # Errors
    /// If they cannot be read, or no thread can be had.
    pub(super) fn start(
        mirror: Arc<Mirror>,
        load: Arc<Load>,
        shelf: Here,
        dir: PathBuf,
        taken: Taken,
    ) -> anyhow::Result<Self> {
        let reading = || format!("reading what is to be taken, in {}", dir.display());
        fs::create_dir_all(&dir).with_context(reading)?;
        let state = left_in(&dir, &mirror).with_context(reading)?;
        let shared = Arc::new(Shared {
            mirror,
            load,
            shelf,
            dir,
            taken,
            state: Mutex::new(state),
            noting: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let feeding = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("nicfetch-feed".to_owned())
            .spawn(move || feeding.run())
            .context("starting the thread that takes images")?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Returns what is told of images.
    pub(super) fn feed(&self) -> Arc<dyn Feed> {
        Arc::clone(&self.shared) as Arc<dyn Feed>
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        // Under the lock, so that it is not between looking and waiting.
        drop(self.shared.state.lock());
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic is on the log, and costs speed only.
            let _ended = thread.join();
        }
    }
}

/// Returns what earlier processes have noted.
fn left_in(dir: &Path, mirror: &Mirror) -> io::Result<State> {
    let mut state = State::default();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some() {
            continue; // was being written when the power went
        }
        let note = fs::read(&path)?;
        let Ok(note) = serde_json::from_slice::<Note>(&note) else {
            log::warn!("{} is no note of an image: left alone", path.display());
            continue;
        };
        let image = mirror.image(&note.name, &note.digest);
        match image.filter(|_| !note.done && state.queue.len() < WAITING_MAX) {
            Some(image) => state.queue.push_back(image),
            None => {
                state.seen.insert(note.name, note.digest);
            }
        }
    }
    Ok(state)
}

impl Feed for Shared {
    fn want(&self, image: WholeImage) -> io::Result<()> {
        self.note(&image, false)?;
        let mut state = self.state.lock();
        let same = |other: &WholeImage| *other == image;
        if state.queue.iter().any(same) || state.at.as_ref().is_some_and(same) {
            return Ok(());
        }
        if state.queue.len() >= WAITING_MAX {
            return Err(io::Error::other("too many images wait to be taken"));
        }
        state.queue.push_back(image);
        self.wake.notify_all();
        Ok(())
    }

    fn fed(&self) -> Fed {
        let state = self.state.lock();
        Fed {
            at: state.at.as_ref().map(|image| image.name.clone()),
            waiting: state.queue.len() as u64,
            done: state.done,
            failed: state.failed,
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut looked = (None, Instant::now());
        while let Some(image) = self.next(&mut looked) {
            let taken = self.take(&image);
            if self.stop.load(SeqCst) {
                return; // the note stays: the next process takes it up
            }
            let mut state = self.state.lock();
            state.at = None;
            state.seen.insert(image.name.clone(), image.digest.clone());
            match &taken {
                Ok(()) => state.done += 1,
                Err(_) => state.failed += 1,
            }
            drop(state);
            match taken {
                Ok(()) => log::info!("{} is a source of the block service", image.name),
                Err(error) => log::warn!("{} cannot be taken: {error:#}", image.name),
            }
        }
    }

    /// Waits for the next image; `None` when there will be none.
    fn next(&self, looked: &mut (Option<(usize, usize)>, Instant)) -> Option<WholeImage> {
        loop {
            let mut state = self.state.lock();
            if self.stop.load(SeqCst) {
                return None;
            }
            if let Some(image) = state.due(self.load.level()) {
                return Some(image);
            }
            match self.taken {
                Taken::WhenAsked if state.queue.is_empty() => self.wake.wait(&mut state),
                Taken::WhenAsked => {
                    let _timed_out = self.wake.wait_for(&mut state, LOOK);
                }
                Taken::WhenPulled => {
                    let _timed_out = self.wake.wait_for(&mut state, LOOK);
                    drop(state);
                    self.look(looked);
                }
            }
        }
    }

    /// Wants what clients have pulled since it was looked last.
    fn look(&self, looked: &mut (Option<(usize, usize)>, Instant)) {
        let now = self.mirror.pulse();
        if looked.0 == Some(now) && looked.1.elapsed() < LOOK_AT_ALL {
            return;
        }
        *looked = (Some(now), Instant::now());
        for image in self.mirror.whole_images() {
            let seen = {
                let state = self.state.lock();
                state.seen.get(&image.name) == Some(&image.digest)
            };
            if !seen && let Err(error) = self.want(image) {
                log::warn!("an image that was pulled is not taken now: {error}");
                return;
            }
        }
    }

    fn take(&self, image: &WholeImage) -> anyhow::Result<()> {
        let manifest = Manifest::decode(&image.manifest)?;
        manifest.must_be_image()?;
        let config = self.blob(manifest.config.digest)?;
        let len = config
            .metadata()
            .context("reading its configuration")?
            .len();
        ensure!(len <= CONFIG_MAX, "its configuration has {len} bytes");
        let config = ImageConfig::decode(&fs::read(&config).context("reading its configuration")?)?;
        ensure!(
            config.diff_ids.len() == manifest.layers.len(),
            "it has {} layers, and its configuration {}",
            manifest.layers.len(),
            config.diff_ids.len()
        );
        let layers = manifest.layers.iter().zip(&config.diff_ids);
        let layers = layers.map(|(layer, diff_id)| {
            let file = self.blob(layer.digest)?;
            LayerBlob::from_file(&file, *diff_id).context("opening a layer")
        });
        let layers = layers.collect::<anyhow::Result<Vec<_>>>()?;
        take_image(
            &image.name,
            &layers,
            &self.shelf,
            Stay::WhileUsed,
            &mut |_| match self.stop.load(SeqCst) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        )?;
        self.note(image, true).context("noting that it is taken")
    }

    fn blob(&self, digest: Digest) -> anyhow::Result<PathBuf> {
        match self.mirror.blob_file(&digest.to_string()) {
            Some(file) => Ok(file),
            None => bail!("its blob {digest} is not here any more"),
        }
    }

    /// Notes what becomes of an image, whole or not at all.
    fn note(&self, image: &WholeImage, done: bool) -> io::Result<()> {
        let note = Note {
            name: image.name.clone(),
            digest: image.digest.clone(),
            done,
        };
        let _turn = self.noting.lock();
        let path = self
            .dir
            .join(ContentId::of(image.name.as_bytes()).to_string());
        let aside = path.with_extension("new");
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec(&note)?)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        File::open(&self.dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_the_machine_is_pressed_images_wait() {
        let image = WholeImage {
            name: "docker.io/library/redis:7".to_owned(),
            digest: "sha256:0".to_owned(),
            manifest: Vec::from("{}").into(),
        };
        let mut state = State::default();
        state.queue.push_back(image.clone());
        for level in [Level::Careful, Level::Shedding] {
            assert_eq!(state.due(level), None);
        }
        assert_eq!(state.due(Level::Normal), Some(image.clone()));
        assert_eq!(
            (state.at.take(), state.due(Level::Normal)),
            (Some(image), None)
        );
    }
}
