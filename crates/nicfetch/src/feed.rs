//! Makes chunks of the mirror's images: each image that was requested, or that clients have pulled,
//! becomes a source, from the mirror's own blobs.
//!
//! One thread, one image at a time, and none under load. The queue is recorded
//! on the disk first, so that it continues after a restart; doing it twice does no harm.
//! An image that fails, or with which the process ends, is not retried for ever: each attempt is recorded
//! before it begins, by the digest of the manifest, and after some of them it is set aside until
//! it is requested.

mod notes;
mod state;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::admin::{Feed, FeedStatus};
use anyhow::{Context as _, bail, ensure};
use blocks::Digest;
use chunks::Stay;
use host::caught::caught_or;
use mirror::{Mirror, WholeImage};
use oci::{CONFIG_MAX, ImageConfig, LayerBlob, Manifest};
use parking_lot::{Condvar, Mutex};
use serving::load::Load;

use crate::image::take_image;
use crate::import_target::LocalTarget;
use notes::{Note, Notes, Tried};
use state::State;

/// How often it is looked whether clients have pulled something, or the machine has time again.
const LOOK: Duration = Duration::from_secs(1);
/// How often all tags are looked at, whatever has changed.
const LOOK_AT_ALL: Duration = Duration::from_secs(60);

/// Which images become sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Those that the operator requests.
    WhenAsked,
    /// Those that clients pull, too.
    WhenPulled,
}

/// Makes sources of images until it is dropped.
pub(crate) struct Feeder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    mirror: Arc<Mirror>,
    load: Arc<Load>,
    target: LocalTarget,
    notes: Notes,
    taken: Taken,
    state: Mutex<State>,
    wake: Condvar,
    stop: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("notes", &self.notes)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl Feeder {
    /// Starts, with the queue of an earlier process. The records are in `dir`.
    ///
    /// # Errors
    /// If they cannot be read, or no thread can be started.
    pub(crate) fn start(
        mirror: Arc<Mirror>,
        load: Arc<Load>,
        target: LocalTarget,
        dir: PathBuf,
        taken: Taken,
    ) -> anyhow::Result<Self> {
        let notes = Notes::open(dir).context("reading the list of images to be imported")?;
        let state =
            left_in(&notes, &mirror).context("reading the list of images to be imported")?;
        let shared = Arc::new(Shared {
            mirror,
            load,
            target,
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

    /// Returns the interface for new images.
    pub(crate) fn feed(&self) -> Arc<dyn Feed> {
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

/// Returns what earlier processes have noted. Names of what the mirror does not know any more are
/// forgotten; attempts are not.
fn left_in(notes: &Notes, mirror: &Mirror) -> io::Result<State> {
    let mut state = State::default();
    for tried in notes.tried()? {
        if tried.is_set_aside() {
            log::warn!("{} is not retried: {}", tried.name, tried.why());
        }
        state.note_tried(tried);
    }
    take_up(&mut state, notes, mirror)?;
    Ok(state)
}

/// Takes in which images are noted. While the mirror does not know which it has, none is forgotten: the next process takes
/// it up.
fn take_up(state: &mut State, notes: &Notes, mirror: &Mirror) -> io::Result<()> {
    if !mirror.knows_images() {
        log::warn!("images that wait to be imported are taken up with the next start");
        return Ok(());
    }
    for note in notes.read()? {
        let image = mirror.document(&note.digest).map(|_| note.image());
        if image.is_none() {
            notes.remove(&note.name)?;
            continue;
        }
        state.take_up(note, image);
    }
    Ok(())
}

impl Feed for Shared {
    fn want(&self, image: WholeImage) -> io::Result<()> {
        // As if it had never been tried, but only if it finds a place.
        let forgiven = {
            let mut state = self.state.lock();
            state.enqueue(&image).map_err(io::Error::other)?;
            state.forgive(&image.digest)
        };
        let noted = match &forgiven {
            Some(tried) => self.notes.remove_tried(&tried.digest),
            None => Ok(()),
        };
        let noted = noted.and_then(|()| self.notes.write(&Note::of(&image)));
        if noted.is_err() {
            let mut state = self.state.lock();
            state.withdraw(&image);
            forgiven
                .into_iter()
                .for_each(|tried| state.note_tried(tried));
        }
        self.wake.notify_all();
        noted
    }

    fn fed(&self) -> FeedStatus {
        self.state.lock().fed()
    }
}

impl Shared {
    fn run(&self) {
        let mut looked = (None, Instant::now());
        while let Some(image) = self.next(&mut looked) {
            let (tried, forgotten) = self.state.lock().begin(&image);
            if let Some(forgotten) = forgotten
                && let Err(error) = self.notes.remove_tried(&forgotten.digest)
            {
                log::warn!("forgetting attempts at {}: {error}", forgotten.name);
            }
            // Before the work begins: if it ends this process, the next one knows of it.
            let begun = self.notes.write_tried(&tried);
            let begun = begun.context("recording the attempt");
            // An image that makes this panic is one that fails: it is set aside, and the next has its turn.
            let taken = begun.and_then(|()| caught_or(|| self.take(&image)));
            if self.stop.load(SeqCst) && taken.is_err() {
                // The next process takes it up, and this attempt was none.
                let tried = self.state.lock().was_none(&image);
                if let Err(error) = self.note_tried(&image, tried.as_ref()) {
                    log::warn!(
                        "recording that {} is still to be imported: {error}",
                        image.name
                    );
                }
                return;
            }
            if let Err(error) = self.is_over(&image, taken) {
                log::warn!("recording the result of importing {}: {error}", image.name);
            }
        }
    }

    /// Notes what became of the image that was being taken.
    fn is_over(&self, image: &WholeImage, taken: anyhow::Result<()>) -> io::Result<()> {
        let Err(error) = taken else {
            log::info!("{} is a source of the block service", image.name);
            self.state.lock().succeeded(image);
            self.notes.remove_tried(&image.digest)?;
            return self.notes.write(&Note::done(image));
        };
        let why = format!("{error:#}");
        log::warn!("cannot import {}: {why}", image.name);
        let tried = self.state.lock().has_failed(image, &why);
        if tried.as_ref().is_some_and(Tried::is_set_aside) {
            log::warn!(
                "{} is not retried until `nicfetch prewarm` asks for it",
                image.name
            );
        }
        self.note_tried(image, tried.as_ref())
    }

    fn note_tried(&self, image: &WholeImage, tried: Option<&Tried>) -> io::Result<()> {
        match tried {
            Some(tried) => self.notes.write_tried(tried),
            None => self.notes.remove_tried(&image.digest),
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
            if state.takes_up_left_over() {
                drop(state);
                self.take_up_left_over();
                continue;
            }
            match self.taken {
                Taken::WhenAsked if state.is_idle() => self.wake.wait(&mut state),
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
        if !self.mirror.knows_images() {
            return;
        }
        *looked = (Some(now), Instant::now());
        let images = self.mirror.whole_images();
        if let Err(error) = self.forget_others(&images) {
            log::warn!("removing records of images that are gone: {error}");
        }
        for image in images {
            if let Err(error) = self.take_if_new(&image) {
                log::warn!("cannot import a pulled image now: {error}");
                return;
            }
        }
    }

    /// Has an image taken that clients have pulled, unless it was seen.
    fn take_if_new(&self, image: &WholeImage) -> io::Result<()> {
        if self.state.lock().knows(image) {
            return Ok(());
        }
        // Noted first: it may be taken, and that noted, as soon as it waits.
        self.notes.write(&Note::of(image))?;
        let mut state = self.state.lock();
        state.enqueue(image).map_err(io::Error::other)
    }

    /// Takes up what was noted and had found no place.
    fn take_up_left_over(&self) {
        let mut found = State::default();
        let read = take_up(&mut found, &self.notes, &self.mirror);
        if let Err(error) = read {
            log::warn!("reading the list of images to be imported: {error}");
        }
        self.state.lock().take_over(found);
    }

    /// Forgets names that mean no image that is here, if there are too many.
    fn forget_others(&self, images: &[WholeImage]) -> io::Result<()> {
        let gone = self.state.lock().forget_others(images);
        gone.iter().try_for_each(|name| self.notes.remove(name))
    }

    fn take(&self, image: &WholeImage) -> anyhow::Result<()> {
        let manifest = self.mirror.document(&image.digest);
        let manifest = manifest.context("its manifest was evicted")?;
        let manifest = Manifest::decode(&manifest)?;
        manifest.must_be_image()?;
        let config = self.blob(manifest.config.digest)?;
        let len = config
            .metadata()
            .context("reading its configuration")?
            .len();
        ensure!(len <= CONFIG_MAX, "its configuration has {len} bytes");
        let config = ImageConfig::decode(&fs::read(&config).context("reading its configuration")?)?;
        let layers = config.layers_of(&manifest)?.map(|(layer, diff_id)| {
            let file = self.blob(layer.digest)?;
            LayerBlob::from_file(&file, diff_id).context("opening a layer")
        });
        let layers = layers.collect::<anyhow::Result<Vec<_>>>()?;
        take_image(
            &image.name,
            &layers,
            &self.target,
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
            None => bail!("its blob {digest} was evicted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use mirror::MirrorConfig;
    use mirror::blobs::BlobConfig;

    use super::*;

    #[test]
    fn what_waits_is_not_forgotten_while_the_catalog_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("mirror")).unwrap();
        std::os::unix::fs::symlink("nowhere/catalog", at("mirror/catalog.redb")).unwrap();
        let config = MirrorConfig {
            tag_ttl: Duration::ZERO,
            absent_ttl: Duration::ZERO,
            blobs: BlobConfig {
                budget: 1 << 30,
                hold_back: 0,
                policy: chunks::PolicyKind::Lru,
            },
            load: Arc::default(),
            fetch_rate: None,
        };
        let notes = Notes::open(at("feed")).unwrap();
        let image = WholeImage {
            name: "docker.io/library/a:1".to_owned(),
            digest: format!("sha256:{:064}", 1),
        };
        notes.write(&Note::of(&image)).unwrap();
        let waiting = || {
            let mirror = Mirror::open(&at("mirror"), config.clone(), Vec::new()).unwrap();
            let _state = left_in(&notes, &mirror).unwrap();
            notes.read().unwrap().len()
        };
        assert_eq!(waiting(), 1);
        // Of what the mirror does not have, nothing is imported.
        fs::remove_file(at("mirror/catalog.redb")).unwrap();
        assert_eq!(waiting(), 0);
    }
}
