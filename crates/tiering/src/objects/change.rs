//! Changes of what counts: written down first, then done.

use std::io;

use blocks::ContentId;

use super::{Copied, Entry, ObjectError, Objects, Table, TierIndex, whole_name};
use crate::journal::{Kind, Record};
use crate::pace::Pace;

/// Whether a copy may be the last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Keep,
    Give,
}

impl Objects {
    /// Removes a copy of an object that has another.
    ///
    /// # Errors
    /// If it is the only readable one, or it is open, or the journal failed.
    pub fn leave(&self, id: ContentId, from: TierIndex) -> Result<(), ObjectError> {
        self.leave_all(id, self.bit(from), Last::Keep)
    }

    /// Moves an object: copies it, switches to the copy, and leaves the old one.
    ///
    /// # Errors
    /// As [`copy`](Self::copy) and [`leave`](Self::leave). The object may then have both copies.
    pub fn shift(
        &self,
        id: ContentId,
        from: TierIndex,
        to: TierIndex,
        pace: &dyn Pace,
    ) -> Result<Copied, ObjectError> {
        let copied = self.copy(id, to, pace)?;
        if from != to {
            self.leave(id, from)?;
        }
        Ok(copied)
    }

    /// Removes an object, with all its copies.
    ///
    /// # Errors
    /// If it is not known, a copy is open, or the journal failed.
    pub fn remove(&self, id: ContentId) -> Result<(), ObjectError> {
        self.leave_all(id, u8::MAX, Last::Give)
    }

    /// Leaves those copies of an object that are in the set `from`.
    fn leave_all(&self, id: ContentId, from: u8, last: Last) -> Result<(), ObjectError> {
        let (leaving, len) = self.begin_to_leave(id, from, last)?;
        let records: Vec<Record> = crate::journal::tiers_of(leaving)
            .map(|tier| Record {
                kind: Kind::Left,
                tier,
                len,
                object: id,
            })
            .collect();
        let written = self.write_down(&records, |_| {});
        if written.is_ok() {
            self.remove_files(id, leaving, last);
        }
        let mut table = self.table.lock();
        let Some(entry) = table.entries.get_mut(&id) else {
            return written;
        };
        entry.busy = false;
        if written.is_err() {
            entry.held |= leaving;
            table.copies += u64::from(leaving.count_ones());
            return written;
        }
        if entry.held == 0 {
            table.entries.remove(&id);
        }
        for tier in crate::journal::tiers_of(leaving) {
            let used = &mut table.used[usize::from(tier)];
            *used = used.saturating_sub(len);
        }
        Ok(())
    }

    /// Has new readers use other copies. Returns which copies are left, and the object's length.
    fn begin_to_leave(
        &self,
        id: ContentId,
        from: u8,
        last: Last,
    ) -> Result<(u8, u64), ObjectError> {
        let mut table = self.table.lock();
        let entry = table.entries.get_mut(&id).filter(|entry| entry.held != 0);
        let entry = entry.ok_or(ObjectError::Unknown { id })?;
        if entry.busy {
            return Err(ObjectError::Busy { id });
        }
        let leaving = entry.held & from;
        if let Some(tier) = self.first_read(entry, leaving) {
            return Err(ObjectError::InUse { id, tier });
        }
        let kept = self.present(entry.held & !leaving).next();
        if last == Last::Keep && leaving != 0 && kept.is_none() {
            let tier = self.present(leaving).next().unwrap_or(TierIndex(0));
            return Err(ObjectError::OnlyCopy { id, tier });
        }
        entry.held &= !leaving;
        entry.busy = true;
        let len = entry.len;
        table.copies = table.copies.saturating_sub(u64::from(leaving.count_ones()));
        Ok((leaving, len))
    }

    /// Returns the first tier of a set whose copy somebody reads.
    fn first_read(&self, entry: &Entry, tiers: u8) -> Option<TierIndex> {
        self.present(tiers).find(|tier| {
            let slot = self.tiers.get(tier.0).map(|tier| usize::from(tier.slot));
            slot.is_some_and(|slot| entry.readers[slot] > 0)
        })
    }

    /// Removes copies that do not count. What cannot be removed goes when the tiers are opened
    /// again.
    fn remove_files(&self, id: ContentId, tiers: u8, last: Last) {
        for (index, tier) in self.tiers.iter().enumerate() {
            let mut done = Ok(());
            if tiers & (1 << tier.slot) != 0 {
                done = tier.medium.remove(&whole_name(id));
            }
            // Who finds a torn journal takes in what has the right hash. A copy of an object that
            // has others may come back that way, but a forgotten object may not: neither what is
            // removed now, nor what was before.
            let gone = !matches!(&done, Err(error) if error.kind() != io::ErrorKind::NotFound);
            if last == Last::Give && gone {
                done = tier.medium.sync_names();
            }
            match done {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let (id, tier) = (id.short(), TierIndex(index));
                    log::warn!("cannot remove object {id} from {tier}: {error}");
                }
                _ => {}
            }
        }
    }

    /// Appends to the journal, and then calls `change` to make the new state visible to readers.
    pub(super) fn write_down(
        &self,
        records: &[Record],
        change: impl FnOnce(&mut Table),
    ) -> Result<(), ObjectError> {
        let failed = |source| ObjectError::Journal { source };
        let mut journal = self.journal.lock();
        let known = {
            let table = self.table.lock();
            let renew = journal.is_stale() || journal.is_wordy(table.copies);
            renew.then(|| table.known())
        };
        if let Some(known) = known {
            journal.renew(&self.ids, &known).map_err(failed)?;
        }
        if !records.is_empty() {
            journal.append(records).map_err(failed)?;
        }
        change(&mut self.table.lock());
        Ok(())
    }
}
