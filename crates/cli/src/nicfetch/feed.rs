//! Chunks made of what the mirror has: each image that was asked for, or that clients have pulled,
//! becomes a source, from the mirror's own blobs.
//!
//! One thread, one image at a time, and none while the machine is pressed. What is to be done is noted
//! on the disk first, so that it is taken up again after a restart; doing it twice does no harm.
//! An image that fails, or with which the process ends, is not tried for ever: each attempt is noted
//! before it begins, and after [`TRIES`] of them it is set aside until somebody asks for it.

mod notes;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use nicfetch::Stay;
use nicfetch::load::{Level, Load};
use nicfetch::mirror::{Fed, Feed, Mirror, SetAside, WholeImage};
use oci::{ImageConfig, LayerBlob, Manifest};
use parking_lot::{Condvar, Mutex};

use super::image::{CONFIG_MAX, take_image};
use super::shelf::Here;
use notes::{Note, Notes};

/// Images that may wait. One that finds no place is taken up with the next pull, or the next start.
const WAITING_MAX: usize = 1024;
/// Names of which it is remembered what became of them.
const SEEN_MAX: usize = 20_000;
/// Attempts at an image that nobody has asked for by hand. One may have failed for another reason: a
/// full disk, or a process that was killed for what others did.
const TRIES: u32 = 2;
/// Images that were set aside, as they are shown.
const ASIDE_SHOWN: usize = 100;
/// How often it is looked whether clients have pulled something, or the machine has time again.
const LOOK: Duration = Duration::from_secs(1);
/// How often all tags are looked at, whatever has changed.
const LOOK_AT_ALL: Duration = Duration::from_secs(60);

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
    notes: Notes,
    taken: Taken,
    state: Mutex<State>,
    wake: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Wanted>,
    at: Option<WholeImage>,
    done: u64,
    failed: u64,
    /// What became, or did not become, of which name: the digest of its manifest.
    seen: HashMap<String, String>,
    /// What is not tried again by itself, by name.
    aside: BTreeMap<String, SetAside>,
}

/// An image that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    image: WholeImage,
    /// Attempts that were begun already.
    tries: u32,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("notes", &self.notes)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Takes the next image out, unless the machine is pressed: nobody waits for it.
    fn due(&mut self, level: Level) -> Option<Wanted> {
        if level >= Level::Careful {
            return None;
        }
        let wanted = self.queue.pop_front()?;
        self.at = Some(wanted.image.clone());
        Some(wanted)
    }

    /// Puts an image into the queue, unless it is there or being taken.
    fn enqueue(&mut self, wanted: Wanted) -> io::Result<()> {
        let image = &wanted.image;
        if let Some(waiting) = self.queue.iter_mut().find(|other| other.image == *image) {
            waiting.tries = waiting.tries.min(wanted.tries);
            return Ok(());
        }
        if self.at.as_ref() == Some(image) {
            return Ok(());
        }
        if self.queue.len() >= WAITING_MAX {
            return Err(io::Error::other("too many images wait to be taken"));
        }
        self.queue.push_back(wanted);
        Ok(())
    }

    /// Sets an image aside.
    fn set_aside(&mut self, name: &str, digest: &str, why: &str) {
        let aside = SetAside {
            name: name.to_owned(),
            digest: digest.to_owned(),
            why: why.to_owned(),
        };
        self.aside.insert(name.to_owned(), aside);
    }

    /// Takes in what an earlier process has noted; `image` is what the mirror knows of it.
    fn take_up(&mut self, note: Note, image: Option<WholeImage>) {
        if note.is_set_aside() {
            self.set_aside(&note.name, &note.digest, note.why());
        } else if let Some(image) = image.filter(|_| !note.done) {
            let wanted = Wanted {
                image,
                tries: note.tries,
            };
            if self.enqueue(wanted).is_ok() {
                return; // not seen yet
            }
        }
        self.seen.insert(note.name, note.digest);
    }
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
        let notes = Notes::open(dir).context("reading which images are to be taken")?;
        let state = left_in(&notes, &mirror).context("reading which images are to be taken")?;
        let shared = Arc::new(Shared {
            mirror,
            load,
            shelf,
            notes,
            taken,
            state: Mutex::new(state),
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

/// Returns what earlier processes have noted. What the mirror does not know any more is forgotten, unless
/// it was set aside.
fn left_in(notes: &Notes, mirror: &Mirror) -> io::Result<State> {
    let mut state = State::default();
    for note in notes.read()? {
        let image = mirror.document(&note.digest).map(|_| WholeImage {
            name: note.name.clone(),
            digest: note.digest.clone(),
        });
        if image.is_none() && !note.is_set_aside() {
            notes.remove(&note.name)?;
            continue;
        }
        if note.is_set_aside() {
            log::warn!("{} is not tried again: {}", note.name, note.why());
        }
        state.take_up(note, image);
    }
    Ok(state)
}

impl Feed for Shared {
    fn want(&self, image: WholeImage) -> io::Result<()> {
        self.queue(image)
    }

    fn fed(&self) -> Fed {
        let state = self.state.lock();
        Fed {
            at: state.at.as_ref().map(|image| image.name.clone()),
            waiting: state.queue.len() as u64,
            done: state.done,
            failed: state.failed,
            set_aside: state.aside.len() as u64,
            aside: state.aside.values().take(ASIDE_SHOWN).cloned().collect(),
        }
    }
}

impl Shared {
    /// Has an image taken, as if it had never been tried.
    fn queue(&self, image: WholeImage) -> io::Result<()> {
        self.notes.write(&Note::of(&image, 0))?;
        let mut state = self.state.lock();
        state.aside.remove(&image.name);
        state.enqueue(Wanted { image, tries: 0 })?;
        self.wake.notify_all();
        Ok(())
    }

    fn run(&self) {
        let mut looked = (None, Instant::now());
        while let Some(Wanted { image, tries }) = self.next(&mut looked) {
            let mut note = Note::of(&image, tries + 1);
            // Before the work begins: if it ends this process, the next one knows of it.
            let begun = self.notes.write(&note).context("noting that it is tried");
            let taken = begun.and_then(|()| self.take(&image));
            if self.stop.load(SeqCst) && taken.is_err() {
                // The next process takes it up, and this attempt was none.
                if let Err(error) = self.notes.write(&Note::of(&image, tries)) {
                    log::warn!("noting that {} is to be taken: {error}", image.name);
                }
                return;
            }
            match &taken {
                Ok(()) => {
                    note = Note::done(&image);
                    log::info!("{} is a source of the block service", image.name);
                }
                Err(error) => {
                    note.failed = Some(format!("{error:#}"));
                    log::warn!("{} cannot be taken: {error:#}", image.name);
                }
            }
            if let Err(error) = self.notes.write(&note) {
                log::warn!("noting what became of {}: {error}", image.name);
            }
            if note.is_set_aside() {
                log::warn!("{} is not tried again before it is prewarmed", image.name);
            }
            self.is_over(note);
        }
    }

    /// Counts what became of the image that was being taken.
    fn is_over(&self, note: Note) {
        let mut state = self.state.lock();
        state.at = None;
        match note.done {
            true => state.done += 1,
            false => state.failed += 1,
        }
        if note.is_set_aside() {
            state.set_aside(&note.name, &note.digest, note.why());
        }
        state.seen.insert(note.name, note.digest);
    }

    /// Waits for the next image; `None` when there will be none.
    fn next(&self, looked: &mut (Option<(usize, usize)>, Instant)) -> Option<Wanted> {
        loop {
            let mut state = self.state.lock();
            if self.stop.load(SeqCst) {
                return None;
            }
            if let Some(wanted) = state.due(self.load.level()) {
                return Some(wanted);
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
        let images = self.mirror.whole_images();
        if let Err(error) = self.forget_others(&images) {
            log::warn!("forgetting images that are gone: {error}");
        }
        for image in images {
            let seen = {
                let state = self.state.lock();
                let aside = state.aside.get(&image.name).map(|aside| &aside.digest);
                let waiting = state.queue.iter().any(|wanted| wanted.image == image);
                waiting
                    || aside == Some(&image.digest)
                    || state.seen.get(&image.name) == Some(&image.digest)
            };
            if !seen && let Err(error) = self.queue(image) {
                log::warn!("an image that was pulled is not taken now: {error}");
                return;
            }
        }
    }

    /// Forgets names that mean no image that is here, if there are too many. What was set aside is not
    /// forgotten: others must not be able to have it tried again.
    fn forget_others(&self, images: &[WholeImage]) -> io::Result<()> {
        let gone: Vec<String> = {
            let mut state = self.state.lock();
            if state.seen.len() <= SEEN_MAX {
                return Ok(());
            }
            let here: HashSet<&str> = images.iter().map(|image| image.name.as_str()).collect();
            let State { seen, aside, .. } = &mut *state;
            let gone = seen
                .extract_if(|name, _| !here.contains(name.as_str()) && !aside.contains_key(name));
            gone.map(|(name, _)| name).collect()
        };
        gone.iter().try_for_each(|name| self.notes.remove(name))
    }

    fn take(&self, image: &WholeImage) -> anyhow::Result<()> {
        let manifest = self.mirror.document(&image.digest);
        let manifest = manifest.context("its manifest is not here any more")?;
        let manifest = Manifest::decode(&manifest)?;
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
        Ok(())
    }

    fn blob(&self, digest: Digest) -> anyhow::Result<PathBuf> {
        match self.mirror.blob_file(&digest.to_string()) {
            Some(file) => Ok(file),
            None => bail!("its blob {digest} is not here any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str) -> WholeImage {
        WholeImage {
            name: name.to_owned(),
            digest: "sha256:0".to_owned(),
        }
    }

    #[test]
    fn while_the_machine_is_pressed_images_wait() {
        let image = image("docker.io/library/redis:7");
        let wanted = Wanted { image, tries: 0 };
        let mut state = State::default();
        state.enqueue(wanted.clone()).unwrap();
        for level in [Level::Careful, Level::Shedding] {
            assert_eq!(state.due(level), None);
        }
        assert_eq!(state.due(Level::Normal), Some(wanted.clone()));
        assert_eq!(
            (state.at.take(), state.due(Level::Normal)),
            (Some(wanted.image), None)
        );
    }

    #[test]
    fn what_was_tried_too_often_is_not_taken_up() {
        let image = image("docker.io/library/redis:7");
        for tries in 0..4 {
            let mut state = State::default();
            let note = Note::of(&image, tries);
            state.take_up(note, Some(image.clone()));
            let waits = state.queue.front().map(|wanted| wanted.tries);
            let aside = state.aside.get(&image.name).map(|aside| &*aside.why);
            match tries < TRIES {
                true => assert_eq!((waits, aside), (Some(tries), None)),
                false => assert_eq!((waits, aside), (None, Some(notes::DIED))),
            }
        }
    }
}
