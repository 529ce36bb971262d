//! What a program or library needs to be loaded. Files may be anything: lengths are bounded
//! before they are believed.

use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use object::{Endianness, elf};

use super::files::{ImageFiles, head};

/// Bytes of a dynamic section. Real ones have some hundred.
const DYNAMIC_MAX: u64 = 256 << 10;
/// Bytes of a path in a program.
const PATH_LEN_MAX: u64 = 4096;
/// Libraries that one file may need.
const LIBRARIES_MAX: usize = 1024;

/// The files that a program or library needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// For which machine it is.
    pub(super) machine: u16,
    /// The loader.
    pub(super) interpreter: Option<String>,
    /// Libraries, by name or path.
    pub(super) libraries: Vec<String>,
    /// Where it has them looked for: directories with colons between them.
    pub(super) search: Vec<String>,
}

/// A file of an image, read piece by piece.
#[derive(Clone, Copy)]
struct Reader<'a> {
    files: &'a dyn ImageFiles,
    path: &'a str,
    len: u64,
    at: u64,
}

impl ReadCacheOps for Reader<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn seek(&mut self, pos: u64) -> Result<u64, ()> {
        self.at = pos;
        Ok(pos)
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<usize, ()> {
        let read = self
            .files
            .read_at(self.path, self.at, buf)
            .map_err(|_| ())?;
        self.at = self.at.saturating_add(read as u64);
        Ok(read.min(buf.len()))
    }

    fn read_exact(&mut self, mut buf: &mut [u8]) -> Result<(), ()> {
        while !buf.is_empty() {
            match self.read(buf)? {
                0 => return Err(()),
                read => buf = &mut buf[read..],
            }
        }
        Ok(())
    }
}

/// Returns what a file of `len` bytes needs; `None` if it is not a program or a library, or malformed.
pub(super) fn needs(files: &dyn ImageFiles, path: &str, len: u64) -> Option<Needs> {
    let ident = head(files, path, 5);
    if !ident.starts_with(&elf::ELFMAG) {
        return None;
    }
    let cache = ReadCache::new(Reader {
        files,
        path,
        len,
        at: 0,
    });
    match ident.get(4) {
        Some(&elf::ELFCLASS32) => read::<elf::FileHeader32<Endianness>, _>(&cache),
        Some(&elf::ELFCLASS64) => read::<elf::FileHeader64<Endianness>, _>(&cache),
        _ => None,
    }
}

fn read<'a, E: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(data: R) -> Option<Needs> {
    let header = E::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let mut needs = Needs {
        machine: header.e_machine(endian),
        ..Needs::default()
    };
    let mut dynamic = None;
    for segment in segments {
        let size: u64 = segment.p_filesz(endian).into();
        match segment.p_type(endian) {
            elf::PT_INTERP if size <= PATH_LEN_MAX => {
                let path = segment.interpreter(endian, data).ok()??;
                needs.interpreter = String::from_utf8(path.to_vec()).ok();
            }
            elf::PT_DYNAMIC if size <= DYNAMIC_MAX => {
                dynamic = segment.dynamic(endian, data).ok()?;
            }
            _ => {}
        }
    }
    let Some(dynamic) = dynamic else {
        return Some(needs); // linked statically
    };
    let value = |tag: u32| {
        let entry = dynamic
            .iter()
            .find(|entry| entry.d_tag(endian).into() == u64::from(tag));
        entry.map(|entry| -> u64 { entry.d_val(endian).into() })
    };
    let strings = offset_of::<E>(segments, endian, value(elf::DT_STRTAB)?)?;
    let string = |at: u64| {
        let begin = strings.checked_add(at)?;
        let range = begin..begin.checked_add(PATH_LEN_MAX)?;
        let bytes = data.read_bytes_at_until(range, 0).ok()?;
        String::from_utf8(bytes.to_vec()).ok()
    };
    for entry in dynamic {
        let into = match u32::try_from(entry.d_tag(endian).into()) {
            Ok(elf::DT_NULL) => break,
            Ok(elf::DT_NEEDED) => &mut needs.libraries,
            Ok(elf::DT_RPATH | elf::DT_RUNPATH) => &mut needs.search,
            _ => continue,
        };
        if into.len() < LIBRARIES_MAX
            && let Some(text) = string(entry.d_val(endian).into())
        {
            into.push(text);
        }
    }
    Some(needs)
}

/// Returns where in the file something lies that is loaded to `address`.
fn offset_of<E: FileHeader<Endian = Endianness>>(
    segments: &[E::ProgramHeader],
    endian: Endianness,
    address: u64,
) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(endian).into())?;
            let offset: u64 = segment.p_offset(endian).into();
            (within < segment.p_filesz(endian).into()).then(|| offset.checked_add(within))?
        })
}
