//! The digest that names a blob, and the hasher that verifies it.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha512};

/// The hash function of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// The usual one.
    Sha256,
    /// The other one of the specification.
    Sha512,
}

impl Algorithm {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Sha256, Self::Sha512];

    /// Returns the part before the colon.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    const fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    pub(crate) fn hasher(self) -> Hasher {
        match self {
            Self::Sha256 => Hasher::Sha256(Sha256::new()),
            Self::Sha512 => Hasher::Sha512(Box::new(Sha512::new())),
        }
    }
}

/// The digest of a blob or a manifest: `sha256:` or `sha512:`, and lower-case hexadecimal digits.
/// It is safe as the name of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest {
    algorithm: Algorithm,
    hex: String,
}

/// The text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is sha256: and 64, or sha512: and 128 hexadecimal digits")]
pub struct ParseBlobDigestError;

impl BlobDigest {
    /// Returns the digest of these bytes.
    #[must_use]
    pub fn of(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hasher = algorithm.hasher();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns its hash function.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.word(), self.hex)
    }
}

impl fmt::Debug for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BlobDigest {
    type Err = ParseBlobDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (word, hex) = text.split_once(':').ok_or(ParseBlobDigestError)?;
        let known = Algorithm::ALL
            .into_iter()
            .find(|known| known.word() == word);
        let algorithm = known.ok_or(ParseBlobDigestError)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if hex.len() != algorithm.digits() || !hex.bytes().all(is_digit) {
            return Err(ParseBlobDigestError);
        }
        let hex = hex.to_owned();
        Ok(Self { algorithm, hex })
    }
}

/// Computes a digest.
#[derive(Clone, Debug)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> BlobDigest {
        let (algorithm, bytes) = match self {
            Self::Sha256(hasher) => (Algorithm::Sha256, hasher.finalize().to_vec()),
            Self::Sha512(hasher) => (Algorithm::Sha512, hasher.finalize().to_vec()),
        };
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        BlobDigest { algorithm, hex }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_as_they_are() {
        for algorithm in Algorithm::ALL {
            let digest = BlobDigest::of(algorithm, b"1");
            assert_eq!(digest.to_string().parse(), Ok(digest));
        }
        let one = "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b";
        assert_eq!(BlobDigest::of(Algorithm::Sha256, b"1").to_string(), one);
    }

    #[test]
    fn nothing_else_is_a_name() {
        let good = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b";
        for bad in [
            String::new(),
            good.to_owned(),
            format!("sha512:{good}"),
            format!("sha256:{}", good.to_uppercase()),
            format!("sha256:../{}", &good[3..]),
            format!("md5:{good}"),
            format!("sha256:{good}0"),
        ] {
            assert_eq!(bad.parse::<BlobDigest>(), Err(ParseBlobDigestError));
        }
    }
}
