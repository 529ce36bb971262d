//! Records which files changed under a mount, for the next worker: it must not serve old content of
//! a file whose new content was read.
//!
//! They are behind the names, in the same file, which outlives workers and the node: from the next
//! multiple of 256 bytes on, one slot of 256 bytes for each file that changed. A slot is within a
//! page, so that a worker that is killed while it writes leaves the old one or the new one. All slots
//! have the length of the names; so the last one shows where the first begins. While nothing has
//! changed, the file ends with the names.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, bail};
use blocks::{Attr, FileId, NodeKind, Timestamp, Version};
use parking_lot::Mutex;
use yolofs::{Diverted, Ledger};

/// Bytes of a slot.
const SLOT: usize = 256;
/// [`SLOT`], as a length in a file.
const SLOT_BYTES: u64 = 256;
/// Where the hash of what is before it lies in a slot.
const HASH_AT: usize = SLOT - 32;
/// Bytes of a number in a slot.
const WORD: usize = 8;
const MAGIC: [u8; WORD] = *b"yolochg1";

/// The slots behind some names.
#[derive(Debug)]
pub(super) struct Changes {
    file: File,
    names_len: u64,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    of: HashMap<FileId, u64>,
    count: u64,
}

/// Returns how long the names in a file are.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn names_len(file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    if len < SLOT_BYTES || len % SLOT_BYTES != 0 {
        return Ok(len);
    }
    let mut last = [0; SLOT];
    file.read_exact_at(&mut last, len - SLOT_BYTES)?;
    Ok(match decode(&last) {
        Some((names_len, _)) if begin_of(names_len) < len => names_len,
        _ => len,
    })
}

impl Changes {
    /// Opens the slots behind the names in an existing file, and returns which files had changed under
    /// earlier workers.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    pub(super) fn open(file: &OwnedFd) -> anyhow::Result<(Self, Vec<Diverted>)> {
        let doing = "reading which files of the mount have changed";
        let file = File::from(file.try_clone().context(doing)?);
        let names_len = names_len(&file).context(doing)?;
        let len = file.metadata().context(doing)?.len();
        let mut slots = Slots::default();
        let mut earlier = Vec::new();
        let mut at = begin_of(names_len);
        while at < len {
            let mut slot = [0; SLOT];
            file.read_exact_at(&mut slot, at).context(doing)?;
            let Some((_, diverted)) = decode(&slot).filter(|(len, _)| *len == names_len) else {
                bail!("{doing}: the file is damaged at byte {at}");
            };
            slots.of.insert(diverted.file, slots.count);
            slots.count += 1;
            earlier.push(diverted);
            at += SLOT_BYTES;
        }
        let slots = Mutex::new(slots);
        let changes = Self {
            file,
            names_len,
            slots,
        };
        Ok((changes, earlier))
    }
}

impl Ledger for Changes {
    fn note(&self, diverted: &Diverted) -> io::Result<()> {
        // Held while it is written: two files must not get one slot. Nobody else waits here.
        let mut slots = self.slots.lock();
        let known = slots.of.get(&diverted.file).copied();
        let number = known.unwrap_or(slots.count);
        let at = begin_of(self.names_len) + number * SLOT_BYTES;
        let written = self
            .file
            .write_all_at(&encode(self.names_len, diverted), at);
        if let Err(error) = written {
            if known.is_none() {
                // Half a slot at the end would be taken for a part of the names.
                let end = if number == 0 { self.names_len } else { at };
                self.file.set_len(end)?;
            }
            return Err(error);
        }
        if known.is_none() {
            slots.of.insert(diverted.file, number);
            slots.count += 1;
        }
        Ok(())
    }
}

/// Where the slots begin behind names of this length.
const fn begin_of(names_len: u64) -> u64 {
    names_len.next_multiple_of(SLOT_BYTES)
}

fn encode(names_len: u64, diverted: &Diverted) -> [u8; SLOT] {
    let mut words = vec![names_len, u64::from(diverted.file.0), diverted.believed];
    words.extend(of_version(&diverted.from));
    words.extend(of_version(&diverted.now));
    words.extend(diverted.attr.iter().flat_map(of_attr));
    let mut slot = [0; SLOT];
    let mut to = slot.as_chunks_mut::<WORD>().0.iter_mut();
    let bytes = words.into_iter().map(u64::to_le_bytes);
    for (to, bytes) in to.by_ref().zip([MAGIC].into_iter().chain(bytes)) {
        *to = bytes;
    }
    let hash = blake3::hash(&slot[..HASH_AT]);
    slot[HASH_AT..].copy_from_slice(hash.as_bytes());
    slot
}

/// Returns how long the names are, and what a slot says; `None` if it is none, or damaged.
fn decode(slot: &[u8; SLOT]) -> Option<(u64, Diverted)> {
    let (bytes, hash) = slot.split_at(HASH_AT);
    let (magic, bytes) = bytes.split_first_chunk()?;
    if *magic != MAGIC || blake3::hash(&slot[..HASH_AT]).as_bytes() != hash {
        return None;
    }
    let words = bytes.as_chunks::<WORD>().0.iter();
    let mut words = words.map(|word| u64::from_le_bytes(*word));
    let names_len = words.next()?;
    let file = FileId(u32::try_from(words.next()?).ok()?);
    let believed = words.next()?;
    let (from, now) = (to_version(&mut words)?, to_version(&mut words)?);
    let diverted = Diverted {
        file,
        from,
        now,
        attr: to_attr(&mut words, &now)?,
        believed,
    };
    Some((names_len, diverted))
}

fn of_version(version: &Version) -> [u64; 6] {
    let [mtime, ctime] = [version.mtime, version.ctime].map(of_time);
    [
        version.size,
        mtime[0],
        mtime[1],
        ctime[0],
        ctime[1],
        version.inode,
    ]
}

fn to_version(words: &mut impl Iterator<Item = u64>) -> Option<Version> {
    Some(Version {
        size: words.next()?,
        mtime: to_time(words)?,
        ctime: to_time(words)?,
        inode: words.next()?,
    })
}

fn of_time(time: Timestamp) -> [u64; 2] {
    [time.secs.cast_unsigned(), u64::from(time.nanos)]
}

fn to_time(words: &mut impl Iterator<Item = u64>) -> Option<Timestamp> {
    Some(Timestamp {
        secs: words.next()?.cast_signed(),
        nanos: u32::try_from(words.next()?).ok()?,
    })
}

/// What a version lacks of the attributes of a regular file, which is all that is ever served in
/// another version; 1 before it says that they are known.
fn of_attr(attr: &Attr) -> [u64; 9] {
    let [atime_secs, atime_nanos] = of_time(attr.atime);
    let [perm, uid, gid] = [u32::from(attr.perm), attr.uid, attr.gid].map(u64::from);
    let (nlink, rdev) = (u64::from(attr.nlink), u64::from(attr.rdev));
    [
        1,
        perm,
        uid,
        gid,
        nlink,
        rdev,
        attr.blocks,
        atime_secs,
        atime_nanos,
    ]
}

/// Returns the attributes of a file in a version, or that they are not known; `None` if these are
/// no attributes.
fn to_attr(words: &mut impl Iterator<Item = u64>, version: &Version) -> Option<Option<Attr>> {
    if words.next()? == 0 {
        return Some(None);
    }
    Some(Some(Attr {
        kind: NodeKind::File,
        perm: u16::try_from(words.next()?).ok()?,
        uid: u32::try_from(words.next()?).ok()?,
        gid: u32::try_from(words.next()?).ok()?,
        nlink: u32::try_from(words.next()?).ok()?,
        rdev: u32::try_from(words.next()?).ok()?,
        size: version.size,
        blocks: words.next()?,
        atime: to_time(words)?,
        mtime: version.mtime,
        ctime: version.ctime,
        source_inode: version.inode,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(size: u64) -> Version {
        let mtime = Timestamp {
            secs: -1,
            nanos: 999_999_999,
        };
        Version {
            size,
            mtime,
            ctime: Timestamp { secs: 7, nanos: 8 },
            inode: u64::MAX,
        }
    }

    fn diverted(file: u32, size: u64) -> Diverted {
        let now = version(size);
        let attr = Attr {
            kind: NodeKind::File,
            perm: 0o4755,
            uid: 1,
            gid: u32::MAX,
            nlink: 2,
            rdev: 3,
            size,
            blocks: 4,
            atime: Timestamp { secs: 5, nanos: 6 },
            mtime: now.mtime,
            ctime: now.ctime,
            source_inode: now.inode,
        };
        Diverted {
            file: FileId(file),
            from: version(1),
            now,
            attr: size.is_multiple_of(20).then_some(attr),
            believed: size.max(1),
        }
    }

    fn file_of(names: &[u8]) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(names, 0).unwrap();
        file.into()
    }

    fn len_of(file: &OwnedFd) -> u64 {
        let file = File::from(file.try_clone().unwrap());
        names_len(&file).unwrap()
    }

    #[test]
    fn what_is_noted_is_found_by_the_next() {
        for names in [vec![7; 255], vec![7; 256], vec![7; 257], vec![]] {
            let file = file_of(&names);
            let len = u64::try_from(names.len()).unwrap();
            let (changes, earlier) = Changes::open(&file).unwrap();
            assert!(earlier.is_empty());
            changes.note(&diverted(3, 10)).unwrap();
            changes.note(&diverted(5, 20)).unwrap();
            changes.note(&diverted(3, 30)).unwrap();
            assert_eq!(len_of(&file), len);
            let (changes, earlier) = Changes::open(&file).unwrap();
            assert_eq!(earlier, [diverted(3, 30), diverted(5, 20)]);
            changes.note(&diverted(9, 1)).unwrap();
            changes.note(&diverted(5, 2)).unwrap();
            let (_, earlier) = Changes::open(&file).unwrap();
            assert_eq!(earlier, [diverted(3, 30), diverted(5, 2), diverted(9, 1)]);
            assert_eq!(len_of(&file), len);
        }
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let names = vec![7; 100];
        let file = file_of(&names);
        let (changes, _) = Changes::open(&file).unwrap();
        changes.note(&diverted(3, 10)).unwrap();
        changes.note(&diverted(5, 20)).unwrap();
        let raw = File::from(file.try_clone().unwrap());
        for at in 256..768 {
            let mut byte = [0];
            raw.read_exact_at(&mut byte, at).unwrap();
            raw.write_all_at(&[byte[0] ^ 1], at).unwrap();
            // Either the slots cannot be read, or the names are not as long as they were, which
            // their own hash tells.
            let told = Changes::open(&file).is_err() || len_of(&file) != 100;
            assert!(told, "byte {at}");
            raw.write_all_at(&byte, at).unwrap();
        }
        assert_eq!(Changes::open(&file).unwrap().1.len(), 2);
    }

    #[test]
    fn what_does_not_fit_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("names");
        std::fs::write(&path, [7; 100]).unwrap();
        let read_only = OwnedFd::from(File::open(&path).unwrap());
        let (changes, _) = Changes::open(&read_only).unwrap();
        assert!(changes.note(&diverted(3, 10)).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
    }
}
