//! The digests by which containers' layers and images go.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A SHA-256 as the OCI image specification writes it: `sha256:` and 64 lower-case hexadecimal
/// digits. Of a layer it is that of the uncompressed tar, the *diff ID*.
///
/// Other algorithms are allowed by the specification, and no engine uses them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

const PREFIX: &str = "sha256:";

impl Digest {
    /// Returns the first 12 hexadecimal digits: enough for a person to tell layers apart.
    #[must_use]
    pub fn short(&self) -> String {
        self.hex().chars().take(12).collect()
    }

    /// Returns the 64 hexadecimal digits, without the algorithm.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a digest: {text:?}; sha256: and 64 hexadecimal digits are needed")]
pub struct ParseDigestError {
    /// The text, truncated.
    pub text: String,
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseDigestError {
            text: text.chars().take(80).collect(),
        })
    }
}

fn parse(text: &str) -> Option<Digest> {
    let hex = text.strip_prefix(PREFIX)?.as_bytes();
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = hex.as_chunks::<2>();
    let mut bytes = [0; 32];
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(Digest(bytes))
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (0xa0, 0x0f);
        let digest = Digest(bytes);
        let text = digest.to_string();
        assert_eq!(text, format!("sha256:a0{}0f", "00".repeat(30)));
        assert_eq!(text.parse(), Ok(digest));
        assert_eq!(digest.short(), "a00000000000");
    }

    #[test]
    fn nothing_else_is_a_digest() {
        let hex = "ab".repeat(32);
        for bad in [
            String::new(),
            hex.clone(),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{hex}a"),
            format!("sha256:{hex}aa"),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{}é", &hex[2..]),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
