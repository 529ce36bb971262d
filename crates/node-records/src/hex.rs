//! Serializes bytes as two hexadecimal digits each, so that a record is readable.

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// Writes bytes.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    serializer.serialize_str(&text)
}

/// Reads bytes.
///
/// # Errors
/// If the text is something else.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(u8::try_from(digit(high)? << 4 | digit(low)?).ok()?),
        _ => None,
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| D::Error::custom("these are not bytes in hexadecimal digits"))
}
