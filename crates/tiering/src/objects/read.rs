//! Reading: from the fastest copy, and from the next if that fails.

use std::io;

use blocks::ContentId;

use super::{ObjectError, Objects, TierIndex, whole_name};

/// A copy of an object that is open: as long as it is, the copy stays.
#[derive(Debug)]
pub struct Lease<'a> {
    objects: &'a Objects,
    id: ContentId,
    len: u64,
    tier: TierIndex,
    slot: usize,
}

impl Objects {
    /// Opens the fastest copy of an object.
    ///
    /// # Errors
    /// If there is none.
    pub fn open_copy(&self, id: ContentId) -> Result<Lease<'_>, ObjectError> {
        self.open_copy_of(id, u8::MAX)
    }

    /// Reads from `offset` of an object into `buf`, and returns how many bytes: all of `buf`, or
    /// up to the end of the object. A tier that fails is passed over.
    ///
    /// # Errors
    /// If there is no copy, or all fail.
    pub fn read_at(
        &self,
        id: ContentId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, ObjectError> {
        let mut left = u8::MAX;
        loop {
            let lease = self.open_copy_of(id, left)?;
            let failed = match lease.read_at(offset, buf) {
                Ok(read) => return Ok(read),
                Err(error) => error,
            };
            left &= !self.bit(lease.tier);
            drop(lease);
            if self.open_copy_of(id, left).is_err() {
                return Err(failed);
            }
            log::warn!("{failed}: another copy is read");
        }
    }

    fn open_copy_of(&self, id: ContentId, among: u8) -> Result<Lease<'_>, ObjectError> {
        let mut table = self.table.lock();
        let entry = table.entries.get_mut(&id).filter(|entry| entry.held != 0);
        let entry = entry.ok_or(ObjectError::Unknown { id })?;
        let tier = self.present(entry.held & among).next();
        let tier = tier.ok_or(ObjectError::Away { id })?;
        let slot = usize::from(self.tier(tier)?.slot);
        entry.readers[slot] += 1;
        Ok(Lease {
            objects: self,
            id,
            len: entry.len,
            tier,
            slot,
        })
    }
}

impl Lease<'_> {
    /// Returns where the copy is.
    #[must_use]
    pub fn tier(&self) -> TierIndex {
        self.tier
    }

    /// Reads from `offset` into `buf`, and returns how many bytes: all of `buf`, or up to the end.
    ///
    /// # Errors
    /// If the tier fails, or the copy is shorter than it was.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, ObjectError> {
        let left = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = left.min(buf.len());
        let buf = &mut buf[..want];
        let medium = &self.objects.tier(self.tier)?.medium;
        let read = match want {
            0 => Ok(0),
            _ => medium.read_at(&whole_name(self.id), offset, buf),
        };
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        read.and_then(|read| if read == want { Ok(read) } else { Err(short()) })
            .map_err(|source| ObjectError::Io {
                doing: "read",
                id: self.id,
                tier: self.tier,
                source,
            })
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.objects.table.lock().entries.get_mut(&self.id) {
            entry.readers[self.slot] = entry.readers[self.slot].saturating_sub(1);
        }
    }
}
