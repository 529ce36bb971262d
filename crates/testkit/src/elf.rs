//! ELF files that are linked with a library, and have nothing else.

/// Where the names are; the first of a table of strings is empty.
const STRINGS: usize = 512;
/// Where in the table the name of the directory is.
const DIRECTORY: usize = 100;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RUNPATH: u64 = 29;

/// Makes of `bytes` a program that is linked with `library`, which lies in `directory` or where the system's libraries
/// do. Its dynamic section begins at `dynamic`, with 64 bytes.
///
/// # Panics
/// If there is no room for the headers, the names (below 100 bytes each) and the section.
pub fn write_program(bytes: &mut [u8], dynamic: usize, library: &str, directory: Option<&str>) {
    bytes[..STRINGS + 2 * DIRECTORY].fill(0);
    let len = bytes.len() as u64;
    let mut put = |at: usize, value: u64, width: usize| {
        bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
    };
    put(0, 0x0001_0102_464c_457f, 8);
    // Two headers of segments: one for all of it, and the dynamic section.
    put(32, 64, 8);
    put(54, 56, 2);
    put(56, 2, 2);
    for (at, kind, offset, size) in [(64, 1, 0, len), (120, 2, dynamic as u64, 64)] {
        put(at, kind, 4);
        put(at + 8, offset, 8);
        put(at + 16, offset, 8);
        put(at + 32, size, 8);
    }
    let mut entries = vec![(DT_NEEDED, 1), (DT_STRTAB, STRINGS as u64)];
    if directory.is_some() {
        entries.push((DT_RUNPATH, DIRECTORY as u64));
    }
    entries.resize(4, (0, 0));
    for (nth, (tag, value)) in entries.into_iter().enumerate() {
        put(dynamic + nth * 16, tag, 8);
        put(dynamic + nth * 16 + 8, value, 8);
    }
    for (at, name) in [(1, library), (DIRECTORY, directory.unwrap_or_default())] {
        bytes[STRINGS + at..][..name.len()].copy_from_slice(name.as_bytes());
    }
}
