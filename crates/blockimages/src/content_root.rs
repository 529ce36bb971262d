//! What the content of a layer has to be, whoever sends it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::str::FromStr;

use lsmt::ReadAt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a root is written behind.
const PREFIX: &str = "blake3:";
/// Bytes that are hashed at once.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// The BLAKE3 hash of the uncompressed content of a layer: of the LSMT layer, without the tar and the ZFile around it. It is
/// the root of a tree, so that any part of the content can be verified by itself. As text, `blake3:` and 64 lower-case
/// hexadecimal digits.
///
/// ```
/// let root = blockimages::ContentRoot(*blake3::hash(b"content").as_bytes());
/// assert_eq!(root.to_string().parse(), Ok(root));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentRoot(pub [u8; 32]);

impl ContentRoot {
    /// Computes that of a content, as [`lsmt::open_content`] returns it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(content: &dyn ReadAt) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; PIECE_BYTES];
        hash_range(content, 0..content.size()?, &mut hasher, &mut buffer)?;
        Ok(Self(*hasher.finalize().as_bytes()))
    }
}

/// Adds a range of a content to a hasher, as much at a time as the buffer has room for.
pub(crate) fn hash_range(
    content: &dyn ReadAt,
    range: Range<u64>,
    hasher: &mut blake3::Hasher,
    buffer: &mut [u8],
) -> io::Result<()> {
    let most = buffer.len();
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).map_or(most, |left| left.min(most));
        let piece = &mut buffer[..len];
        content.read_at(piece, at)?;
        hasher.update(piece);
        at += len as u64;
    }
    Ok(())
}

impl fmt::Display for ContentRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", blake3::Hash::from_bytes(self.0))
    }
}

impl fmt::Debug for ContentRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not `blake3:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the root of a content: {text:?}; blake3: and 64 hexadecimal digits are needed")]
pub struct ParseContentRootError {
    /// The text, truncated.
    pub text: String,
}

impl FromStr for ContentRoot {
    type Err = ParseContentRootError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix(PREFIX);
        let hash = hex.and_then(|hex| blake3::Hash::from_hex(hex).ok());
        let root = hash.map(|hash| Self(*hash.as_bytes()));
        // One root has one text.
        let root = root.filter(|root| root.to_string() == text);
        root.ok_or_else(|| ParseContentRootError {
            text: text.chars().take(80).collect(),
        })
    }
}

impl Serialize for ContentRoot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lsmt::{MemoryStorage, Storage as _};

    use super::*;
    use crate::DeviceConfig;

    #[test]
    fn it_is_the_hash_of_the_whole_whatever_its_size() {
        let bytes: Vec<u8> = (0..(2 * PIECE_BYTES + 5))
            .map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1])
            .collect();
        for len in [
            0,
            1,
            1024,
            PIECE_BYTES - 1,
            PIECE_BYTES,
            2 * PIECE_BYTES,
            bytes.len(),
        ] {
            let content = MemoryStorage::default();
            content.write_at(&bytes[..len], 0).unwrap();
            let expected = ContentRoot(*blake3::hash(&bytes[..len]).as_bytes());
            assert_eq!(ContentRoot::of(&content).unwrap(), expected, "{len} bytes");
        }
    }

    #[test]
    fn a_content_that_ends_early_has_none() {
        struct Short;
        impl ReadAt for Short {
            fn size(&self) -> io::Result<u64> {
                Ok(10)
            }
            fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        }
        ContentRoot::of(&Short).unwrap_err();
    }

    #[test]
    fn text_and_back() {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (0xa0, 0x0f);
        let root = ContentRoot(bytes);
        let text = root.to_string();
        assert_eq!(text, format!("blake3:a0{}0f", "00".repeat(30)));
        assert_eq!(text.parse(), Ok(root));
        assert_eq!(serde_json::to_value(root).unwrap(), text);
        assert_eq!(
            serde_json::from_value::<ContentRoot>(text.into()).unwrap(),
            root
        );
    }

    #[test]
    fn a_layer_is_configured_with_it() {
        let root = ContentRoot([7; 32]);
        let text = format!(
            r#"{{"lowers": [{{"file": "a", "yolofsContent": "{root}"}}, {{"file": "b"}}]}}"#
        );
        let config = DeviceConfig::decode(text.as_bytes(), Path::new("")).unwrap();
        let found: Vec<_> = config.lowers.iter().map(|lower| lower.content).collect();
        assert_eq!(found, [Some(root), None]);
        let written = serde_json::to_value(&config).unwrap();
        assert_eq!(written["lowers"][0]["yolofsContent"], root.to_string());
        assert_eq!(written["lowers"][1].get("yolofsContent"), None);
    }

    #[test]
    fn nothing_else_is_a_root() {
        let hex = "ab".repeat(32);
        for bad in [
            String::new(),
            hex.clone(),
            format!("sha256:{hex}"),
            format!("blake3:{}", hex.to_uppercase()),
            format!("blake3:{hex}a"),
            format!("blake3:{}", &hex[2..]),
            format!("blake3:{}é", &hex[2..]),
            format!(" blake3:{hex}"),
        ] {
            assert!(bad.parse::<ContentRoot>().is_err(), "{bad}");
        }
    }
}
