//! The queue of images to make chunks of, their results, and the images set aside. No I/O: the owner writes it
//! to the disk.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::admin::{FeedStatus, SetAside};
use mirror::WholeImage;
use serving::load::Level;

use super::notes::{Note, Tried};

/// Images that may wait. One that finds no place is taken up when others have been taken, with the
/// next pull, or at the next start.
const WAITING_MAX: usize = 1024;
/// Names of which it is remembered what became of them.
const SEEN_MAX: usize = 20_000;
/// Manifests whose attempts are counted.
const TRIED_MAX: usize = 20_000;
/// Images that were set aside, as they are shown.
const ASIDE_SHOWN: usize = 100;

/// Too many images are queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many images are waiting for their chunks: try again later")]
pub(super) struct Full;

/// The state of the images.
#[derive(Debug, Default)]
pub(super) struct State {
    queue: VecDeque<WholeImage>,
    at: Option<WholeImage>,
    /// Whether the image in progress was requested again.
    asked_again: bool,
    /// Whether there are more records than fit into the queue.
    left_over: bool,
    done: u64,
    failed: u64,
    /// What became, or did not become, of which name: the digest of its manifest.
    seen: HashMap<String, String>,
    /// Attempts that have not succeeded, by the digest of the manifest: names cost nothing, and one
    /// may point to and fro.
    tried: BTreeMap<String, Tried>,
}

impl State {
    /// Removes and returns the next image, unless the machine is under load: it is background work.
    pub(super) fn due(&mut self, level: Level) -> Option<WholeImage> {
        if level >= Level::Careful {
            return None;
        }
        while let Some(image) = self.queue.pop_front() {
            if self.is_set_aside(&image.digest) {
                // Another name of it has failed meanwhile.
                self.seen.insert(image.name, image.digest);
                continue;
            }
            self.at = Some(image.clone());
            return Some(image);
        }
        None
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.left_over
    }

    /// Adds an image to the queue, unless it is there. One in progress is done again if
    /// that fails.
    pub(super) fn enqueue(&mut self, image: &WholeImage) -> Result<(), Full> {
        if self.queue.contains(image) {
            return Ok(());
        }
        if self.at.as_ref() == Some(image) {
            self.asked_again = true;
            return Ok(());
        }
        if self.queue.len() >= WAITING_MAX {
            return Err(Full);
        }
        self.queue.push_back(image.clone());
        Ok(())
    }

    /// Removes an image from the queue, if it is still there.
    pub(super) fn withdraw(&mut self, image: &WholeImage) {
        self.queue.retain(|waiting| waiting != image);
    }

    /// Returns whether there is nothing to be done for an image that clients have pulled.
    pub(super) fn knows(&self, image: &WholeImage) -> bool {
        self.queue.contains(image)
            || self.at.as_ref() == Some(image)
            || self.seen.get(&image.name) == Some(&image.digest)
            || self.is_set_aside(&image.digest)
    }

    fn is_set_aside(&self, digest: &str) -> bool {
        self.tried.get(digest).is_some_and(Tried::is_set_aside)
    }

    /// Forgets the attempts at a manifest, and returns them.
    pub(super) fn forgive(&mut self, digest: &str) -> Option<Tried> {
        self.tried.remove(digest)
    }

    /// Adds recorded attempts.
    pub(super) fn note_tried(&mut self, tried: Tried) {
        let known = self.tried.entry(tried.digest.clone());
        let known = known.or_insert_with(|| tried.clone());
        if known.tries < tried.tries {
            *known = tried;
        }
    }

    /// Counts an attempt that begins. Returns it, and the records that are dropped for it if there are too
    /// many.
    pub(super) fn begin(&mut self, image: &WholeImage) -> (Tried, Option<Tried>) {
        let is_new = !self.tried.contains_key(&image.digest);
        let victim = match is_new && self.tried.len() >= TRIED_MAX {
            true => self.tried.values().min_by_key(|tried| tried.tries).cloned(),
            false => None,
        };
        if let Some(victim) = &victim {
            self.tried.remove(&victim.digest);
        }
        let tried = self.tried.entry(image.digest.clone());
        let tried = tried.or_insert_with(|| Tried::none_of(image));
        tried.tries += 1;
        tried.failed = None;
        (tried.clone(), victim)
    }

    /// Uncounts an attempt that was interrupted, and returns those that are left.
    pub(super) fn was_none(&mut self, image: &WholeImage) -> Option<Tried> {
        self.at = None;
        let tried = self.tried.get_mut(&image.digest)?;
        tried.tries -= 1;
        if tried.tries == 0 {
            self.tried.remove(&image.digest);
            return None;
        }
        Some(tried.clone())
    }

    /// Records that the image in progress became a source.
    pub(super) fn succeeded(&mut self, image: &WholeImage) {
        self.at = None;
        self.asked_again = false;
        self.done += 1;
        self.tried.remove(&image.digest);
        self.seen.insert(image.name.clone(), image.digest.clone());
    }

    /// Records why the image in progress failed. Returns the attempts at it; `None` if
    /// it was requested meanwhile: then it counts as never tried.
    pub(super) fn has_failed(&mut self, image: &WholeImage, why: &str) -> Option<Tried> {
        self.at = None;
        self.failed += 1;
        if std::mem::take(&mut self.asked_again) {
            self.tried.remove(&image.digest);
            // There is a place for it: it was out of the queue just now.
            self.queue.push_back(image.clone());
            return None;
        }
        self.seen.insert(image.name.clone(), image.digest.clone());
        let tried = self.tried.entry(image.digest.clone());
        let tried = tried.or_insert_with(|| Tried {
            tries: 1,
            ..Tried::none_of(image)
        });
        tried.name.clone_from(&image.name);
        tried.failed = Some(why.to_owned());
        Some(tried.clone())
    }

    /// Adds the record of a name; `image` is the mirror's image of it.
    pub(super) fn take_up(&mut self, note: Note, image: Option<WholeImage>) {
        let waits = !note.done && !self.is_set_aside(&note.digest);
        match image.filter(|_| waits) {
            // Not seen yet, whether it finds a place or not.
            Some(image) => self.left_over |= self.enqueue(&image).is_err(),
            None => {
                self.seen.insert(note.name, note.digest);
            }
        }
    }

    /// Returns whether the records must be read again, since there is space in the queue now.
    pub(super) fn takes_up_left_over(&mut self) -> bool {
        self.queue.is_empty() && std::mem::take(&mut self.left_over)
    }

    /// Adds records, whose attempts this state knows.
    pub(super) fn take_over(&mut self, noted: Self) {
        for image in noted.queue {
            if !self.knows(&image) {
                self.left_over |= self.enqueue(&image).is_err();
            }
        }
        self.left_over |= noted.left_over;
    }

    /// Removes names without an image in the mirror, if there are too many, and returns them. Attempts
    /// are recorded by digests, and stay.
    pub(super) fn forget_others(&mut self, images: &[WholeImage]) -> Vec<String> {
        if self.seen.len() <= SEEN_MAX {
            return Vec::new();
        }
        let here: HashSet<&str> = images.iter().map(|image| image.name.as_str()).collect();
        let gone = self
            .seen
            .extract_if(|name, _| !here.contains(name.as_str()));
        gone.map(|(name, _)| name).collect()
    }

    /// Returns how far it is.
    pub(super) fn fed(&self) -> FeedStatus {
        let aside = || self.tried.values().filter(|tried| tried.is_set_aside());
        let shown = aside().take(ASIDE_SHOWN).map(|tried| SetAside {
            name: tried.name.clone(),
            digest: tried.digest.clone(),
            why: tried.why().to_owned(),
        });
        FeedStatus {
            at: self.at.as_ref().map(|image| image.name.clone()),
            waiting: self.queue.len() as u64,
            done: self.done,
            failed: self.failed,
            set_aside: aside().count() as u64,
            aside: shown.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::notes::{DIED, TRIES};

    fn image(name: &str, digest: &str) -> WholeImage {
        WholeImage {
            name: name.to_owned(),
            digest: digest.to_owned(),
        }
    }

    /// Takes all that waits, which fails, and returns how many attempts that were.
    fn fail_all(state: &mut State) -> usize {
        let attempt = || {
            let image = state.due(Level::Normal)?;
            let _noted = state.begin(&image);
            let _noted = state.has_failed(&image, "it is poison");
            Some(())
        };
        std::iter::from_fn(attempt).count()
    }

    /// What a look at what clients have pulled does.
    fn pull(state: &mut State, image: &WholeImage) {
        if !state.knows(image) {
            state.enqueue(image).unwrap();
        }
    }

    #[test]
    fn while_the_machine_is_pressed_images_wait() {
        let image = image("docker.io/library/redis:7", "sha256:0");
        let mut state = State::default();
        state.enqueue(&image).unwrap();
        for level in [Level::Careful, Level::Shedding] {
            assert_eq!(state.due(level), None);
        }
        assert_eq!(state.due(Level::Normal), Some(image.clone()));
        assert_eq!(state.fed().at, Some(image.name));
        assert_eq!(state.due(Level::Normal), None);
    }

    #[test]
    fn what_was_tried_too_often_is_not_taken_up() {
        let image = image("docker.io/library/redis:7", "sha256:0");
        for tries in 0..4 {
            let mut state = State::default();
            let mut tried = Tried::none_of(&image);
            tried.tries = tries;
            state.note_tried(tried);
            state.take_up(Note::of(&image), Some(image.clone()));
            let fed = state.fed();
            let aside = fed.aside.first().map(|aside| aside.why.as_str());
            match tries < TRIES {
                true => assert_eq!((fed.waiting, aside), (1, None)),
                false => assert_eq!((fed.waiting, aside), (0, Some(DIED))),
            }
        }
    }

    #[test]
    fn a_tag_that_points_to_and_fro_is_not_tried_for_ever() {
        let mut state = State::default();
        let mut attempts = 0;
        for _ in 0..50 {
            for digest in ["sha256:0", "sha256:1"] {
                pull(&mut state, &image("a:latest", digest));
                attempts += fail_all(&mut state);
            }
        }
        assert_eq!(attempts, 2 * TRIES as usize);
        assert_eq!(state.fed().set_aside, 2);
    }

    #[test]
    fn many_names_of_a_manifest_are_one_image() {
        let mut state = State::default();
        // All at once, and then others.
        for tag in 0..50 {
            pull(&mut state, &image(&format!("a:{tag}"), "sha256:0"));
        }
        let mut attempts = fail_all(&mut state);
        for tag in 50..100 {
            pull(&mut state, &image(&format!("a:{tag}"), "sha256:0"));
            attempts += fail_all(&mut state);
        }
        assert_eq!(attempts, TRIES as usize);
        assert_eq!((state.fed().set_aside, state.fed().failed), (1, 2));
        // Another manifest under one of these names is another image.
        pull(&mut state, &image("a:7", "sha256:1"));
        assert_eq!(fail_all(&mut state), 1);
    }

    #[test]
    fn what_is_asked_for_while_it_is_taken_is_taken_again_if_that_fails() {
        let mut state = State::default();
        let image = image("a:latest", "sha256:0");
        let attempt = |state: &mut State, asked: bool| {
            assert_eq!(state.due(Level::Normal), Some(image.clone()));
            let _noted = state.begin(&image);
            if asked {
                let _forgiven = state.forgive(&image.digest);
                state.enqueue(&image).unwrap();
                assert_eq!(state.fed().waiting, 0);
            }
        };
        state.enqueue(&image).unwrap();
        attempt(&mut state, true);
        assert_eq!(state.has_failed(&image, "it was not all here"), None);
        assert_eq!(state.fed().waiting, 1);
        // As if it had never been tried.
        attempt(&mut state, false);
        let tried = state.has_failed(&image, "nor now").unwrap();
        assert_eq!((tried.tries, tried.is_set_aside()), (1, false));
        assert_eq!(state.fed().waiting, 0);
        // If it succeeds, that is what was asked for.
        state.enqueue(&image).unwrap();
        attempt(&mut state, true);
        state.succeeded(&image);
        assert_eq!((state.fed().waiting, state.fed().done), (0, 1));
        assert!(state.knows(&image) && state.tried.is_empty());
    }

    #[test]
    fn what_finds_no_place_is_not_forgotten() {
        let mut state = State::default();
        let poison = image("poison:1", "sha256:p");
        state.enqueue(&poison).unwrap();
        assert_eq!(fail_all(&mut state), 1);
        for number in 0..WAITING_MAX + 10 {
            let image = image(&format!("a:{number}"), &format!("sha256:{number}"));
            state.take_up(Note::of(&image), Some(image));
        }
        let late = image("a:1030", "sha256:1030");
        assert!(!state.knows(&late), "it is not seen, and not done");
        assert_eq!(state.enqueue(&late), Err(Full));
        assert_eq!(state.tried["sha256:p"].tries, 1);
        assert!(!state.is_idle() && !state.takes_up_left_over());
        let fed = fail_all(&mut state);
        assert_eq!(fed, WAITING_MAX);
        assert!(!state.is_idle() && state.takes_up_left_over());
        state.take_up(Note::of(&late), Some(late.clone()));
        assert_eq!(state.due(Level::Normal), Some(late));
        assert!(state.is_idle());
    }

    #[test]
    fn an_attempt_that_was_broken_off_was_none() {
        let mut state = State::default();
        let image = image("a:latest", "sha256:0");
        for _ in 0..10 {
            state.enqueue(&image).unwrap();
            assert!(state.due(Level::Normal).is_some());
            assert_eq!(state.begin(&image).0.tries, 1);
            assert_eq!(state.was_none(&image), None);
        }
        assert!(state.tried.is_empty());
    }

    #[test]
    fn there_is_a_bound_for_what_is_remembered() {
        let mut state = State::default();
        let poison = image("a:poison", "sha256:p");
        state.note_tried(Tried {
            tries: TRIES,
            ..Tried::none_of(&poison)
        });
        for number in 0..TRIED_MAX + 100 {
            let image = image("a:b", &format!("sha256:{number}"));
            let (_, gone) = state.begin(&image);
            assert_eq!(gone.is_some(), number + 1 >= TRIED_MAX, "{number}");
        }
        assert_eq!(state.tried.len(), TRIED_MAX);
        assert!(state.knows(&poison), "it goes last");
    }
}
