//! The header of a qcow2 image, as far as it names other files.

mod error;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::{OFlag, ResolveFlag};

use crate::open::open_to_read;
use crate::{DiskFormat, LocalError};
pub use error::Qcow2Error;

/// First bytes of every qcow2 image.
const MAGIC: [u8; 4] = *b"QFI\xfb";

/// Longest name of a backing file, in bytes (QEMU's specification); no other file's may be longer.
const BACKING_MAX: u32 = 1023;

/// Longest chain that is followed; QEMU gets slow and unsafe on its stack long before.
const CHAIN_MAX: usize = 64;

/// How much of an image is read: header, its extensions and the backing file's name all lie in
/// the first cluster, whose size is 64 KiB by default and at most 2 MiB; names lie at its start.
pub(crate) const HEAD: usize = 65536;

/// "The data lie in another file": incompatible feature bit 2.
const EXTERNAL_DATA: u64 = 1 << 2;

/// Type of the header extension that gives the format of the backing file.
const BACKING_FORMAT: u32 = 0xe279_2aca;

/// Type of the header extension that names the external data file.
const DATA_FILE: u32 = 0x4441_5441;

/// A disk image with all that it is based on.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) format: DiskFormat,
    /// Names in the image's directory, sorted.
    pub(crate) files: Vec<Vec<u8>>,
    /// The first [`HEAD`] bytes of these; empty for a raw image, which names none and which nobody takes for another.
    pub(crate) heads: Vec<Vec<u8>>,
    pub(crate) warnings: Vec<String>,
}

/// Another file that an image needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Header {
    backing: Option<Vec<u8>>,
    /// How QEMU reads the backing file.
    backing_format: Declared,
    data_file: Option<Vec<u8>>,
}

/// What an image declares its backing file to be; with guessing, a guest that writes a header into a raw disk could
/// name files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Declared {
    #[default]
    Nothing,
    Raw,
    Qcow2,
    /// One that may name files, which nobody here finds in it.
    Another(String),
}

impl Declared {
    fn of(format: &[u8]) -> Self {
        match format {
            b"" => Self::Nothing,
            b"raw" => Self::Raw,
            b"qcow2" => Self::Qcow2,
            other => Self::Another(text(other)),
        }
    }
}

/// Follows the chain of the image `name` in `dir`.
pub(crate) fn chain(dir: impl AsFd, name: &[u8]) -> Result<Chain, LocalError> {
    let mut files = BTreeMap::new();
    let mut warnings = Vec::new();
    let mut format = None;
    let mut wanted_by = name.to_vec();
    // Whoever opens the first image says what it is.
    let mut next = Some((name.to_vec(), Declared::Qcow2));
    while let Some((name, declared)) = next.take() {
        let head = read_head(dir.as_fd(), &name, &wanted_by)?;
        let failed = |source| LocalError::Qcow2 {
            name: text(&name),
            source,
        };
        if files.len() >= CHAIN_MAX || files.contains_key(&name) {
            return Err(failed(Qcow2Error::Chain));
        }
        let head = &*files.entry(name.clone()).or_insert(head);
        let qcow2 = declared != Declared::Raw && head.starts_with(&MAGIC);
        if declared == Declared::Nothing
            && let Some(format) = another_format(head)
        {
            return Err(failed(Qcow2Error::Format(format.to_owned())));
        }
        let found = if qcow2 {
            DiskFormat::Qcow2
        } else {
            DiskFormat::Raw
        };
        format.get_or_insert(found);
        if !qcow2 {
            continue;
        }
        let header = parse(head).map_err(failed)?;
        let mut served = |other: Option<Vec<u8>>| match other {
            Some(other) => beside(&other, &mut warnings).map_err(failed),
            None => Ok(None),
        };
        if let Some(data) = served(header.data_file)? {
            let head = read_head(dir.as_fd(), &data, &name)?;
            files.entry(data).or_insert(head);
        }
        let backing = served(header.backing)?;
        if backing.is_some()
            && let Declared::Another(format) = header.backing_format
        {
            return Err(failed(Qcow2Error::Format(format)));
        }
        next = backing.map(|backing| (backing, header.backing_format));
        wanted_by = name;
    }
    let format = format.unwrap_or(DiskFormat::Raw);
    let (files, mut heads): (Vec<_>, Vec<_>) = files.into_iter().unzip();
    if format == DiskFormat::Raw {
        heads.clear();
    }
    Ok(Chain {
        format,
        files,
        heads,
        warnings,
    })
}

/// Returns the name if it is one of the same directory, and `None` with a warning if QEMU will
/// read the file past the mount.
fn beside(name: &[u8], warnings: &mut Vec<String>) -> Result<Option<Vec<u8>>, Qcow2Error> {
    if name.starts_with(b"/") {
        let name = text(name);
        warnings.push(format!(
            "{name:?} is named by its absolute path: it is read past the mount and neither \
             recorded nor made faster; `qemu-img rebase -u` can name it relative to the image"
        ));
        return Ok(None);
    }
    let plain = name.strip_prefix(b"./").unwrap_or(name);
    // A colon means a protocol to QEMU: `nbd:...`, `json:...`.
    if plain.is_empty() || plain == b".." || plain.iter().any(|byte| matches!(byte, b'/' | b':')) {
        return Err(Qcow2Error::Outside(text(name)));
    }
    Ok(Some(plain.to_vec()))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

fn read_head(dir: impl AsFd, name: &[u8], wanted_by: &[u8]) -> Result<Vec<u8>, LocalError> {
    let read = || -> io::Result<Vec<u8>> {
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(open_to_read(
            dir.as_fd(),
            name,
            flags,
            ResolveFlag::empty(),
        )?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut head = vec![0; HEAD];
        let mut done = 0;
        while done < HEAD {
            match file.read_at(&mut head[done..], done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        head.truncate(done);
        Ok(head)
    };
    read().map_err(|source| LocalError::Backing {
        name: text(name),
        wanted_by: text(wanted_by),
        source,
    })
}

/// Returns the format that QEMU guesses of a file that is not declared, if it is one that may name other files.
fn another_format(head: &[u8]) -> Option<&'static str> {
    /// As far as QEMU looks.
    const LOOKED_AT: usize = 2048;
    if head.starts_with(b"QED\0") {
        return Some("qed");
    }
    // A vmdk in pieces is a text: comments and empty lines, and the version.
    let looked_at = &head[..head.len().min(LOOKED_AT)];
    let is_text = matches!(head.first(), Some(b'#' | b' ' | b'\r' | b'\n' | b'v'))
        && looked_at.windows(8).any(|word| word == b"version=");
    let is_vmdk = is_text || head.starts_with(b"KDMV") || head.starts_with(b"COWD");
    is_vmdk.then_some("vmdk")
}

/// Numbers are big-endian in this format, which is not ours to choose.
#[expect(clippy::big_endian_bytes, reason = "qcow2 is a big-endian format")]
fn number<const N: usize>(head: &[u8], at: usize) -> Result<u64, Qcow2Error> {
    let bytes = at.checked_add(N).and_then(|end| head.get(at..end));
    let mut wide = [0; 8];
    wide[8 - N..].copy_from_slice(bytes.ok_or(Qcow2Error::Damaged)?);
    Ok(u64::from_be_bytes(wide))
}

fn u32_at(head: &[u8], at: usize) -> Result<u32, Qcow2Error> {
    u32::try_from(number::<4>(head, at)?).map_err(|_| Qcow2Error::Damaged)
}

fn bytes_at(head: &[u8], at: u64, len: u32) -> Result<&[u8], Qcow2Error> {
    let at = usize::try_from(at).map_err(|_| Qcow2Error::Damaged)?;
    let end = at.checked_add(len as usize).ok_or(Qcow2Error::Damaged)?;
    head.get(at..end).ok_or(Qcow2Error::Damaged)
}

fn parse(head: &[u8]) -> Result<Header, Qcow2Error> {
    let version = u32_at(head, 4)?;
    let (features, header_len) = match version {
        2 => (0, 72),
        3 => (number::<8>(head, 72)?, u32_at(head, 100)?),
        other => return Err(Qcow2Error::Version(other)),
    };
    let (offset, len) = (number::<8>(head, 8)?, u32_at(head, 16)?);
    let end = match offset {
        0 => u64::MAX,
        offset => offset,
    };
    let mut header = extensions(head, u64::from(header_len)..end)?;
    if features & EXTERNAL_DATA == 0 {
        header.data_file = None;
    } else if header.data_file.is_none() {
        return Err(Qcow2Error::Damaged);
    }
    if offset != 0 {
        if len == 0 || len > BACKING_MAX {
            return Err(Qcow2Error::Damaged);
        }
        header.backing = Some(bytes_at(head, offset, len)?.to_vec());
    }
    Ok(header)
}

/// Reads the extensions behind the header: type, length, data padded to 8 bytes, until type 0, or until the name of the
/// backing file. QEMU reads none behind that, so one there must not say how the backing file is to be read.
fn extensions(head: &[u8], place: Range<u64>) -> Result<Header, Qcow2Error> {
    let mut header = Header::default();
    let mut at = place.start;
    loop {
        if at >= place.end {
            return Ok(header);
        }
        let here = usize::try_from(at).map_err(|_| Qcow2Error::Damaged)?;
        // An image shorter than a header with an end mark is one without extensions.
        if here.saturating_add(8) > head.len() {
            return Ok(header);
        }
        let (kind, len) = (u32_at(head, here)?, u32_at(head, here + 4)?);
        let data = bytes_at(head, at + 8, len);
        match kind {
            0 => return Ok(header),
            BACKING_FORMAT => header.backing_format = Declared::of(data?),
            DATA_FILE if len > BACKING_MAX => return Err(Qcow2Error::Damaged),
            DATA_FILE => header.data_file = Some(data?.to_vec()),
            _ => (),
        }
        at += 8 + u64::from(len).next_multiple_of(8);
    }
}
