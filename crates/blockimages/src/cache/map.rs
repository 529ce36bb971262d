//! Which chunks of a blob a cache has: the file `map` (docs/block-cache-format.md).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use crc32c::crc32c;
use parking_lot::Mutex;
use rawio::private;

const MAGIC: [u8; 8] = *b"YOLOBC\0\x01";
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = 16;

/// Whether a chunk is cached, and the checksum of its content.
pub(super) type Chunks = BTreeMap<u32, u32>;

/// An open map, to which records are appended.
#[derive(Debug)]
pub(super) struct Map {
    /// Held while a record is written, and cut off if there was no room for all of it; `None` if it can only be read.
    file: Option<Mutex<File>>,
}

fn header(chunk_bytes: u32, blob_bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&chunk_bytes.to_le_bytes());
    header[16..24].copy_from_slice(&blob_bytes.to_le_bytes());
    let crc = crc32c(&header[..28]);
    header[28..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn record(chunk: u32, crc: Option<u32>) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..4].copy_from_slice(&chunk.to_le_bytes());
    record[4..8].copy_from_slice(&crc.unwrap_or(0).to_le_bytes());
    record[8] = u8::from(crc.is_some());
    let own = crc32c(&record[..12]);
    record[12..].copy_from_slice(&own.to_le_bytes());
    record
}

fn decode(record: &[u8; RECORD_BYTES]) -> Option<(u32, Option<u32>)> {
    let number = |at: usize| {
        let bytes = [record[at], record[at + 1], record[at + 2], record[at + 3]];
        u32::from_le_bytes(bytes)
    };
    let present = match record[8..12] {
        [0, 0, 0, 0] => false,
        [1, 0, 0, 0] => true,
        _ => return None,
    };
    (crc32c(&record[..12]) == number(12)).then(|| (number(0), present.then(|| number(4))))
}

impl Map {
    /// Opens the map of a blob, or creates it, and returns which of its `count` chunks are cached. A map that
    /// is damaged or of another blob counts as empty; one that ends in half a record is read up to that.
    pub(super) fn open(
        path: &Path,
        chunk_bytes: u32,
        blob_bytes: u64,
        count: u32,
    ) -> io::Result<(Self, Chunks)> {
        let (mut file, can_write) = private::open_or_read(path)?;
        // A pipe would be waited for, because we could write to it ourselves.
        if !file.metadata()?.is_file() {
            let why = "it is not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let header = header(chunk_bytes, blob_bytes);
        let mut found = [0; HEADER_BYTES];
        let known = file.read_exact(&mut found).is_ok() && found == header;
        let mut chunks = Chunks::new();
        let mut records = 0;
        if known {
            let mut reader = io::BufReader::new(&mut file);
            let mut bytes = [0; RECORD_BYTES];
            while reader.read_exact(&mut bytes).is_ok() {
                let Some((chunk, crc)) = decode(&bytes) else {
                    break;
                };
                records += 1;
                match crc {
                    Some(crc) if chunk < count => _ = chunks.insert(chunk, crc),
                    _ => _ = chunks.remove(&chunk),
                }
            }
        }
        if !can_write {
            return Ok((Self { file: None }, chunks));
        }
        let valid = (HEADER_BYTES + records * RECORD_BYTES) as u64;
        if !known || records > 2 * count as usize || file.metadata()?.len() != valid {
            rewrite(&mut file, &header, &chunks)?;
        }
        file.seek(SeekFrom::End(0))?;
        // From here on, each record is one write at the end.
        let file = File::options().append(true).open(path)?;
        let file = Some(Mutex::new(file));
        Ok((Self { file }, chunks))
    }

    /// Returns whether chunks can be added.
    pub(super) const fn can_write(&self) -> bool {
        self.file.is_some()
    }

    /// Records that a chunk is cached, or was removed.
    pub(super) fn note(&self, chunk: u32, crc: Option<u32>) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        };
        let mut file = file.lock();
        let noted = file.write_all(&record(chunk, crc));
        if noted.is_err() {
            // Half a record would make all after it unreadable.
            let len = file.metadata()?.len();
            let half = len.saturating_sub(HEADER_BYTES as u64) % RECORD_BYTES as u64;
            file.set_len(len - half)?;
        }
        noted
    }
}

/// Writes the map anew, shorter. Cut by a crash, it is damaged, which costs what was cached.
fn rewrite(file: &mut File, header: &[u8], chunks: &Chunks) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = header.to_vec();
    for (chunk, crc) in chunks {
        bytes.extend(record(*chunk, Some(*crc)));
    }
    file.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_map_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(Map::open(&path, 4096, 40_000, 10).map(drop)));
        let opened = told.recv_timeout(std::time::Duration::from_secs(30));
        assert!(opened.unwrap().is_err());
    }

    #[test]
    fn a_map_remembers_and_survives_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let open = || Map::open(&path, 4096, 40_000, 10).unwrap();
        let (map, chunks) = open();
        assert_eq!(chunks, Chunks::new());
        map.note(3, Some(33)).unwrap();
        map.note(9, Some(99)).unwrap();
        map.note(3, None).unwrap();
        map.note(0, Some(0)).unwrap();
        let (_, chunks) = open();
        let mut expected = Chunks::from([(0, 0), (9, 99)]);
        assert_eq!(chunks, expected);
        // Half a record, then a chunk that the blob has not, then damage.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        expected.remove(&0);
        assert_eq!(open().1, expected);
        open().0.note(10, Some(1)).unwrap();
        assert_eq!(open().1, expected);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[HEADER_BYTES + 1] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(open().1, Chunks::new());
        // Another blob of the same name.
        open().0.note(1, Some(1)).unwrap();
        let (_, other) = Map::open(&path, 4096, 40_001, 10).unwrap();
        assert_eq!(other, Chunks::new());
        // It does not grow for ever.
        for _ in 0..50 {
            open().0.note(1, Some(1)).unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < 500);
    }

    /// On a full disk a part of a record may find room.
    #[test]
    fn what_is_noted_after_the_disk_was_full_is_read() {
        const CHILD: &str = "BLOCKIMAGES_TEST_OF_MAPS";
        let name = "cache::map::tests::what_is_noted_after_the_disk_was_full_is_read";
        let open = |path: &Path| Map::open(path, 4096, 4096 * 1000, 1000).unwrap();
        let unlimited = "--fsize=unlimited:unlimited";
        if let Some(path) = std::env::var_os(CHILD) {
            let (map, _) = open(Path::new(&path));
            let noted = (0..100).map_while(|chunk| map.note(chunk, Some(chunk)).ok());
            assert_eq!(noted.count(), 60, "there was room for 60 and a half");
            let this = std::process::id().to_string();
            let mut prlimit = std::process::Command::new("prlimit");
            let raised = prlimit.args(["--pid", &this, unlimited]).status();
            assert!(raised.unwrap().success());
            (500..600).for_each(|chunk| map.note(chunk, Some(chunk)).unwrap());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        // Without the signal, writing beyond the limit is an error.
        let line = "trap '' XFSZ; exec prlimit --fsize=1000:unlimited \"$@\"";
        let mut child = std::process::Command::new("bash");
        let child = child
            .args(["-c", line, "bash"])
            .arg(std::env::current_exe().unwrap());
        let status = child.args(["--exact", name]).env(CHILD, &path).status();
        assert!(status.unwrap().success());
        let expected: Chunks = (0..60)
            .chain(500..600)
            .map(|chunk| (chunk, chunk))
            .collect();
        assert_eq!(open(&path).1, expected);
    }
}
