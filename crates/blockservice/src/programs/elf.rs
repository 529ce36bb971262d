//! What the loader of a program reads: the libraries that it is linked with, where it looks for them, and the parts of its
//! own file that are relocated; read from the available part of the file.
//!
//! Little-endian 64-bit ELF only. The content is untrusted: every number in it is bounded, and an
//! invalid one ends the parsing.

use std::ops::Range;

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
/// Bytes of a list of directories.
const DIRECTORIES_MAX: usize = 1024;
/// Bytes of a file that its loader reads, as far as they are told.
const LOADED_MAX: u64 = 8 << 20;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
/// The flags of a segment that is executed, and of one that is written to.
const PF_X: u64 = 1;
const PF_W: u64 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
/// The tables of relocations: the tag of the address, and that of the length.
const RELOCATIONS: [(u64, u64); 3] = [(7, 8), (23, 2), (36, 35)];

/// Why the names cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The content at this offset is not here.
    Missing(u64),
    /// It is no program, or not one that is understood.
    Other,
}

/// Reads bytes of a file: up to so many from an offset, fewer at its end.
pub type Reader<'a> = dyn Fn(u64, usize) -> Result<Vec<u8>, Unread> + 'a;

/// What the loader of a program reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// The path of the loader.
    pub interpreter: Option<Vec<u8>>,
    /// The names of the libraries that it is linked with.
    pub needed: Vec<Vec<u8>>,
    /// Directories for them, separated by `:`, of an old program; empty if there is [`runpath`](Self::runpath).
    pub rpath: Vec<u8>,
    /// Directories for them, separated by `:`.
    pub runpath: Vec<u8>,
    /// Bytes of its own file: the tables of relocations, and what these change.
    pub parts: Vec<Range<u64>>,
    /// Bytes of its own file that are code.
    pub code: Vec<Range<u64>>,
    /// Bytes of its own file that are neither code nor written to: constants, and tables of the loader.
    pub constants: Vec<Range<u64>>,
}

/// A part of the file that a program header is about.
struct Segment {
    kind: u64,
    flags: u64,
    offset: u64,
    address: u64,
    len: u64,
}

/// Returns what the loader of a program reads.
///
/// # Errors
/// If it is no program, or a part of it that is needed is missing.
pub fn loads(read: &Reader<'_>) -> Result<Loads, Unread> {
    match loads_so_far(read)? {
        (loads, None) => Ok(loads),
        (_, Some(missing)) => Err(Unread::Missing(missing)),
    }
}

/// Returns what the loader of a program reads, as far as it can be told, and where the content begins that is missing to
/// tell the rest. The first bytes of a file tell its segments.
///
/// # Errors
/// If it is no program, or its first bytes are missing.
pub fn loads_so_far(read: &Reader<'_>) -> Result<(Loads, Option<u64>), Unread> {
    let segments = segments(read)?;
    let mut loads = Loads::default();
    let mut left = LOADED_MAX;
    for load in segments.iter().filter(|segment| segment.kind == PT_LOAD) {
        let end = load.offset.checked_add(load.len).ok_or(Unread::Other)?;
        match load.flags & (PF_X | PF_W) {
            0 => loads.constants.push(load.offset..end),
            PF_X => loads.code.push(load.offset..end),
            _ => {
                let len = load.len.min(left);
                left -= len;
                loads.parts.push(load.offset..load.offset + len);
            }
        }
    }
    match add_dynamic(read, &segments, left, &mut loads) {
        Ok(()) => Ok((loads, None)),
        Err(Unread::Missing(at)) => Ok((loads, Some(at))),
        Err(Unread::Other) => Err(Unread::Other),
    }
}

/// Adds what the dynamic section of a program tells, of which `left` bytes may be read.
fn add_dynamic(
    read: &Reader<'_>,
    segments: &[Segment],
    mut left: u64,
    loads: &mut Loads,
) -> Result<(), Unread> {
    let of_kind = |kind| segments.iter().filter(move |segment| segment.kind == kind);
    if let Some(interpreter) = of_kind(PT_INTERP).next() {
        loads.interpreter = Some(text(read, interpreter.offset, NAME_MAX)?);
    }
    let Some(dynamic) = of_kind(PT_DYNAMIC).next() else {
        return Ok(());
    };
    let len = usize::try_from(dynamic.len.min(DYNAMIC_MAX)).map_err(|_| Unread::Other)?;
    let entries = read(dynamic.offset, len)?;
    let entries = entries.chunks_exact(16);
    let entries = entries.map(|entry| (number(entry, 0, 8), number(entry, 8, 8)));
    let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let value = |tag| {
        entries
            .iter()
            .find(|(of, _)| *of == tag)
            .map(|(_, value)| *value)
    };
    let offset = |address: u64| {
        of_kind(PT_LOAD).find_map(|load| {
            let inside = address.checked_sub(load.address)?;
            (inside < load.len).then_some(load.offset.checked_add(inside)?)
        })
    };
    let tables = RELOCATIONS.iter().filter_map(|(address, len)| {
        let start = offset(value(*address)?)?;
        Some((start, value(*len)?))
    });
    for (start, len) in tables {
        let len = len.min(left);
        left -= len;
        let end = start.checked_add(len).ok_or(Unread::Other)?;
        loads.parts.push(start..end);
    }
    let Some(strings) = value(DT_STRTAB) else {
        return Ok(());
    };
    let table = offset(strings).ok_or(Unread::Other)?;
    let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    let string = |at: u64, most| text(read, table.checked_add(at).ok_or(Unread::Other)?, most);
    for (_, at) in needed.take(NEEDED_MAX) {
        loads.needed.push(string(*at, NAME_MAX)?);
    }
    match (value(DT_RUNPATH), value(DT_RPATH)) {
        (Some(at), _) => loads.runpath = string(at, DIRECTORIES_MAX)?,
        (None, Some(at)) => loads.rpath = string(at, DIRECTORIES_MAX)?,
        (None, None) => {}
    }
    Ok(())
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
            flags: number(entry, 4, 4),
            offset: number(entry, 8, 8),
            address: number(entry, 16, 8),
            len: number(entry, 32, 8),
        })
        .collect())
}

/// Reads up to `most` bytes that end with a zero.
fn text(read: &Reader<'_>, at: u64, most: usize) -> Result<Vec<u8>, Unread> {
    let mut bytes = read(at, most + 1)?;
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
pub(crate) mod tests {
    use super::*;

    /// The program that runs this test.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    fn of(bytes: &[u8], here: impl Fn(u64) -> bool) -> Result<Loads, Unread> {
        loads(&|at, len| {
            let start = usize::try_from(at).map_err(|_| Unread::Other)?;
            if !here(at) {
                return Err(Unread::Missing(at));
            }
            let rest = bytes.get(start..).unwrap_or_default();
            Ok(rest[..len.min(rest.len())].to_vec())
        })
    }

    #[test]
    fn a_program_names_its_loader_its_libraries_and_parts_of_itself() {
        let own = own();
        let loads = of(&own, |_| true).unwrap();
        let names: Vec<_> = loads
            .needed
            .iter()
            .map(|name| String::from_utf8_lossy(name))
            .collect();
        let loader = String::from_utf8(loads.interpreter.unwrap()).unwrap();
        assert!(
            loader.starts_with('/') && loader.contains("/ld-"),
            "{loader}"
        );
        assert!(
            names.iter().any(|name| name.starts_with("libc.so")),
            "{names:?}"
        );
        let parts = &loads.parts;
        assert!(!parts.is_empty());
        for part in parts {
            assert!(
                !part.is_empty() && part.end <= own.len() as u64,
                "{parts:?}"
            );
        }
    }

    /// Writes the headers of a program with tables of relocations, and what these change at `written`.
    pub(crate) fn write_program(bytes: &mut [u8], written: Range<u64>) {
        let mut put = |at: usize, numbers: &[u64]| {
            for (nth, number) in numbers.iter().enumerate() {
                bytes[at + nth * 8..][..8].copy_from_slice(&number.to_le_bytes());
            }
        };
        put(0, &[0x0001_0102_464c_457f]);
        put(32, &[64]);
        // Three program headers of 56 bytes: addresses are 0x1000 above the places in the file.
        put(48, &[56 << 48, 3]);
        let header = |kind: u64, flags: u64, at: u64, len: u64| {
            [kind | flags << 32, at, at + 0x1000, 0, len, len]
        };
        put(64, &header(PT_LOAD, 4, 0, 2000));
        let len = written.end - written.start;
        put(120, &header(PT_LOAD, 4 | PF_W, written.start, len));
        put(176, &header(PT_DYNAMIC, 4, 1024, 16 * 7));
        let tables = [
            (7, 0x1200),
            (8, 240),
            (23, 0x1400),
            (2, 48),
            (36, 0x1500),
            (35, 16),
            (0, 0),
        ];
        for (nth, (tag, value)) in tables.into_iter().enumerate() {
            put(1024 + nth * 16, &[tag, value]);
        }
    }

    #[test]
    fn relocations_and_what_they_change_are_told() {
        let mut bytes = vec![0; 4096];
        write_program(&mut bytes, 2000..3000);
        let parts = of(&bytes, |_| true).unwrap().parts;
        assert_eq!(
            parts,
            [
                2000..3000,
                0x200..0x200 + 240,
                0x400..0x400 + 48,
                0x500..0x510
            ]
        );
        // The first bytes tell what is written to, before the dynamic section is here.
        let so_far = loads_so_far(&|at, len| match at {
            1024.. => Err(Unread::Missing(at)),
            _ => Ok(bytes[usize::try_from(at).unwrap()..][..len].to_vec()),
        });
        let (loads, missing) = so_far.unwrap();
        assert_eq!(missing, Some(1024));
        assert_eq!(loads.parts.as_slice(), std::slice::from_ref(&(2000..3000)));
    }

    #[test]
    fn code_and_constants_are_told_apart() {
        let own = own();
        let loads = of(&own, |_| true).unwrap();
        let at = |text: &[u8]| {
            let found = own.windows(text.len()).position(|bytes| bytes == text);
            u64::try_from(found.unwrap()).unwrap()
        };
        let is_in = |ranges: &[Range<u64>], at: u64| ranges.iter().any(|range| range.contains(&at));
        let constant = at(b"read only, and not executed");
        assert!(is_in(&loads.constants, constant) && !is_in(&loads.code, constant));
        assert!(!loads.code.is_empty());
        for code in &loads.code {
            assert!(!code.is_empty() && code.end <= own.len() as u64);
            assert!(!is_in(&loads.constants, code.start));
        }
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
                let _either = loads(&|at, len| {
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
