//! Boot images that machines are uploading.
//!
//! Their bytes are in memory until an upload is complete. All uploads together are bounded. When the
//! memory is used up, the largest upload of the machine with the most bytes is evicted, so that no
//! machine can keep others from uploading with many, large or endless uploads. An upload that is too
//! slow is cancelled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::machine::Identity;
use super::memory::Memory;
use crate::wire::DATA_MAX;

/// What memory is taken by: a piece of some bytes costs no less than one that is full.
const BLOCK: usize = DATA_MAX;

/// The minimal rate of an upload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// This many bytes, or the rest of the upload,
    pub(super) bytes: u64,
    /// within this time.
    pub(super) within: Duration,
}

/// Why an upload was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ended {
    #[error("no memory is free for the upload of a boot image")]
    NoMemory,
    #[error(
        "the upload was evicted for another machine's: this machine has the most boot images in upload"
    )]
    GaveWay,
    #[error("the upload of the boot image is too slow, and was cancelled")]
    Slow,
}

/// All uploads.
#[derive(Debug)]
pub(super) struct Uploads {
    /// The limit of their bytes.
    most: u64,
    /// The budget that they share with requests.
    memory: Arc<Memory>,
    state: Mutex<UploadsState>,
}

#[derive(Debug, Default)]
struct UploadsState {
    next: u64,
    taken: u64,
    each: HashMap<u64, Upload>,
}

#[derive(Debug)]
struct Upload {
    of: Identity,
    blocks: Vec<Vec<u8>>,
    /// Bytes of memory.
    taken: u64,
    /// Bytes that came.
    len: u64,
    state: UploadState,
}

/// The state of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UploadState {
    /// Its bytes are being received; it may be evicted.
    Receiving,
    /// It was evicted or cancelled.
    Ended(Ended),
    /// All bytes were received, and it is written to the disk.
    Complete,
}

impl UploadsState {
    /// Ends one, whose memory is free from now on; what lies in it is for the caller to drop.
    fn end(&mut self, number: u64, why: Ended, memory: &Memory) -> Vec<Vec<u8>> {
        let Some(upload) = self.each.get_mut(&number) else {
            return Vec::new();
        };
        upload.state = UploadState::Ended(why);
        let freed = std::mem::take(&mut upload.taken);
        self.taken -= freed;
        memory.give(freed);
        std::mem::take(&mut upload.blocks)
    }

    /// Returns the largest of the machine that has the most, if that is more than `mine`, what
    /// `than` would have.
    fn largest_of_others(&self, than: &Identity, mine: u64) -> Option<u64> {
        let mut machines: HashMap<&Identity, u64> = HashMap::new();
        for upload in self.each.values() {
            *machines.entry(&upload.of).or_default() += upload.taken;
        }
        let others = machines.into_iter().filter(|(of, _)| *of != than);
        let (most, taken) = others.max_by_key(|(_, taken)| *taken)?;
        let its = self.each.iter();
        let its =
            its.filter(|(_, upload)| upload.of == *most && upload.state == UploadState::Receiving);
        let largest = its.max_by_key(|(_, upload)| upload.taken);
        let (number, upload) = largest.filter(|_| taken > mine)?;
        (upload.taken > 0).then_some(*number)
    }
}

impl Uploads {
    /// Returns an empty list, whose uploads may take `most` bytes of a budget.
    pub(super) fn new(most: u64, memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            most,
            memory: Arc::clone(memory),
            state: Mutex::default(),
        })
    }

    /// Returns the bytes of memory that they take.
    pub(super) fn taken(&self) -> u64 {
        self.state.lock().taken
    }

    /// Begins one, of which `total` bytes are to come.
    pub(super) fn begin(self: &Arc<Self>, of: &Identity, total: u64, step: Step) -> Coming {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let upload = Upload {
            of: of.clone(),
            blocks: Vec::new(),
            taken: 0,
            len: 0,
            state: UploadState::Receiving,
        };
        state.each.insert(number, upload);
        Coming {
            uploads: Arc::clone(self),
            number,
            total,
            step,
            marked: 0,
            due: Some(Instant::now() + step.within),
        }
    }

    /// Adds what came to one of them, and returns its length.
    fn add(&self, number: u64, mut piece: &[u8]) -> Result<u64, Ended> {
        let mut state = self.state.lock();
        loop {
            let upload = state.each.get_mut(&number).ok_or(Ended::NoMemory)?;
            if let UploadState::Ended(why) = upload.state {
                return Err(why);
            }
            if piece.is_empty() {
                return Ok(upload.len);
            }
            if let Some(block) = upload.blocks.last_mut()
                && block.len() < BLOCK
            {
                let (fits, rest) = piece.split_at(piece.len().min(BLOCK - block.len()));
                block.extend_from_slice(fits);
                upload.len += fits.len() as u64;
                piece = rest;
                continue;
            }
            if let Err(why) = self.make_room(&mut state, number) {
                let _dropped = state.end(number, why, &self.memory);
                return Err(why);
            }
            if let Some(upload) = state.each.get_mut(&number) {
                upload.taken += BLOCK as u64;
                upload.blocks.push(Vec::with_capacity(BLOCK));
            }
        }
    }

    /// Takes room for one more block; other machines' boot images may have to go for it.
    fn make_room(&self, state: &mut UploadsState, number: u64) -> Result<(), Ended> {
        let block = BLOCK as u64;
        let of = state.each.get(&number).map(|upload| upload.of.clone());
        let of = of.ok_or(Ended::NoMemory)?;
        loop {
            if state.taken + block <= self.most && self.memory.take(block) {
                state.taken += block;
                return Ok(());
            }
            let its = state.each.values().filter(|upload| upload.of == of);
            let mine = its.map(|upload| upload.taken).sum::<u64>() + block;
            let largest = state.largest_of_others(&of, mine);
            let largest = largest.ok_or(Ended::NoMemory)?;
            log::info!("the upload of a boot image was evicted for another machine's");
            let _dropped = state.end(largest, Ended::GaveWay, &self.memory);
        }
    }
}

/// An upload, until it is dropped.
#[derive(Debug)]
pub(super) struct Coming {
    uploads: Arc<Uploads>,
    number: u64,
    total: u64,
    step: Step,
    /// Its length when the step began.
    marked: u64,
    /// When the step has to be done; nothing is due of one that was given up.
    due: Option<Instant>,
}

impl Coming {
    /// Returns when it has to have brought more.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Adds what came, and returns whether that is all of it.
    ///
    /// # Errors
    /// If it was ended, or there is no room. It is over then.
    pub(super) fn add(&mut self, piece: &[u8]) -> Result<bool, Ended> {
        let len = self.uploads.add(self.number, piece)?;
        if len - self.marked >= self.step.bytes {
            self.marked = len;
            self.due = Some(Instant::now() + self.step.within);
        }
        Ok(len >= self.total)
    }

    /// Cancels it, since it was too slow. Later pieces get an error with this reason.
    pub(super) fn was_slow(&mut self) {
        self.due = None;
        let uploads = &self.uploads;
        let dropped = uploads
            .state
            .lock()
            .end(self.number, Ended::Slow, &uploads.memory);
        drop(dropped);
    }

    /// Returns the received bytes, which keep their memory until they are dropped, and cannot be cancelled any more.
    pub(super) fn whole(self) -> Whole {
        let mut state = self.uploads.state.lock();
        let upload = state.each.get_mut(&self.number);
        let blocks = upload.map(|upload| {
            upload.state = UploadState::Complete;
            std::mem::take(&mut upload.blocks)
        });
        drop(state);
        Whole {
            blocks: blocks.unwrap_or_default(),
            _held: self,
        }
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut state = self.uploads.state.lock();
        let dropped = state.end(self.number, Ended::GaveWay, &self.uploads.memory);
        state.each.remove(&self.number);
        drop(state);
        drop(dropped);
    }
}

/// A boot image that came.
#[derive(Debug)]
pub(super) struct Whole {
    /// One after the other, all of it.
    pub(super) blocks: Vec<Vec<u8>>,
    _held: Coming,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step {
        bytes: 1 << 20,
        within: Duration::from_secs(3600),
    };

    fn named(name: &str) -> Identity {
        Identity::Named(name.as_bytes().to_vec())
    }

    /// Adds blocks until that is refused, and returns how many were taken, and why no more.
    fn fill(coming: &mut Coming, most: usize) -> (usize, Option<Ended>) {
        for taken in 0..most {
            if let Err(why) = coming.add(&[1; BLOCK]) {
                return (taken, Some(why));
            }
        }
        (most, None)
    }

    #[test]
    fn who_has_the_most_gives_way() {
        let memory = Arc::new(Memory::new(100 * BLOCK as u64));
        let uploads = Uploads::new(8 * BLOCK as u64, &memory);
        let begin = |name: &str| uploads.begin(&named(name), 1 << 30, STEP);
        let mut greedy = [begin("greedy"), begin("greedy")];
        assert_eq!(fill(&mut greedy[0], 5), (5, None));
        // Nobody else has as much: it gets no more, and does not push out its own.
        assert_eq!(fill(&mut greedy[1], 5), (3, Some(Ended::NoMemory)));
        assert_eq!(fill(&mut greedy[0], 3), (3, None));
        let mut modest = begin("modest");
        assert_eq!(fill(&mut modest, 4), (4, None));
        assert_eq!(greedy[0].add(b"more"), Err(Ended::GaveWay));
        // Two that have as much share it: the third gets what is left.
        let mut other = begin("other");
        assert_eq!(fill(&mut other, 5), (4, Some(Ended::NoMemory)));
        assert_eq!(modest.add(b"more"), Ok(false));
        drop((greedy, modest, other));
        assert_eq!((uploads.taken(), uploads.state.lock().each.len()), (0, 0));
        assert!(memory.take(100 * BLOCK as u64), "all of it was given back");
    }

    #[test]
    fn many_names_of_one_machine_are_one_and_what_is_whole_stays() {
        let memory = Arc::new(Memory::new(100 * BLOCK as u64));
        let uploads = Uploads::new(8 * BLOCK as u64, &memory);
        let mut small: Vec<_> = (0..8)
            .map(|_| uploads.begin(&named("one"), BLOCK as u64, STEP))
            .collect();
        for coming in &mut small {
            assert_eq!(coming.add(&[7; BLOCK]), Ok(true));
        }
        let kept = small.remove(0).whole();
        let mut large = uploads.begin(&named("another"), 1 << 30, STEP);
        assert_eq!(fill(&mut large, 8), (4, Some(Ended::NoMemory)));
        assert_eq!(kept.blocks, [vec![7; BLOCK]]);
        drop((kept, small, large));
        assert_eq!(uploads.taken(), 0);
    }

    #[test]
    fn pieces_of_a_byte_cost_what_they_take() {
        let memory = Arc::new(Memory::new(100 * BLOCK as u64));
        let uploads = Uploads::new(8 * BLOCK as u64, &memory);
        let mut coming = uploads.begin(&named("one"), 1 << 30, STEP);
        for _ in 0..1000 {
            assert_eq!(coming.add(&[1]), Ok(false));
        }
        assert_eq!(uploads.taken(), BLOCK as u64);
        assert_eq!(coming.whole().blocks, [vec![1; 1000]]);
        // Reads may have taken all of the rest.
        assert!(memory.take(100 * BLOCK as u64));
        let mut coming = uploads.begin(&named("one"), 1 << 30, STEP);
        assert_eq!(coming.add(&[1]), Err(Ended::NoMemory));
    }
}
