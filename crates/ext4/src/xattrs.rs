//! Extended attributes, in the inode or in a block.

use crate::acl;
use crate::error::{BLOCK_BYTES, Ext4Error};

const MAGIC: [u8; 4] = 0xea02_0000_u32.to_le_bytes();
/// What is in front of a name.
const ENTRY_BYTES: usize = 16;
/// What ends the entries.
const END_BYTES: usize = 4;
/// The header of a block of attributes.
const HEADER_BYTES: usize = 32;
const ACCESS: u8 = 2;
const DEFAULT: u8 = 3;

/// The names that the format has numbers for. The first two are whole names: nothing follows them.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"system.posix_acl_default", DEFAULT),
    (b"system.posix_acl_access", ACCESS),
    (b"security.", 6),
    (b"trusted.", 4),
    (b"user.", 1),
];

/// The attributes of an inode.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    /// What the inode has behind its fields.
    pub(crate) inline: Vec<u8>,
    /// The block, if they have one.
    pub(crate) block: Vec<u8>,
}

struct Attribute<'a> {
    index: u8,
    name: &'a [u8],
    value: Vec<u8>,
}

impl Attribute<'_> {
    fn entry_bytes(&self) -> usize {
        (ENTRY_BYTES + self.name.len()).next_multiple_of(4)
    }

    fn bytes(&self) -> usize {
        self.entry_bytes() + self.value.len().next_multiple_of(4)
    }

    fn hash(&self) -> u32 {
        let name = self
            .name
            .iter()
            .fold(0_u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
        self.value.chunks(4).fold(name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }
}

impl Attributes {
    /// Encodes attributes: in the `room` bytes behind an inode if they fit, otherwise in a block. Names without
    /// a handler in Linux are left out, since they cannot be set or read.
    pub(crate) fn encode<'a>(
        xattrs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        room: usize,
    ) -> Result<Self, Ext4Error> {
        let mut found = Vec::new();
        for (name, value) in xattrs {
            found.extend(attribute(name, value)?);
        }
        // The order in which Linux looks for them.
        found.sort_by_key(|attribute| (attribute.index, attribute.name.len(), attribute.name));
        let bytes: usize = found.iter().map(Attribute::bytes).sum();
        let needed = bytes + END_BYTES;
        if found.is_empty() {
            return Ok(Self::default());
        }
        if MAGIC.len() + needed <= room {
            let mut inline = MAGIC.to_vec();
            inline.extend(body(&found, room - MAGIC.len(), 0));
            let block = Vec::new();
            return Ok(Self { inline, block });
        }
        if HEADER_BYTES + needed > BLOCK_BYTES {
            return Err(Ext4Error::Xattr {
                name: "all of a file together".to_owned(),
                why: "ext4 has room for 4 KiB",
            });
        }
        let mut block = MAGIC.to_vec();
        block.extend(1_u32.to_le_bytes());
        block.extend(1_u32.to_le_bytes());
        let hash = found.iter().fold(0_u32, |hash, attribute| {
            hash.rotate_left(16) ^ attribute.hash()
        });
        block.extend(hash.to_le_bytes());
        block.resize(HEADER_BYTES, 0);
        block.extend(body(&found, BLOCK_BYTES - HEADER_BYTES, HEADER_BYTES));
        let inline = Vec::new();
        Ok(Self { inline, block })
    }
}

/// Encodes entries from the beginning of `len` bytes on, and their values from the end back. Places of values are
/// counted from `base` bytes before.
fn body(attributes: &[Attribute<'_>], len: usize, base: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let (mut at, mut end) = (0, len);
    for attribute in attributes {
        let value = &attribute.value;
        end -= value.len().next_multiple_of(4);
        bytes[end..end + value.len()].copy_from_slice(value);
        // All within a block of 4096 bytes.
        let short = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let place = if value.is_empty() { 0 } else { base + end };
        let mut entry = vec![
            u8::try_from(attribute.name.len()).unwrap_or(u8::MAX),
            attribute.index,
        ];
        entry.extend(short(place).to_le_bytes());
        entry.extend([0; 4]);
        entry.extend(u32::from(short(value.len())).to_le_bytes());
        entry.extend(attribute.hash().to_le_bytes());
        entry.extend_from_slice(attribute.name);
        bytes[at..at + entry.len()].copy_from_slice(&entry);
        at += attribute.entry_bytes();
    }
    bytes
}

fn attribute<'a>(name: &'a [u8], value: &[u8]) -> Result<Option<Attribute<'a>>, Ext4Error> {
    let refused = |why| Ext4Error::Xattr {
        name: String::from_utf8_lossy(name).into_owned(),
        why,
    };
    let found = PREFIXES
        .iter()
        .find_map(|(prefix, index)| Some((name.strip_prefix(*prefix)?, *index)));
    let Some((rest, index)) = found else {
        return Ok(None);
    };
    let whole = matches!(index, ACCESS | DEFAULT);
    if rest.is_empty() != whole {
        return Ok(None);
    }
    if rest.len() > usize::from(u8::MAX) || value.len() > BLOCK_BYTES {
        return Err(refused("it is too long for ext4"));
    }
    let value = match whole {
        true => acl::stored(value).ok_or_else(|| refused("it is no list of access rights"))?,
        false => value.to_vec(),
    };
    let name = rest;
    Ok(Some(Attribute { index, name, value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(xattrs: &[(&[u8], &[u8])]) -> Result<Attributes, Ext4Error> {
        Attributes::encode(xattrs.iter().copied(), 96)
    }

    #[test]
    fn what_fits_is_behind_the_inode() {
        assert_eq!(encode(&[]).unwrap(), Attributes::default());
        let left_out: &[(&[u8], &[u8])] = &[(b"com.apple.x", b"1"), (b"user.", b"2")];
        assert_eq!(encode(left_out).unwrap(), Attributes::default());
        let small = encode(&[(b"user.ab", b"xyz"), (b"security.c", b"")]).unwrap();
        assert!(small.block.is_empty());
        assert_eq!(small.inline.len(), 96);
        assert_eq!(small.inline[4..8], [2, 1, 88, 0]);
        assert_eq!(small.inline[92..], *b"xyz\0");
        assert_eq!(small.inline[24..28], [1, 6, 0, 0]);
    }

    #[test]
    fn what_does_not_fit_has_a_block_or_is_refused() {
        let one = encode(&[(b"user.a", &[7; 100])]).unwrap();
        assert!(one.inline.is_empty());
        assert_eq!(one.block.len(), BLOCK_BYTES);
        assert_eq!(one.block[BLOCK_BYTES - 100..], [7; 100]);
        // 4096, less the header, the entry and the end.
        encode(&[(b"user.a", &[7; 4096 - 32 - 20 - 4])]).unwrap();
        assert!(encode(&[(b"user.a", &[7; 4096 - 32 - 20 - 3])]).is_err());
        let acl = encode(&[(b"system.posix_acl_access", b"bad")]);
        assert!(acl.unwrap_err().to_string().contains("access rights"));
    }
}
