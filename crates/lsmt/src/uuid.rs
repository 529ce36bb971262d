//! Identifiers of layers, in either case on disk.

use std::fmt;

use crate::error::{Result, rule};

/// Bytes of an identifier on disk: text of 36 characters, and a zero.
pub(crate) const UUID_BYTES: usize = 37;

/// The identifier of a layer. overlaybd writes it in upper case, `AgentENV` in lower case.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uuid([u8; 16]);

impl Uuid {
    /// The identifier of layers without one.
    pub const NIL: Self = Self([0; 16]);

    /// Returns the identifier of the bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the identifier that overlaybd's convertor derives from the chain ID of a layer: its
    /// first 16 bytes.
    pub fn from_chain_id(digest: &[u8; 32]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// Parses the text form, in either case.
    ///
    /// # Errors
    ///
    /// Fails if it is not of the form 8-4-4-4-12.
    pub fn parse(text: &str) -> Result<Self> {
        Self::decode(text.as_bytes())
    }

    /// Decodes a field of 37 bytes; one of zeros is nil.
    pub(crate) fn decode(field: &[u8]) -> Result<Self> {
        let end = field.iter().position(|&byte| byte == 0);
        let text = &field[..end.unwrap_or(field.len())];
        if text.is_empty() {
            return Ok(Self::NIL);
        }
        if text.len() != 36 {
            return rule("UUID", "it has not 36 characters");
        }
        let mut bytes = [0; 16];
        let mut digits = 0;
        for (at, &byte) in text.iter().enumerate() {
            if matches!(at, 8 | 13 | 18 | 23) {
                if byte != b'-' {
                    return rule("UUID", "a dash is missing");
                }
                continue;
            }
            let Some(digit) = char::from(byte).to_digit(16) else {
                return rule("UUID", "a character is no hexadecimal digit");
            };
            bytes[digits / 2] = bytes[digits / 2] << 4 | u8::try_from(digit).unwrap_or(0);
            digits += 1;
        }
        Ok(Self(bytes))
    }

    /// Returns the field of 37 bytes, in upper case.
    pub(crate) fn encode(self) -> [u8; UUID_BYTES] {
        let mut field = [0; UUID_BYTES];
        field[..36].copy_from_slice(self.to_string().as_bytes());
        field
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_either_case_and_writes_upper_case() {
        let text = "0a0A0b0c-0000-4000-8000-00000000000f";
        let uuid = Uuid::parse(text).unwrap();
        assert_eq!(uuid.to_string(), text.to_uppercase());
        assert_eq!(Uuid::decode(&uuid.encode()).unwrap(), uuid);
        assert_eq!(Uuid::decode(&[0; 37]).unwrap(), Uuid::NIL);
    }

    #[test]
    fn refuses_what_is_none() {
        for text in [
            "0",
            "0a0A0b0c-0000-4000-8000-00000000000g",
            "0a0A0b0c00000-4000-8000-00000000000f",
        ] {
            assert!(Uuid::parse(text).is_err(), "{text}");
        }
    }
}
