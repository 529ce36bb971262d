//! The libraries that a program is linked with, read from the available part of its file.
//!
//! Little-endian 64-bit ELF only. The content is untrusted: every number in it is bounded, and an
//! invalid one ends the parsing.

const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// Program headers of a file, at most; compilers make some ten.
const PROGRAM_HEADERS_MAX: usize = 64;
/// Bytes of the dynamic section that are read: a thousand entries.
const DYNAMIC_MAX: u64 = 16 << 10;
/// Libraries of one file, at most.
const NEEDED_MAX: usize = 128;
/// Bytes of a name.
const NAME_MAX: usize = 255;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Why the names cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The content at this offset is not here.
    Missing(u64),
    /// It is no program, or not one that is understood.
    Other,
}

/// Reads bytes of a file: up to so many from an offset, fewer at its end.
pub(super) type Reader<'a> = dyn Fn(u64, usize) -> Result<Vec<u8>, Unread> + 'a;

/// A part of the file that a program header is about.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    len: u64,
}

/// Returns the names of the libraries that a program is linked with; the loader is among them.
pub(super) fn needed(read: &Reader<'_>) -> Result<Vec<Vec<u8>>, Unread> {
    let segments = segments(read)?;
    let mut names = Vec::new();
    let of_kind = |kind| segments.iter().filter(move |segment| segment.kind == kind);
    if let Some(interpreter) = of_kind(PT_INTERP).next() {
        let path = name(read, interpreter.offset)?;
        let base = path.rsplit(|byte| *byte == b'/').next();
        names.extend(base.map(<[u8]>::to_vec));
    }
    let Some(dynamic) = of_kind(PT_DYNAMIC).next() else {
        return Ok(names);
    };
    let len = usize::try_from(dynamic.len.min(DYNAMIC_MAX)).map_err(|_| Unread::Other)?;
    let entries = read(dynamic.offset, len)?;
    let entries = entries.chunks_exact(16);
    let entries = entries.map(|entry| (number(entry, 0, 8), number(entry, 8, 8)));
    let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB);
    let Some(&(_, strings)) = strings else {
        return Ok(names);
    };
    let table = of_kind(PT_LOAD).find_map(|load| {
        let inside = strings.checked_sub(load.address)?;
        (inside < load.len).then_some(load.offset.checked_add(inside)?)
    });
    let table = table.ok_or(Unread::Other)?;
    let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    for (_, at) in needed.take(NEEDED_MAX) {
        names.push(name(read, table.checked_add(*at).ok_or(Unread::Other)?)?);
    }
    Ok(names)
}

fn segments(read: &Reader<'_>) -> Result<Vec<Segment>, Unread> {
    let header = read(0, HEADER_BYTES)?;
    if header.len() < HEADER_BYTES || header[..MAGIC.len()] != MAGIC {
        return Err(Unread::Other);
    }
    let (at, size, count) = (
        number(&header, 32, 8),
        number(&header, 54, 2),
        number(&header, 56, 2),
    );
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if size != PROGRAM_HEADER_BYTES as u64 || count > PROGRAM_HEADERS_MAX {
        return Err(Unread::Other);
    }
    let table = read(at, count * PROGRAM_HEADER_BYTES)?;
    let segments = table.chunks_exact(PROGRAM_HEADER_BYTES);
    Ok(segments
        .map(|entry| Segment {
            kind: number(entry, 0, 4),
            offset: number(entry, 8, 8),
            address: number(entry, 16, 8),
            len: number(entry, 32, 8),
        })
        .collect())
}

/// Reads a name that ends with a zero.
fn name(read: &Reader<'_>, at: u64) -> Result<Vec<u8>, Unread> {
    let mut bytes = read(at, NAME_MAX + 1)?;
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.truncate(end.ok_or(Unread::Other)?);
    Ok(bytes)
}

/// Returns a number of `len` bytes; 0 behind the end.
fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let mut number = [0; 8];
    if let Some(field) = bytes.get(at..at + len) {
        number[..len].copy_from_slice(field);
    }
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program that runs this test.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    fn of(bytes: &[u8], here: impl Fn(u64) -> bool) -> Result<Vec<Vec<u8>>, Unread> {
        needed(&|at, len| {
            let start = usize::try_from(at).map_err(|_| Unread::Other)?;
            if !here(at) {
                return Err(Unread::Missing(at));
            }
            let rest = bytes.get(start..).unwrap_or_default();
            Ok(rest[..len.min(rest.len())].to_vec())
        })
    }

    #[test]
    fn a_program_names_its_loader_and_its_libraries() {
        let names = of(&own(), |_| true).unwrap();
        let names: Vec<_> = names
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        assert!(names[0].starts_with("ld-"), "{names:?}");
        assert!(
            names.iter().any(|name| name.starts_with("libc.so")),
            "{names:?}"
        );
    }

    #[test]
    fn what_is_not_here_is_said() {
        let missing = of(&own(), |at| at < 4096);
        assert!(
            matches!(missing, Err(Unread::Missing(at)) if at >= 4096),
            "{missing:?}"
        );
    }

    #[test]
    fn hostile_bytes_end_the_reading() {
        assert_eq!(of(b"#!/bin/sh\n", |_| true), Err(Unread::Other));
        let own = own();
        for changed in 0..4096_usize {
            for (flipped, end) in [(Some(changed), own.len()), (None, changed)] {
                let _either = needed(&|at, len| {
                    let start = usize::try_from(at).map_err(|_| Unread::Other)?;
                    let rest = own[..end].get(start..).unwrap_or_default();
                    let mut bytes = rest[..len.min(rest.len())].to_vec();
                    let inside = flipped.and_then(|at| at.checked_sub(start));
                    if let Some(byte) = inside.and_then(|at| bytes.get_mut(at)) {
                        *byte = !*byte;
                    }
                    Ok(bytes)
                });
            }
        }
    }
}
