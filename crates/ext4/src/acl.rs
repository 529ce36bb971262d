//! Lists of access rights: Linux passes them in another form than ext4 stores.

/// Version of the form that Linux passes.
const PASSED: u32 = 2;
/// Version of the form that is stored.
const STORED: u32 = 1;
/// Tags of entries that name a user or a group.
const NAMED: [u16; 2] = [2, 8];
const ENTRY_BYTES: usize = 8;

/// Returns the stored form of a list; `None` if it is none.
pub(crate) fn stored(passed: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = passed.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if u32::from_le_bytes(*version) != PASSED || !rest.is_empty() {
        return None;
    }
    let mut stored = STORED.to_le_bytes().to_vec();
    for entry in entries {
        let named = NAMED.contains(&u16::from_le_bytes([entry[0], entry[1]]));
        stored.extend_from_slice(if named { entry } else { &entry[..4] });
    }
    Some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_entries_keep_their_number() {
        let mut passed = 2_u32.to_le_bytes().to_vec();
        passed.extend([1, 0, 6, 0, 255, 255, 255, 255]);
        passed.extend([2, 0, 4, 0, 232, 3, 0, 0]);
        let expected = [1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 232, 3, 0, 0];
        assert_eq!(stored(&passed), Some(expected.to_vec()));
        assert_eq!(stored(&passed[..11]), None);
        assert_eq!(stored(&[1, 0, 0, 0]), None);
        assert_eq!(stored(b""), None);
    }
}
