//! Reconciling the served layers with the desired ones.
//!
//! All changes are made in one way: compare Docker's images, the desired ones and those in the store,
//! and attach and detach the difference. Commands, pulls, removals, and restarts of Docker and of the
//! service all use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use blocks::Digest;
use host::caught::caught;
use parking_lot::Mutex;

use super::images::{Images, RootLayer};
use super::talk::ImageStatus;
use super::wanted::Wanted;
use layers::server::{Attach, LayerPlace, LayerServer};

/// How soon what failed is tried again; it doubles with each failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest time between two tries.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Layers that are attached at the same time: scanning and mounting are some milliseconds of work
/// each, and more threads than that take the processors from those who start containers.
const ATTACHED_AT_A_TIME: usize = 2;

/// Failures, by place.
#[derive(Debug, Default)]
pub struct Problems(BTreeMap<PathBuf, Problem>);

#[derive(Debug)]
struct Problem {
    why: String,
    pause: Duration,
    again_at: Instant,
}

impl Problems {
    /// Returns when something is to be tried again.
    pub fn next_try(&self) -> Option<Instant> {
        self.0.values().map(|problem| problem.again_at).min()
    }

    /// Returns the failures, for people.
    pub fn texts(&self) -> Vec<String> {
        self.0.values().map(|problem| problem.why.clone()).collect()
    }

    /// Has everything tried again at once.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    fn must_wait(&self, dir: &PathBuf) -> bool {
        let problem = self.0.get(dir);
        problem.is_some_and(|problem| Instant::now() < problem.again_at)
    }

    fn add(&mut self, dir: PathBuf, error: &anyhow::Error) {
        let why = format!("{error:#}");
        let before = self.0.get(&dir);
        if before.is_none_or(|before| before.why != why) {
            log::warn!("{why}");
        }
        let pause = before.map_or(RETRY_MIN, |before| (before.pause * 2).min(RETRY_MAX));
        let again_at = Instant::now() + pause;
        self.0.insert(
            dir,
            Problem {
                why,
                pause,
                again_at,
            },
        );
    }
}

/// Serves all known layers of the desired images, and no others.
///
/// # Errors
/// If Docker's directory cannot be read. A failure of one layer is a problem, not an error.
pub fn reconcile(
    server: &dyn LayerServer,
    root: &dyn Images,
    wanted: &Wanted,
    label: &str,
    problems: &mut Problems,
) -> anyhow::Result<()> {
    let images = root.images().context("looking at Docker's images")?;
    let images = images.into_iter().filter(|image| wanted.has(&image.id));
    let mut layers: BTreeMap<PathBuf, RootLayer> = images
        .flat_map(|image| image.layers)
        .map(|layer| (layer.dir.clone(), layer))
        .collect();
    problems.0.retain(|dir, _| layers.contains_key(dir));
    let outdated = server.outdated();
    let mut served = BTreeSet::new();
    for target in server.targets() {
        if layers.contains_key(&target) {
            served.insert(target);
        } else if let Err(error) = server.detach(&target) {
            problems.add(target, &error);
        }
    }
    // What is mounted no more is Docker's to remove.
    root.release_all_but(&server.targets().into_iter().collect())?;
    served.retain(|target| !outdated.contains(target));
    layers.retain(|dir, _| !served.contains(dir) && !problems.must_wait(dir));
    if root.hides_mounts()? {
        if !layers.is_empty() {
            let why = anyhow!(
                "Docker is not running, and will mount {} over itself when it starts: waiting for \
                 that, because what is mounted below before it would be hidden",
                root.data_root().display()
            );
            problems.add(root.data_root().to_owned(), &why);
        }
        return Ok(());
    }
    for (dir, attached) in attach_all(server, root, &layers, label) {
        match attached {
            Ok(()) => {
                let _solved = problems.0.remove(&dir);
            }
            Err(error) => problems.add(dir, &error),
        }
    }
    // A Docker that ended meanwhile took away what it had mounted over its directory, but not what
    // came after that.
    if !layers.is_empty() && root.hides_mounts()? {
        for dir in layers.keys() {
            server.detach(dir)?;
        }
    }
    Ok(())
}

/// Attaches layers, a few at a time, and returns how it went for each.
fn attach_all(
    server: &dyn LayerServer,
    root: &dyn Images,
    layers: &BTreeMap<PathBuf, RootLayer>,
    label: &str,
) -> Vec<(PathBuf, anyhow::Result<()>)> {
    let _later = server.hold_warming();
    let waiting = Mutex::new(layers.iter());
    let done = Mutex::new(Vec::new());
    let work = || {
        // Taken in a statement of its own, so that the lock is not held while attaching.
        while let Some((dir, layer)) = { waiting.lock().next() } {
            let attached =
                caught(|| attach(server, root, layer, label)).unwrap_or_else(|panicked| {
                    Err(panicked)
                        .with_context(|| format!("serving layer {}", layer.diff_id.short()))
                });
            done.lock().push((dir.clone(), attached));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..ATTACHED_AT_A_TIME.min(layers.len()) {
            scope.spawn(work);
        }
        work();
    });
    done.into_inner()
}

fn attach(
    server: &dyn LayerServer,
    root: &dyn Images,
    layer: &RootLayer,
    label: &str,
) -> anyhow::Result<()> {
    // Most layers of a node have no boot image.
    if server.store().layer(&layer.diff_id)?.is_none() {
        return Ok(());
    }
    // Looked at again right before and right after: Docker must find no mount of ours where it
    // removes a layer.
    if !root.hold(layer)? {
        return Ok(());
    }
    let place = LayerPlace {
        layer: layer.diff_id,
        source: layer.dir.clone(),
        target: layer.dir.clone(),
        label: label.to_owned(),
    };
    let attached = server.attach(&place);
    if !root.hold(layer)? {
        // What failed, failed because it is gone.
        return server.detach(&layer.dir);
    }
    if attached? == Attach::Attached {
        log::info!(
            "serving layer {} at {}",
            layer.diff_id.short(),
            layer.dir.display()
        );
    }
    Ok(())
}

/// Returns the images of Docker that have recordings in the store.
///
/// # Errors
/// If Docker's directory or the store cannot be read.
pub fn known_images(
    server: &dyn LayerServer,
    root: &dyn Images,
    wanted: &Wanted,
) -> anyhow::Result<Vec<ImageStatus>> {
    let served: BTreeSet<PathBuf> = server.targets().into_iter().collect();
    let stacks = server.store().stacks().context("looking at the store")?;
    let names: BTreeMap<Digest, String> = stacks
        .into_iter()
        .map(|stack| (stack.image, stack.reference))
        .collect();
    let mut known = Vec::new();
    for image in root.images()? {
        let (id, layers) = (image.id, &image.layers);
        let mut known_layers = 0;
        for layer in layers {
            known_layers += usize::from(server.store().layer(&layer.diff_id)?.is_some());
        }
        if known_layers == 0 && !wanted.images.contains(&id) {
            continue;
        }
        known.push(ImageStatus {
            image: id,
            reference: names.get(&image.config).cloned().or(image.name),
            wanted: wanted.has(&id),
            layers: layers.len(),
            known_layers,
            served_layers: layers.iter().filter(|l| served.contains(&l.dir)).count(),
        });
    }
    Ok(known)
}
