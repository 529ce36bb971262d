//! The mark that identifies the tier of a directory.

use std::io;

use crate::journal::{JournalError, TIER_FILE_LEN, TierId, decode_tier, encode_tier};
use crate::medium::Medium;

/// The name of the file with the mark.
pub(super) const TIER_FILE: &str = "tier";

/// What a directory is known by as a tier, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub [u8; 16]);

impl Mark {
    /// Returns a new one, unlike all others.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        Ok(Self(id))
    }

    /// Reads the mark of a directory: `None` if it has no complete one.
    ///
    /// # Errors
    /// If it cannot be read, or a later program wrote it.
    pub fn read(medium: &dyn Medium) -> io::Result<Option<Self>> {
        let mut bytes = [0; TIER_FILE_LEN];
        let len = match medium.read_at(TIER_FILE, 0, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            len => len?,
        };
        match decode_tier(&bytes[..len]) {
            Ok(id) => Ok(Some(Self(id.0))),
            Err(JournalError::Damaged) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Writes the mark durably. For a tmpfs that was emptied: then it is the same tier again, and its
    /// former content counts as lost.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(self, medium: &dyn Medium) -> io::Result<()> {
        write_tier_file(medium, TierId(self.0))
    }
}

/// Writes the file of the mark, durably.
pub(super) fn write_tier_file(medium: &dyn Medium, id: TierId) -> io::Result<()> {
    medium.write_at("tier.new", 0, &encode_tier(id))?;
    medium.sync("tier.new")?;
    medium.rename("tier.new", TIER_FILE)?;
    medium.sync_names()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medium::DirMedium;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_rot_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let medium = DirMedium::open(dir.path()).unwrap();
        assert_eq!(Mark::read(&medium).unwrap(), None);
        let mark = Mark::random().unwrap();
        mark.write(&medium).unwrap();
        assert_eq!(Mark::read(&medium).unwrap(), Some(mark));
        assert_ne!(mark, Mark::random().unwrap());
        std::fs::write(dir.path().join("tier"), b"rot").unwrap();
        assert_eq!(Mark::read(&medium).unwrap(), None);
    }
}
