//! What the directory of plans knows of the data of a start: where it is in a registry.

use blocks::Digest;

use super::{START_DATA_BYTES_MAX, StartDataRef};

const MAGIC: [u8; 8] = *b"YOLOBR\0\x01";
const CRC_AT: usize = 80;

/// The bytes of a record.
pub(crate) const RECORD_BYTES: usize = 84;

/// Encodes where the data is: in the repository whose blobs have this address.
pub(crate) fn encode(data: &StartDataRef, blob_url: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(data.digest.0);
    bytes.extend(data.size.to_le_bytes());
    bytes.extend(oci::digest_of(blob_url.as_bytes()).0);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Returns where the data is, if it is in that repository, and the record is valid.
pub(crate) fn decode(bytes: &[u8], blob_url: &str) -> Option<StartDataRef> {
    let record: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
    let (fields, sum) = record.split_at(CRC_AT);
    let [mut digest, mut repository] = [[0; 32]; 2];
    digest.copy_from_slice(&fields[8..40]);
    repository.copy_from_slice(&fields[48..]);
    let mut size = [0; 8];
    size.copy_from_slice(&fields[40..48]);
    let data = StartDataRef {
        digest: Digest(digest),
        size: u64::from_le_bytes(size),
    };
    let is_valid = fields.starts_with(&MAGIC)
        && sum == crc32c::crc32c(fields).to_le_bytes()
        && (1..=START_DATA_BYTES_MAX).contains(&data.size)
        && oci::digest_of(blob_url.as_bytes()).0 == repository;
    is_valid.then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back_for_the_same_repository() {
        let data = StartDataRef {
            digest: Digest([7; 32]),
            size: 12_345,
        };
        let bytes = encode(&data, "https://registry/v2/app/blobs");
        assert_eq!(bytes.len(), RECORD_BYTES);
        let known = |bytes: &[u8]| decode(bytes, "https://registry/v2/app/blobs");
        assert_eq!(known(&bytes), Some(data));
        assert_eq!(decode(&bytes, "https://registry/v2/other/blobs"), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(known(&damaged), None, "byte {at}");
        }
        assert_eq!(known(&bytes[..RECORD_BYTES - 1]), None);
        let long = StartDataRef {
            size: START_DATA_BYTES_MAX + 1,
            ..data
        };
        assert_eq!(known(&encode(&long, "https://registry/v2/app/blobs")), None);
    }
}
