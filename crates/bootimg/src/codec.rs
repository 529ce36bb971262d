//! bincode, in one place and within limits.
//!
//! Only the description of an image is encoded with it; everything that is searched or served has
//! a layout of its own. To replace bincode, replace this file.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
use bincode::{Decode, Encode};

use crate::FormatError;

/// Most bytes that are decoded, and that a decoder allocates for: META's limit.
const LIMIT: usize = 64 << 10;

const CONFIG: Configuration<LittleEndian, Fixint, Limit<LIMIT>> = bincode::config::standard()
    .with_fixed_int_encoding()
    .with_limit::<LIMIT>();

/// Encodes `value`, which is what errors call `what`.
pub(crate) fn encode(what: &'static str, value: &impl Encode) -> Result<Vec<u8>, FormatError> {
    let bytes = bincode::encode_to_vec(value, CONFIG).map_err(|_| FormatError::Rule {
        what,
        rule: "it cannot be encoded",
    })?;
    if bytes.len() > LIMIT {
        return Err(FormatError::TooLarge {
            what,
            bytes: bytes.len() as u64,
            limit: LIMIT as u64,
        });
    }
    Ok(bytes)
}

/// Decodes all of `bytes`.
pub(crate) fn decode<T: Decode<()>>(what: &'static str, bytes: &[u8]) -> Result<T, FormatError> {
    let broken = |rule| FormatError::Rule { what, rule };
    let (value, used) =
        bincode::decode_from_slice(bytes, CONFIG).map_err(|_| broken("it cannot be decoded"))?;
    if used != bytes.len() {
        return Err(broken("something follows its end"));
    }
    Ok(value)
}
