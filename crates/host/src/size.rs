//! Sizes in bytes, parsed and formatted for people.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `4096`, `64K`, `1.5G`; units are powers of 1024.
///
/// ```
/// use host::size::Size;
///
/// let size: Size = "1.5G".parse()?;
/// assert_eq!(size, Size(3 << 29));
/// assert!("many".parse::<Size>().is_err());
/// # Ok::<(), host::size::ParseSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseSizeError;

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size is a number and a unit of K, M, G or T, as in 512M or 1.5G")
    }
}

impl std::error::Error for ParseSizeError {}

const UNITS: [(char, u64); 4] = [
    ('K', 1 << 10),
    ('M', 1 << 20),
    ('G', 1 << 30),
    ('T', 1 << 40),
];

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let text = text
            .strip_suffix("iB")
            .or_else(|| text.strip_suffix('B'))
            .unwrap_or(text);
        let last = text
            .chars()
            .last()
            .ok_or(ParseSizeError)?
            .to_ascii_uppercase();
        let unit = UNITS.iter().find(|(name, _)| *name == last);
        let (digits, scale) = match unit {
            Some((_, scale)) => (&text[..text.len() - 1], *scale),
            None => (text, 1),
        };
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(scale).map(Self).ok_or(ParseSizeError);
        }
        let (whole, part) = digits.split_once('.').ok_or(ParseSizeError)?;
        if part.is_empty() || scale == 1 {
            return Err(ParseSizeError);
        }
        let thousandths = format!("{part:0<3}");
        let whole: u64 = whole.parse().map_err(|_| ParseSizeError)?;
        let part: u64 = thousandths
            .get(..3)
            .and_then(|p| p.parse().ok())
            .ok_or(ParseSizeError)?;
        let bytes = whole
            .checked_mul(scale)
            // At most 999 times 2^40.
            .and_then(|b| b.checked_add(part * scale / 1000));
        bytes.map(Self).ok_or(ParseSizeError)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, scale)| self.0 >= *scale);
        let Some((name, scale)) = unit else {
            return write!(f, "{} B", self.0);
        };
        let tenths = u128::from(self.0) * 10 / u128::from(*scale);
        f.pad(&format!("{}.{} {name}iB", tenths / 10, tenths % 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64k", 65536),
            ("2MiB", 2 << 20),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        assert_eq!("1.5G".parse(), Ok(Size(3 << 29)));
        for text in ["", "K", "-1", "1.G", "1x", "99999999999T", "1.5"] {
            assert_eq!(text.parse::<Size>(), Err(ParseSizeError), "{text}");
        }
    }

    #[test]
    fn writes_one_decimal() {
        assert_eq!(Size(512).to_string(), "512 B");
        assert_eq!(Size(36_700_160).to_string(), "35.0 MiB");
        assert_eq!(Size(u64::MAX).to_string(), "16777215.9 TiB");
    }
}
