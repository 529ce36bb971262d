//! Looks at a file through a mapping that it keeps, and through reads: in a process of its own,
//! because a page that cannot be given is a signal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Context as _;
use rawio::cached::cached_pages;
use rawio::mapped::MappedFile;
use sha2::{Digest as _, Sha256};

/// How many bytes are shown of a place.
pub(crate) const SHOWN: usize = 8;

/// Opens and maps a file, says so, and for each line of standard input says what it sees:
///
/// - an offset: what a read gives there, or its error number, and what the mapping has;
/// - `read` and an offset: the first of both alone;
/// - `all`: the checksums of all that is read, and of all that is mapped, and how many pages of the
///   file are in the page cache then.
///
/// # Errors
/// If the file cannot be opened or mapped, or a line is none of these.
pub fn look_when_told(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let len = file.metadata()?.len();
    let map = MappedFile::map(&file).context("mapping it")?;
    println!("mapped");
    for line in io::stdin().lines() {
        let line = line?;
        let offset = line.strip_prefix("read ");
        if line == "all" {
            let mut mapped = vec![0; usize::try_from(len)?];
            map.copy(0, &mut mapped);
            let mut read = vec![0; mapped.len()];
            file.read_exact_at(&mut read, 0)?;
            let cached = cached_pages(&file, 0, len).context("counting cached pages")?;
            println!("{:x} {:x} {cached}", sum(&read), sum(&mapped));
        } else if let Some(offset) = offset {
            println!("{}", read_at(&file, offset.parse()?));
        } else {
            let at: u64 = line.parse()?;
            let read = read_at(&file, at);
            let mut mapped = [0; SHOWN];
            map.copy(usize::try_from(at)?, &mut mapped);
            println!("{read} {}", shown(&mapped));
        }
    }
    Ok(())
}

fn sum(bytes: &[u8]) -> impl std::fmt::LowerHex {
    Sha256::digest(bytes)
}

fn read_at(file: &File, offset: u64) -> String {
    let mut bytes = [0; SHOWN];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => shown(&bytes),
        Err(error) => format!("errno-{}", error.raw_os_error().unwrap_or_default()),
    }
}

/// Shows bytes in hexadecimal.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
