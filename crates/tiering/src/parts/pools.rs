//! The pools of one tier: written before an index counts, given back after it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use blocks::{BlockRange, ContentId, RangeSet};

use super::format::{LEN_MAX, begins_an_index};
use super::{Index, Part, Users};
use crate::medium::Medium;
use crate::objects::{Object, ObjectError, TierIndex};
use crate::pace::Pace;

/// Reads the blocks of a part, given with its number.
pub type BringPart<'a> = dyn FnMut(usize, &Part, &mut [u8]) -> Result<(), ObjectError> + 'a;

/// Says that somebody changes pools, or died of it.
const MARK: &str = "pools.changing";
const SUFFIX: &str = ".pool";

/// The pools of a tier.
#[derive(Debug)]
pub(super) struct Pools {
    medium: Arc<dyn Medium>,
    tier: TierIndex,
    /// The valid indexes.
    pub(super) users: Users,
    /// Whether it is not known what counts: then the mark stays.
    unsure: bool,
}

/// What must be checked again of pools, although no process died while it changed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recheck {
    None,
    /// There may be unreferenced blocks.
    LeftOver,
    /// There may also be indexes whose blocks were freed.
    Everything,
}

impl Pools {
    /// Reads the contents of a tier. Also returns the objects that are unreadable indexes, or whose parts
    /// are lost: they must be removed before anything is [swept](Self::sweep).
    pub(super) fn open(
        medium: Arc<dyn Medium>,
        tier: TierIndex,
        objects: &[Object],
        recheck: Recheck,
    ) -> io::Result<(Self, Vec<ContentId>)> {
        let mut pools = Self {
            medium,
            tier,
            users: Users::default(),
            unsure: false,
        };
        let files: BTreeMap<String, u64> = pools.medium.list()?.into_iter().collect();
        let contents_are_unsure = recheck == Recheck::Everything || files.contains_key(MARK);
        let here = objects.iter().filter(|object| object.tiers.contains(&tier));
        let mut lost = Vec::new();
        for object in here {
            match pools.read_index(object) {
                Ok(Some(index))
                    if has_pools(&index, &files)
                        && (!contents_are_unsure || pools.has_contents(&index)) =>
                {
                    pools.users.insert(object.id, index);
                }
                Ok(Some(_)) => lost.push(object.id),
                Ok(None) => {}
                Err(error) => {
                    log::warn!("object {} on {tier}: {error}", object.id.short());
                    lost.push(object.id);
                }
            }
        }
        Ok((pools, lost))
    }

    /// Returns the index that an object is, if it is one.
    fn read_index(&self, object: &Object) -> io::Result<Option<Index>> {
        let name = object.id.to_string();
        let mut head = [0; 64];
        let read = self.medium.read_at(&name, 0, &mut head)?;
        if !begins_an_index(&head[..read], object.len) {
            return Ok(None);
        }
        let len = usize::try_from(object.len.min(LEN_MAX)).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        let read = self.medium.read_at(&name, 0, &mut bytes)?;
        if ContentId::of(&bytes[..read]) != object.id {
            return Err(io::Error::other("it is damaged"));
        }
        Index::decode(&bytes[..read])
            .map(Some)
            .map_err(io::Error::other)
    }

    /// Returns whether each part of an index has the content that was written.
    fn has_contents(&self, index: &Index) -> bool {
        index.parts().iter().all(|part| self.is_sound(index, part))
    }

    /// Returns whether a part has the content that was written.
    pub(super) fn is_sound(&self, index: &Index, part: &Part) -> bool {
        let mut bytes = vec![0; len_of(part.blocks)];
        read_part(&*self.medium, index, part, &mut bytes).is_ok()
    }

    /// Returns what the pools lie on.
    pub(super) fn medium(&self) -> Arc<dyn Medium> {
        Arc::clone(&self.medium)
    }

    /// Removes unreferenced pools, and unreferenced blocks of the others, if there may be any.
    pub(super) fn sweep(&self, recheck: Recheck) -> io::Result<()> {
        let files = self.medium.list()?;
        let marked = files.iter().any(|(name, _)| name == MARK);
        let mut removed = false;
        for (name, len) in &files {
            let Some(pool) = pool_of(name) else {
                continue;
            };
            let used = self.users.used(pool);
            if used.is_empty() {
                self.medium.remove(name)?;
                removed = true;
            } else if marked || recheck != Recheck::None {
                let whole = BlockRange::covering(0, *len);
                self.give_back(name, used.gaps(whole))?;
            }
        }
        if removed || marked {
            self.medium.sync_names()?;
        }
        match marked {
            true => self.medium.remove(MARK),
            false => Ok(()),
        }
    }

    /// Marks pools as being changed.
    pub(super) fn begin(&self) -> Result<(), ObjectError> {
        let failed = self.failed("begin to change", ContentId::default());
        self.mark().map_err(failed)
    }

    /// Writes that mark for a later process.
    pub(super) fn mark(&self) -> io::Result<()> {
        self.medium.write_at(MARK, 0, &[])?;
        self.medium.sync(MARK)?;
        self.medium.sync_names()
    }

    /// Clears the mark: no unreferenced blocks remain.
    pub(super) fn end(&self) {
        if self.unsure {
            return;
        }
        // An index that was removed must not come back when the mark does not.
        let synced = self.medium.sync_names();
        match synced.and_then(|()| self.medium.remove(MARK)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("cannot remove {MARK} from {}: {error}", self.tier);
            }
            _ => {}
        }
    }

    /// Notes that it is unknown which indexes are valid: no blocks are freed until objects are
    /// opened again.
    pub(super) const fn leave_unsure(&mut self) {
        self.unsure = true;
    }

    /// Writes the missing parts of an index, and returns how many bytes that was. They do not count
    /// yet.
    pub(super) fn fill(
        &self,
        index: &Index,
        bring: &mut BringPart<'_>,
        pace: &dyn Pace,
    ) -> Result<u64, ObjectError> {
        let id = index.id();
        let mut written = 0;
        let mut changed: Vec<&Part> = Vec::new();
        let mut used = (ContentId::default(), RangeSet::new());
        for (number, part) in index.parts().iter().enumerate() {
            let pool = index.pool_of(part);
            if number == 0 || used.0 != pool {
                used = (pool, self.users.used(pool));
            }
            let bytes = part.blocks.byte_len();
            pace.turn(bytes)
                .map_err(|_| ObjectError::Cancelled { id })?;
            let missing = used.1.gaps(part.blocks);
            if missing.is_empty() && self.is_sound(index, part) {
                continue;
            }
            let mut buf = vec![0; len_of(part.blocks)];
            bring(number, part, &mut buf)?;
            if *blake3::hash(&buf).as_bytes() != part.hash {
                return Err(ObjectError::Damaged { id });
            }
            // What is there of it may have rotted: then it is written again with the rest.
            let there = used.1.within(part.blocks);
            let sound = self.holds(pool, part.blocks, there, &buf);
            let write = if sound { missing } else { vec![part.blocks] };
            for range in write {
                let piece = &buf[place_in(part.blocks, range)];
                self.medium
                    .write_at(&pool_name(pool), range.bytes().start, piece)
                    .map_err(self.failed("write", id))?;
                written += range.byte_len();
            }
            changed.push(part);
        }
        self.make_durable(index, &changed)?;
        Ok(written)
    }

    /// Returns whether these ranges of a pool hold what `buf`, which begins where `whole` does, has.
    fn holds(
        &self,
        pool: ContentId,
        whole: BlockRange,
        mut ranges: impl Iterator<Item = BlockRange>,
        buf: &[u8],
    ) -> bool {
        ranges.all(|range| {
            let mut there = vec![0; len_of(range)];
            let read = self
                .medium
                .read_at(&pool_name(pool), range.bytes().start, &mut there);
            read.is_ok_and(|read| read == there.len()) && there == buf[place_in(whole, range)]
        })
    }

    /// Syncs what was written, and reads it again.
    fn make_durable(&self, index: &Index, changed: &[&Part]) -> Result<(), ObjectError> {
        let id = index.id();
        let pools: BTreeSet<ContentId> = changed.iter().map(|part| index.pool_of(part)).collect();
        for pool in &pools {
            let synced = self.medium.sync(&pool_name(*pool));
            synced.map_err(self.failed("sync", id))?;
        }
        if !pools.is_empty() {
            let synced = self.medium.sync_names();
            synced.map_err(self.failed("name", id))?;
        }
        match changed.iter().all(|part| self.is_sound(index, part)) {
            true => Ok(()),
            false => {
                let wrong = io::Error::other("what was read back is not what was written");
                Err(self.failed("verify", id)(wrong))
            }
        }
    }

    /// Frees the parts of an invalid index that no other index uses. Failures are handled when the tier
    /// is opened again.
    pub(super) fn give_up(&mut self, index: &Index) {
        if self.unsure {
            return;
        }
        let mut removed = false;
        for pool in index.pools() {
            let (name, used) = (pool_name(*pool), self.users.used(*pool));
            let ours: RangeSet = index.blocks_of(*pool).collect();
            let gone = match used.is_empty() {
                true => {
                    removed = true;
                    self.medium.remove(&name)
                }
                false => {
                    let unused = ours.runs().iter().flat_map(|run| used.gaps(*run));
                    self.give_back(&name, unused)
                }
            };
            match gone {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!(
                        "cannot release the unused parts of {name} on {}: {error}",
                        self.tier
                    );
                    self.unsure = true;
                }
                _ => {}
            }
        }
        if removed && let Err(error) = self.medium.sync_names() {
            log::warn!(
                "cannot make the removal of pools on {} durable: {error}",
                self.tier
            );
            self.unsure = true;
        }
    }

    fn give_back(
        &self,
        name: &str,
        unused: impl IntoIterator<Item = BlockRange>,
    ) -> io::Result<()> {
        let mut changed = false;
        for range in unused {
            let bytes = range.bytes();
            match self
                .medium
                .give_back(name, bytes.start, bytes.end - bytes.start)
            {
                // Its room comes back with the whole file.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(()),
                given => given?,
            }
            changed = true;
        }
        match changed {
            true => self.medium.sync(name),
            false => Ok(()),
        }
    }

    fn failed(&self, doing: &'static str, id: ContentId) -> impl FnOnce(io::Error) -> ObjectError {
        let tier = self.tier;
        move |source| ObjectError::Io {
            doing,
            id,
            tier,
            source,
        }
    }
}

/// Reads a part, and verifies it.
pub(super) fn read_part(
    medium: &dyn Medium,
    index: &Index,
    part: &Part,
    buf: &mut [u8],
) -> io::Result<()> {
    let (name, offset) = (pool_name(index.pool_of(part)), part.blocks.bytes().start);
    let read = medium.read_at(&name, offset, buf)?;
    match read == buf.len() && *blake3::hash(buf).as_bytes() == part.hash {
        true => Ok(()),
        false => Err(io::Error::other("it is damaged")),
    }
}

/// Returns the name of a pool's file, beside the objects of its tier.
#[must_use]
pub fn pool_name(pool: ContentId) -> String {
    format!("{pool}{SUFFIX}")
}

/// Returns whether the pools of an index are among the files of a tier, and long enough.
fn has_pools(index: &Index, files: &BTreeMap<String, u64>) -> bool {
    index.parts().iter().all(|part| {
        let len = files.get(&pool_name(index.pool_of(part)));
        len.is_some_and(|len| part.blocks.bytes().end <= *len)
    })
}

/// Returns the pool that a file is, if it is one of ours.
fn pool_of(name: &str) -> Option<ContentId> {
    let pool = name.strip_suffix(SUFFIX)?.parse().ok()?;
    (name == pool_name(pool)).then_some(pool)
}

/// Returns where a range lies in the bytes of one that holds it.
fn place_in(whole: BlockRange, range: BlockRange) -> std::ops::Range<usize> {
    let begin = BlockRange::new(whole.start(), range.start());
    let begin = len_of(begin);
    begin..begin + len_of(range)
}

/// Parts have few blocks.
fn len_of(range: BlockRange) -> usize {
    usize::try_from(range.byte_len()).unwrap_or(usize::MAX)
}
