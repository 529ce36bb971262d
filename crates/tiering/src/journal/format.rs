//! The journal as bytes: docs/tiering-journal-format.md, sections 2 to 4. No I/O.

use blocks::{ContentId, Input};

use super::{Kind, Record};

const TIER_MAGIC: [u8; 8] = *b"\x89YOLOTI\n";
const JOURNAL_MAGIC: [u8; 8] = *b"\x89YOLOTJ\n";
const RECORD_MAGIC: [u8; 4] = *b"\x89TJR";
const VERSION: u32 = 1;

/// The maximum number of tiers in a journal.
pub(crate) const TIERS_MAX: usize = 8;
/// Size of the file that identifies the tier of a directory.
pub(crate) const TIER_FILE_LEN: usize = 64;
/// Bytes of the journal's header.
pub(super) const HEADER_LEN: usize = 192;
/// Size of a record in bytes.
pub(super) const RECORD_LEN: usize = 64;

const HASH_LEN: usize = 16;
const TIER_ID_LEN: usize = 16;
const TIER_IDS_AT: usize = 48;
const _: () = assert!(TIER_IDS_AT + TIERS_MAX * TIER_ID_LEN + HASH_LEN == HEADER_LEN);

/// Which tier a directory is, wherever it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TierId(pub(crate) [u8; TIER_ID_LEN]);

/// Why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// They were changed, or were never a journal's.
    #[error("it is damaged")]
    Damaged,
    /// A later program wrote them.
    #[error("it has version {found}; this program knows {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
}

/// What a journal begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) generation: u64,
    pub(super) tiers: Vec<TierId>,
}

fn hash16(parts: &[&[u8]]) -> [u8; HASH_LEN] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut short = [0; HASH_LEN];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..HASH_LEN]);
    short
}

/// Appends the hash of what is there, and fills up to it with zeros.
fn seal(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.resize(len - HASH_LEN, 0);
    let hash = hash16(&[&bytes]);
    bytes.extend_from_slice(&hash);
    bytes
}

/// Returns what lies before the hash, if magic, version and hash are right.
fn open(bytes: &[u8], len: usize, magic: [u8; 8]) -> Result<&[u8], JournalError> {
    let sealed = bytes.get(..len).ok_or(JournalError::Damaged)?;
    let (body, hash) = sealed.split_at(len - HASH_LEN);
    let mut input = Input::new("head", body);
    let (found, version) = (input.array::<8>(), input.u32());
    let (Ok(found), Ok(version)) = (found, version) else {
        return Err(JournalError::Damaged);
    };
    if found != magic || hash != hash16(&[body]) {
        return Err(JournalError::Damaged);
    }
    if version != VERSION {
        return Err(JournalError::Version { found: version });
    }
    Ok(body)
}

/// Encodes the file that identifies the tier of a directory.
pub(crate) fn encode_tier(id: TierId) -> Vec<u8> {
    let mut bytes = TIER_MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&id.0);
    seal(bytes, TIER_FILE_LEN)
}

/// Decodes it.
pub(crate) fn decode_tier(bytes: &[u8]) -> Result<TierId, JournalError> {
    let body = open(bytes, TIER_FILE_LEN, TIER_MAGIC)?;
    let read = |input: &mut Input| {
        input.take(12)?;
        let reserved = input.u32()?;
        let id = input.array()?;
        input.zeros()?;
        Ok::<_, blocks::Broken>((reserved, id))
    };
    match read(&mut Input::new("tier", body)) {
        Ok((0, id)) => Ok(TierId(id)),
        _ => Err(JournalError::Damaged),
    }
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = JOURNAL_MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let tiers = u32::try_from(self.tiers.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&tiers.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.resize(TIER_IDS_AT, 0);
        for tier in &self.tiers {
            bytes.extend_from_slice(&tier.0);
        }
        seal(bytes, HEADER_LEN)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, JournalError> {
        let body = open(bytes, HEADER_LEN, JOURNAL_MAGIC)?;
        Self::read(&mut Input::new("header", body)).ok_or(JournalError::Damaged)
    }

    fn read(input: &mut Input) -> Option<Self> {
        input.take(12).ok()?;
        let tiers = input.count().ok()?;
        let generation = input.u64().ok()?;
        Input::new("header", input.take(24).ok()?).zeros().ok()?;
        if !(1..=TIERS_MAX).contains(&tiers) {
            return None;
        }
        let ids = input.records::<TIER_ID_LEN>(tiers).ok()?;
        input.zeros().ok()?;
        let tiers = ids.iter().copied().map(TierId).collect();
        Some(Self { generation, tiers })
    }
}

impl Record {
    pub(super) fn encode(&self, generation: u64, number: u64) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4] = match self.kind {
            Kind::Settled => 1,
            Kind::Left => 2,
        };
        bytes[5] = self.tier;
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..48].copy_from_slice(&self.object.0);
        let hash = Self::hash(generation, number, &bytes[..48]);
        bytes[48..].copy_from_slice(&hash);
        bytes
    }

    fn hash(generation: u64, number: u64, body: &[u8]) -> [u8; HASH_LEN] {
        hash16(&[&generation.to_le_bytes(), &number.to_le_bytes(), body])
    }

    /// Returns the record, if it is one that was written here.
    pub(super) fn decode(bytes: &[u8; RECORD_LEN], header: &Header, number: u64) -> Option<Self> {
        let (body, hash) = bytes.split_at(RECORD_LEN - HASH_LEN);
        if hash != Self::hash(header.generation, number, body) {
            return None;
        }
        let mut input = Input::new("record", body);
        let magic = input.array::<4>().ok()?;
        let kind = match input.u8().ok()? {
            1 => Kind::Settled,
            2 => Kind::Left,
            _ => return None,
        };
        let tier = input.u8().ok()?;
        let reserved = input.u16().ok()?;
        let len = input.u64().ok()?;
        let object = ContentId(input.array().ok()?);
        let known = usize::from(tier) < header.tiers.len();
        let sound = magic == RECORD_MAGIC && reserved == 0 && known;
        sound.then_some(Self {
            kind,
            tier,
            len,
            object,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            generation: 7,
            tiers: vec![TierId([1; 16]), TierId([2; 16])],
        }
    }

    fn record() -> Record {
        Record {
            kind: Kind::Left,
            tier: 1,
            len: 0x0102_0304,
            object: ContentId([9; 32]),
        }
    }

    #[test]
    fn what_is_written_is_as_the_document_says() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), 192);
        assert_eq!(
            bytes[..24],
            *b"\x89YOLOTJ\n\x01\0\0\0\x02\0\0\0\x07\0\0\0\0\0\0\0"
        );
        assert_eq!(bytes[48..80], [[1; 16], [2; 16]].concat());
        assert_eq!(bytes[176..], blake3::hash(&bytes[..176]).as_bytes()[..16]);
        let bytes = record().encode(7, 5);
        assert_eq!(bytes[..16], *b"\x89TJR\x02\x01\0\0\x04\x03\x02\x01\0\0\0\0");
        assert_eq!(bytes[16..48], [9; 32]);
        let bytes = encode_tier(TierId([3; 16]));
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..16], *b"\x89YOLOTI\n\x01\0\0\0\0\0\0\0");
        assert_eq!(bytes[16..32], [3; 16]);
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
        assert_eq!(
            decode_tier(&encode_tier(TierId([3; 16]))),
            Ok(TierId([3; 16]))
        );
        let bytes = record().encode(7, 5);
        assert_eq!(Record::decode(&bytes, &header(), 5), Some(record()));
        assert_eq!(Record::decode(&bytes, &header(), 6), None, "another place");
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let good = header().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(
                Header::decode(&bad),
                Err(JournalError::Damaged),
                "byte {at}"
            );
        }
        let good = record().encode(7, 5);
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 0x80;
            assert_eq!(Record::decode(&bad, &header(), 5), None, "byte {at}");
        }
        let good = encode_tier(TierId([3; 16]));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(decode_tier(&bad), Err(JournalError::Damaged), "byte {at}");
            assert_eq!(decode_tier(&good[..at]), Err(JournalError::Damaged));
        }
    }

    #[test]
    fn rules_are_kept_though_the_hash_is_right() {
        let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = header().encode();
            bytes.truncate(176);
            change(&mut bytes);
            Header::decode(&seal(bytes, HEADER_LEN))
        };
        assert_eq!(sealed(&|_| {}), Ok(header()));
        assert_eq!(
            sealed(&|bytes| bytes[8] = 2),
            Err(JournalError::Version { found: 2 })
        );
        for (at, value) in [(12, 0), (12, 9), (30, 1), (170, 1)] {
            let changed = sealed(&|bytes| bytes[at] = value);
            assert_eq!(changed, Err(JournalError::Damaged), "byte {at}");
        }
        let mut one_tier = header();
        one_tier.tiers.pop();
        assert_eq!(Record::decode(&record().encode(7, 5), &one_tier, 5), None);
    }
}
