//! An engine that pulls images, tick by tick: it knows nothing of `tiering` but its names.

use std::collections::{BTreeMap, HashMap, HashSet};

use blocks::Digest;
use tiering::lass::PullId;

/// How an engine works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    /// Downloads at once, of all pulls together.
    pub(crate) downloads: usize,
    /// How it stores layers.
    pub(crate) unpack: Unpack,
    /// Ticks to store 10 units of a layer; 0 is a disk that keeps up with every network.
    pub store_ticks_per_10: u64,
    /// For the jitter of rates.
    pub(crate) seed: u64,
}

/// How an engine stores layers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unpack {
    /// One after another, the lowest first: dockerd, containerd before 2.2.
    OneByOne,
    /// So many at once, in any order.
    AtOnce(usize),
}

/// A compressed layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Blob {
    /// Its name.
    pub(crate) name: u8,
    /// Units to download.
    pub(crate) size: u64,
}

impl Blob {
    /// Its name as registries write it.
    pub(crate) fn digest(self) -> Digest {
        Digest([self.name; 32])
    }
}

/// An image to pull.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Who pulls it.
    pub(crate) pull: PullId,
    /// When.
    pub(crate) begins: u64,
    /// Its layers, the lowest first.
    pub(crate) layers: Vec<Blob>,
}

/// Something that is seen of an engine from outside.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// When.
    pub(crate) at: u64,
    /// What.
    pub(crate) what: Seen,
}

/// What is seen.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// A pull begins, and has to fetch these.
    Begins { pull: PullId, missing: Vec<Blob> },
    /// A blob is there.
    Fetched(Blob),
    /// The first file of a layer is made. When the last download of its pull ended or will end is
    /// not seen; it is told for comparison.
    FirstFile { pull: PullId, last_download: u64 },
    /// A pull has stored all its layers.
    Ends(PullId),
}

/// How far a pull is.
struct Progress<'a> {
    image: &'a Image,
    /// For each layer: not begun, or the tick at which it is stored.
    stored: Vec<Option<u64>>,
}

/// Pulls `images` and returns what is seen, in order.
pub(crate) fn run(engine: &Engine, images: &[Image]) -> Vec<Event> {
    let mut random = Random::new(engine.seed);
    let mut rates: HashMap<u8, u64> = HashMap::new();
    let mut queue: Vec<(Blob, u64)> = Vec::new(); // blob and what is left of it, in thousandths
    let mut fetched: BTreeMap<u8, u64> = BTreeMap::new();
    let mut pulls: Vec<Progress> = Vec::new();
    let mut events = Vec::new();
    let mut waiting: Vec<&Image> = images.iter().collect();
    for at in 0.. {
        waiting.retain(|image| {
            let begins = image.begins <= at;
            if begins {
                let missing = begin(image, &mut queue, &fetched);
                let pull = image.pull;
                events.push(seen(at, Seen::Begins { pull, missing }));
                let stored = vec![None; image.layers.len()];
                pulls.push(Progress { image, stored });
            }
            !begins
        });
        for (blob, left) in queue.iter_mut().take(engine.downloads) {
            let rate = *rates
                .entry(blob.name)
                .or_insert_with(|| 700 + random.below(600));
            *left = left.saturating_sub(rate);
        }
        queue.retain(|(blob, left)| {
            if *left == 0 {
                fetched.insert(blob.name, at);
                events.push(seen(at, Seen::Fetched(*blob)));
            }
            *left > 0
        });
        for pull in &mut pulls {
            store(engine, pull, at, &fetched, &mut events);
        }
        pulls.retain(|pull| {
            let done = pull
                .stored
                .iter()
                .all(|end| end.is_some_and(|end| end <= at));
            if done {
                events.push(seen(at, Seen::Ends(pull.image.pull)));
            }
            !done
        });
        if waiting.is_empty() && pulls.is_empty() {
            break;
        }
    }
    tell_last_downloads(events, images, &fetched)
}

fn seen(at: u64, what: Seen) -> Event {
    Event { at, what }
}

/// Queues what is missing of an image, and returns it.
fn begin(image: &Image, queue: &mut Vec<(Blob, u64)>, fetched: &BTreeMap<u8, u64>) -> Vec<Blob> {
    let missing = image
        .layers
        .iter()
        .filter(|blob| !fetched.contains_key(&blob.name));
    let missing: Vec<Blob> = missing.copied().collect();
    for blob in &missing {
        if queue.iter().all(|(other, _)| other.name != blob.name) {
            queue.push((*blob, blob.size * 1000));
        }
    }
    missing
}

/// Begins to store what can be stored now.
fn store(
    engine: &Engine,
    pull: &mut Progress,
    at: u64,
    fetched: &BTreeMap<u8, u64>,
    events: &mut Vec<Event>,
) {
    for layer in 0..pull.stored.len() {
        let blob = pull.image.layers[layer];
        let ends = |end: &Option<u64>| end.is_some_and(|end| end <= at);
        let busy = pull
            .stored
            .iter()
            .filter(|end| end.is_some_and(|end| end > at))
            .count();
        let turn = match engine.unpack {
            Unpack::OneByOne => pull.stored[..layer].iter().all(ends),
            Unpack::AtOnce(most) => busy < most,
        };
        if pull.stored[layer].is_none() && turn && fetched.contains_key(&blob.name) {
            pull.stored[layer] = Some(at + blob.size * engine.store_ticks_per_10 / 10);
            let (pull, last_download) = (pull.image.pull, 0);
            events.push(seen(
                at,
                Seen::FirstFile {
                    pull,
                    last_download,
                },
            ));
        }
    }
}

/// Fills in when the last download of each pull ended, as is known only now.
fn tell_last_downloads(
    mut events: Vec<Event>,
    images: &[Image],
    fetched: &BTreeMap<u8, u64>,
) -> Vec<Event> {
    let last: HashMap<PullId, u64> = images
        .iter()
        .map(|image| {
            let ends = image.layers.iter().map(|blob| fetched[&blob.name]);
            (image.pull, ends.max().unwrap_or(0))
        })
        .collect();
    for event in &mut events {
        if let Seen::FirstFile {
            pull,
            last_download,
        } = &mut event.what
        {
            *last_download = last[pull];
        }
    }
    events
}

/// Returns which of `layers` is downloaded last when each download has a share of the network
/// that is up to 30 % off, from its beginning to its end.
pub(crate) fn last_of(layers: &[u64], downloads: usize, random: &mut Random) -> usize {
    let mut left: Vec<f64> = layers.iter().map(|size| *size as f64).collect();
    let rates: Vec<f64> = layers
        .iter()
        .map(|_| 0.7 + 0.001 * random.below(601) as f64)
        .collect();
    let mut done = HashSet::new();
    let mut last = 0;
    while done.len() < layers.len() {
        let running: Vec<usize> = (0..layers.len())
            .filter(|layer| !done.contains(layer))
            .take(downloads)
            .collect();
        let time = running
            .iter()
            .map(|layer| left[*layer] / rates[*layer])
            .fold(f64::INFINITY, f64::min);
        for layer in running {
            left[layer] -= rates[layer] * time;
            if left[layer] < 0.5 {
                done.insert(layer);
                last = layer;
            }
        }
    }
    last
}

/// Numbers that look random and are the same each time: SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}
