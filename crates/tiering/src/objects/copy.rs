//! Making a copy: written, synced, read again, hashed, named, and only then counted.

use std::io::{self, Read};

use blocks::ContentId;

use super::{Entry, ObjectError, Objects, TierIndex, part_name, whole_name};
use crate::journal::{Kind, Known, OBJECTS_MAX, Record, TIERS_MAX};
use crate::medium::Medium;
use crate::pace::{CHUNK, Pace};

/// The result of copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// There was a copy already.
    There,
    /// So many bytes were written.
    Bytes(u64),
}

/// An object that is being copied to a tier, with the room for it; what is not
/// [settled](Self::settle) is given back.
struct Coming<'a> {
    objects: &'a Objects,
    id: ContentId,
    len: u64,
    to: TierIndex,
    settled: bool,
}

/// Where the bytes of a copy come from.
type Bring<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), ObjectError> + 'a;

impl Objects {
    /// Keeps an object of `len` bytes on a tier; `content` must be what `id` names.
    ///
    /// # Errors
    /// If `content` is something else, there is no room, it was cancelled, or a tier failed.
    pub fn add(
        &self,
        id: ContentId,
        len: u64,
        to: TierIndex,
        content: &mut dyn Read,
        pace: &dyn Pace,
    ) -> Result<Copied, ObjectError> {
        let Some(coming) = self.reserve(id, Some(len), to)? else {
            return Ok(Copied::There);
        };
        let input = |source| ObjectError::Input { id, source };
        coming.make(pace, &mut |_, buf| content.read_exact(buf).map_err(input))?;
        if content.read(&mut [0]).map_err(input)? != 0 {
            coming.discard();
            return Err(ObjectError::Damaged { id }); // it is longer
        }
        coming.settle()
    }

    /// Copies an object to a tier, from the fastest that has it. A copy that turns out to be damaged
    /// is replaced as source by the next one.
    ///
    /// # Errors
    /// If no copy is whole, there is not enough space, it was cancelled, or a tier failed.
    pub fn copy(
        &self,
        id: ContentId,
        to: TierIndex,
        pace: &dyn Pace,
    ) -> Result<Copied, ObjectError> {
        let Some(coming) = self.reserve(id, None, to)? else {
            return Ok(Copied::There);
        };
        let held = self
            .table
            .lock()
            .entries
            .get(&id)
            .map_or(0, |entry| entry.held);
        let mut rotten = Vec::new();
        let mut result = Err(ObjectError::Away { id });
        for from in self.present(held) {
            let medium = &self.tier(from)?.medium;
            let failed = |source| ObjectError::Io {
                doing: "read",
                id,
                tier: from,
                source,
            };
            result = coming.make(pace, &mut |offset, buf| {
                let read = medium
                    .read_at(&whole_name(id), offset, buf)
                    .map_err(failed)?;
                match read == buf.len() {
                    true => Ok(()),
                    false => Err(ObjectError::Damaged { id }),
                }
            });
            match &result {
                Err(ObjectError::Damaged { .. }) => rotten.push(from),
                Err(ObjectError::Io { tier, .. }) if *tier == from => rotten.push(from),
                _ => break,
            }
        }
        result?;
        let copied = coming.settle()?;
        for tier in rotten {
            log::warn!("the copy of object {} on {tier} is damaged", id.short());
            if let Err(error) = self.leave(id, tier) {
                log::warn!("cannot remove this copy: {error}");
            }
        }
        Ok(copied)
    }

    /// Takes room for a copy; `None` if there is one. An object that is new comes with its `len`.
    fn reserve(
        &self,
        id: ContentId,
        len: Option<u64>,
        to: TierIndex,
    ) -> Result<Option<Coming<'_>>, ObjectError> {
        let tier = self.tier(to)?;
        let mut table = self.table.lock();
        let entry = match (table.entries.get(&id), len) {
            (Some(entry), _) => *entry,
            (None, Some(_)) if table.entries.len() >= OBJECTS_MAX => {
                return Err(ObjectError::TooMany { most: OBJECTS_MAX });
            }
            (None, Some(len)) => Entry::new(Known { len, tiers: 0 }),
            (None, None) => return Err(ObjectError::Unknown { id }),
        };
        if entry.busy {
            return Err(ObjectError::Busy { id });
        }
        if entry.held & self.bit(to) != 0 {
            return Ok(None);
        }
        if len.is_some_and(|len| len != entry.len) {
            return Err(ObjectError::Damaged { id });
        }
        table.take_room(tier, id, to, entry.len)?;
        table.entries.insert(
            id,
            Entry {
                busy: true,
                ..entry
            },
        );
        Ok(Some(Coming {
            objects: self,
            id,
            len: entry.len,
            to,
            settled: false,
        }))
    }
}

impl Coming<'_> {
    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> ObjectError {
        let (id, tier) = (self.id, self.to);
        move |source| ObjectError::Io {
            doing,
            id,
            tier,
            source,
        }
    }

    /// Makes the file, whole, verified and durable under its name; it has no reader yet.
    fn make(&self, pace: &dyn Pace, bring: &mut Bring) -> Result<(), ObjectError> {
        let result = self.write(pace, bring).and_then(|()| self.verify());
        if result.is_err() {
            self.discard();
        }
        result
    }

    fn write(&self, pace: &dyn Pace, bring: &mut Bring) -> Result<(), ObjectError> {
        let (id, part) = (self.id, part_name(self.id));
        let medium = &*self.objects.tier(self.to)?.medium;
        match medium.remove(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("begin to write")(error));
            }
            _ => {}
        }
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK.min(usize::try_from(self.len).unwrap_or(CHUNK))];
        let mut done = 0;
        loop {
            let left = usize::try_from(self.len - done).unwrap_or(CHUNK);
            let piece = &mut buffer[..left.min(CHUNK)];
            pace.turn(piece.len() as u64)
                .map_err(|_| ObjectError::Cancelled { id })?;
            bring(done, piece)?;
            hasher.update(piece);
            // An empty object is a file, too.
            medium
                .write_at(&part, done, piece)
                .map_err(self.failed("write"))?;
            done += piece.len() as u64;
            if done == self.len {
                break;
            }
        }
        match ContentId(*hasher.finalize().as_bytes()) == id {
            true => Ok(()),
            false => Err(ObjectError::Damaged { id }),
        }
    }

    fn verify(&self) -> Result<(), ObjectError> {
        let (part, whole) = (part_name(self.id), whole_name(self.id));
        let medium = &*self.objects.tier(self.to)?.medium;
        medium.sync(&part).map_err(self.failed("sync"))?;
        let hash = hash_file(medium, &part, self.len).map_err(self.failed("verify"))?;
        if hash != self.id {
            let wrong = io::Error::other("what was read back is not what was written");
            return Err(self.failed("verify")(wrong));
        }
        medium.rename(&part, &whole).map_err(self.failed("name"))?;
        medium.sync_names().map_err(self.failed("name"))
    }

    /// Removes what was written; what cannot be removed now goes when the tiers are opened again.
    fn discard(&self) {
        let Ok(tier) = self.objects.tier(self.to) else {
            return;
        };
        for name in [part_name(self.id), whole_name(self.id)] {
            match tier.medium.remove(&name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    log::warn!("cannot remove {name} from {}: {error}", self.to);
                }
                _ => {}
            }
        }
    }

    /// Has the copy count.
    fn settle(mut self) -> Result<Copied, ObjectError> {
        let tier = self.objects.tier(self.to)?;
        let record = Record {
            kind: Kind::Settled,
            tier: tier.slot,
            len: self.len,
            object: self.id,
        };
        // If that fails, the record may be on the disk all the same: so the file stays.
        self.objects.write_down(&[record], |table| {
            if let Some(entry) = table.entries.get_mut(&self.id) {
                entry.held |= 1 << tier.slot;
                table.copies += 1;
            }
        })?;
        self.settled = true;
        Ok(Copied::Bytes(self.len))
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let slot = self
            .objects
            .tiers
            .get(self.to.0)
            .map(|tier| usize::from(tier.slot));
        let mut table = self.objects.table.lock();
        if !self.settled
            && let Some(used) = slot.filter(|slot| *slot < TIERS_MAX)
        {
            table.used[used] = table.used[used].saturating_sub(self.len);
        }
        if let Some(entry) = table.entries.get_mut(&self.id) {
            entry.busy = false;
            if entry.held == 0 {
                table.entries.remove(&self.id);
            }
        }
    }
}

/// Returns what object some content is, and its length.
///
/// # Errors
/// If it cannot be read.
pub fn name_of(content: &mut dyn Read) -> io::Result<(ContentId, u64)> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK];
    let mut len = 0;
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok((ContentId(*hasher.finalize().as_bytes()), len)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                len += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the hash of the first `len` bytes of a file; of another length it is of fewer.
pub(super) fn hash_file(medium: &dyn Medium, name: &str, len: u64) -> io::Result<ContentId> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; CHUNK.min(usize::try_from(len).unwrap_or(CHUNK))];
    let mut done = 0;
    while done < len {
        let read = medium.read_at(name, done, &mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        done += read as u64;
    }
    Ok(ContentId(*hasher.finalize().as_bytes()))
}
