//! Traces of accesses as lines of text: `CHUNK BYTES`, followed by `p` for a prefetch.

use std::io::{self, BufRead, Write};

use super::{ChunkAccess, random};
use crate::Class;

/// A line that is longer is no access.
const LINE_MAX: u64 = 4096;

/// Why a trace of accesses cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessTraceError {
    /// It cannot be read.
    #[error("cannot read line {line}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// The cause.
        source: io::Error,
    },
    /// A line is invalid.
    #[error(
        "line {line} is not CHUNK BYTES, or CHUNK BYTES p: a name without spaces, and 1 to 2^32-1"
    )]
    Line {
        /// The line, from 1.
        line: u64,
    },
    /// There are more accesses than fit in memory.
    #[error("more than {limit} accesses; split the trace")]
    TooLong {
        /// How many there may be.
        limit: usize,
    },
}

/// Reads at most `limit` accesses. Empty lines, and those that begin with `#`, are skipped. A chunk
/// is a number, or any other text, which is mapped to a number.
///
/// # Errors
/// If it cannot be read, is not of this form, or too long.
pub fn read_accesses(
    mut input: impl BufRead,
    limit: usize,
) -> Result<Vec<ChunkAccess>, AccessTraceError> {
    let mut accesses = Vec::new();
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        let mut bounded = io::Read::take(&mut input, LINE_MAX);
        let read = bounded.read_until(b'\n', &mut text);
        match read.map_err(|source| AccessTraceError::Io { line, source })? {
            0 => break,
            // Cut by the bound.
            _ if text.len() as u64 == LINE_MAX => return Err(AccessTraceError::Line { line }),
            _ => {}
        }
        let words = std::str::from_utf8(&text).map(str::trim);
        let words = words.map_err(|_| AccessTraceError::Line { line })?;
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        if accesses.len() == limit {
            return Err(AccessTraceError::TooLong { limit });
        }
        accesses.push(parse(words).ok_or(AccessTraceError::Line { line })?);
    }
    Ok(accesses)
}

fn parse(line: &str) -> Option<ChunkAccess> {
    let mut words = line.split_ascii_whitespace();
    let (chunk, bytes) = (words.next()?, words.next()?);
    let class = match words.next() {
        None => Class::Demand,
        Some("p") => Class::Prefetch,
        Some(_) => return None,
    };
    let chunk = chunk.parse().unwrap_or_else(|_| {
        let id = crate::ChunkId::of(chunk.as_bytes());
        random::mix(ChunkAccess::number(&id))
    });
    let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0)?;
    words.next().is_none().then_some(ChunkAccess {
        chunk,
        bytes,
        class,
    })
}

/// Writes accesses in that form.
///
/// # Errors
/// If they cannot be written.
pub fn write_accesses(accesses: &[ChunkAccess], mut out: impl Write) -> io::Result<()> {
    for ChunkAccess {
        chunk,
        bytes,
        class,
    } in accesses
    {
        let mark = match class {
            Class::Demand => "",
            Class::Prefetch => " p",
        };
        writeln!(out, "{chunk} {bytes}{mark}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let accesses: Vec<_> = super::super::ManyVms::small()
            .accesses()
            .take(500)
            .collect();
        let mut text = Vec::new();
        write_accesses(&accesses, &mut text).unwrap();
        assert_eq!(read_accesses(&text[..], 500).unwrap(), accesses);
        let more = read_accesses(&text[..], 499);
        assert!(matches!(
            more,
            Err(AccessTraceError::TooLong { limit: 499 })
        ));
    }

    #[test]
    fn names_stand_for_numbers() {
        let text = "# of web\nlibc.so:0 131072\n\nlibc.so:1 7 p\nlibc.so:0 131072";
        let accesses = read_accesses(text.as_bytes(), 9).unwrap();
        assert_eq!(accesses.len(), 3);
        assert_eq!(accesses[0], accesses[2]);
        assert_ne!(accesses[0].chunk, accesses[1].chunk);
        assert_eq!((accesses[1].bytes, accesses[1].class), (7, Class::Prefetch));
    }

    #[test]
    fn other_lines_are_refused_by_their_number() {
        let long = format!("1 {}\n", "9".repeat(5000));
        for line in [
            "7",
            "7 0",
            "7 -1",
            "7 1 x",
            "7 1 p p",
            "7 4294967296",
            "\u{0}",
            &long,
        ] {
            let text = format!("1 1\n{line}\n");
            let read = read_accesses(text.as_bytes(), 9);
            assert!(
                matches!(read, Err(AccessTraceError::Line { line: 2 })),
                "{line:.20}"
            );
        }
        let read = read_accesses(&b"\xff\xfe 1\n"[..], 9);
        assert!(matches!(read, Err(AccessTraceError::Line { line: 1 })));
    }
}
