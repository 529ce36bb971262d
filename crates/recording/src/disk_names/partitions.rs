//! The partitions of a raw disk image: those of a GPT, the primary ones of an MBR, or the whole disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Sectors are of this size in images that QEMU makes disks of by default.
const SECTOR: u64 = 512;

/// Entries of a GPT that are looked at: no tool makes more.
const GPT_ENTRIES_MAX: u32 = 128;

/// Most bytes that one entry of a GPT has; the format says 128, or a power of two times that.
const GPT_ENTRY_MAX: u32 = 4096;

/// Where the first super block of ext2, ext3 and ext4 has its magic number.
const EXT4_MAGIC_AT: u64 = 1024 + 56;

/// File systems that can be recognised by a few bytes at a fixed offset.
const FILE_SYSTEMS: [(&str, u64, &[u8]); 6] = [
    ("ext4", EXT4_MAGIC_AT, &[0x53, 0xef]),
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("fat", 0x52, b"FAT32   "),
    ("fat", 0x36, b"FAT16   "),
    ("ntfs", 3, b"NTFS    "),
];

/// A partition, or the whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    /// From 1; 0 for the whole disk.
    pub(super) number: u32,
    pub(super) start: u64,
    pub(super) len: u64,
    label: String,
    file_system: Option<&'static str>,
}

impl Partition {
    pub(super) const fn has(&self, byte: u64) -> bool {
        byte >= self.start && byte - self.start < self.len
    }

    pub(super) fn is_ext4(&self) -> bool {
        self.file_system == Some("ext4")
    }

    pub(super) fn name(&self) -> String {
        let mut name = match self.number {
            0 => "the whole disk".to_owned(),
            number => format!("partition {number}"),
        };
        for part in [self.label.as_str(), self.file_system.unwrap_or_default()] {
            if !part.is_empty() {
                name.push_str(", ");
                name.push_str(part);
            }
        }
        name
    }
}

/// Returns the partitions of a disk: never none.
pub(super) fn partitions(disk: &File) -> io::Result<Vec<Partition>> {
    let size = disk.metadata()?.len();
    let mut mbr = [0; 512];
    let read = disk.read_at(&mut mbr, 0)?;
    let mut found = Vec::new();
    // A disk that has no table but a file system begins with a boot sector that looks like one.
    if read == mbr.len() && mbr[510..] == [0x55, 0xaa] && file_system(disk, 0).is_none() {
        found = if mbr[446 + 4] == 0xee {
            gpt(disk)?
        } else {
            primary(&mbr)
        };
    }
    found.retain(|partition| partition.len > 0 && partition.start < size);
    if found.is_empty() {
        found.push(Partition {
            number: 0,
            start: 0,
            len: size,
            label: String::new(),
            file_system: None,
        });
    }
    for partition in &mut found {
        partition.len = partition.len.min(size - partition.start);
        partition.file_system = file_system(disk, partition.start);
    }
    Ok(found)
}

fn file_system(disk: &File, start: u64) -> Option<&'static str> {
    let has = |at: u64, magic: &[u8]| {
        let mut found = vec![0; magic.len()];
        let read = disk.read_exact_at(&mut found, start.saturating_add(at));
        read.is_ok() && found == magic
    };
    let known = FILE_SYSTEMS.iter().find(|(_, at, magic)| has(*at, magic));
    known.map(|(name, ..)| *name)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Returns the four partitions that an MBR has room for.
fn primary(mbr: &[u8]) -> Vec<Partition> {
    let entries = mbr[446..510].chunks_exact(16).zip(1..);
    let used = entries.filter(|(entry, _)| entry[4] != 0);
    used.map(|(entry, number)| Partition {
        number,
        start: u64::from(u32_at(entry, 8)) * SECTOR,
        len: u64::from(u32_at(entry, 12)) * SECTOR,
        label: String::new(),
        file_system: None,
    })
    .collect()
}

/// Returns the partitions of a GPT; none if it is damaged.
fn gpt(disk: &File) -> io::Result<Vec<Partition>> {
    let mut header = [0; 92];
    if disk.read_at(&mut header, SECTOR)? < header.len() || !header.starts_with(b"EFI PART") {
        return Ok(Vec::new());
    }
    let table = u64_at(&header, 72).saturating_mul(SECTOR);
    let entries = u32_at(&header, 80).min(GPT_ENTRIES_MAX);
    let entry_len = u32_at(&header, 84);
    if !(128..=GPT_ENTRY_MAX).contains(&entry_len) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for number in 0..entries {
        let mut entry = [0; 128];
        let at = table.saturating_add(u64::from(number) * u64::from(entry_len));
        if disk.read_at(&mut entry, at)? < entry.len() {
            break;
        }
        if entry[..16] == [0; 16] {
            continue;
        }
        let (first, last) = (u64_at(&entry, 32), u64_at(&entry, 40));
        found.push(Partition {
            number: number + 1,
            start: first.saturating_mul(SECTOR),
            len: last
                .saturating_add(1)
                .saturating_sub(first)
                .saturating_mul(SECTOR),
            label: label(&entry[56..]),
            file_system: None,
        });
    }
    Ok(found)
}

/// Decodes a partition's name, which somebody else has chosen.
fn label(utf16: &[u8]) -> String {
    let units = utf16
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    let units = units.take_while(|unit| *unit != 0);
    let decoded = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER));
    decoded.filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    /// Writes a table with one partition.
    pub(in super::super) fn write_mbr(disk: &Path, start: u32, sectors: u32) {
        let disk = File::options().write(true).open(disk).unwrap();
        let mut entry = [0; 16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        disk.write_all_at(&entry, 446).unwrap();
        disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
    }

    fn disk_of(bytes: &[u8]) -> File {
        let disk = tempfile::tempfile().unwrap();
        disk.write_all_at(bytes, 0).unwrap();
        disk
    }

    /// A GPT with two partitions, the first of them named, of 1 MiB each.
    fn gpt_disk() -> Vec<u8> {
        let mut disk = vec![0; 4 << 20];
        disk[446 + 4] = 0xee;
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[512..520].copy_from_slice(b"EFI PART");
        disk[512 + 72..512 + 80].copy_from_slice(&2_u64.to_le_bytes());
        disk[512 + 80..512 + 84].copy_from_slice(&128_u32.to_le_bytes());
        disk[512 + 84..512 + 88].copy_from_slice(&128_u32.to_le_bytes());
        for (slot, first) in [(0, 2048_u64), (14, 4096)] {
            let entry = &mut disk[1024 + slot * 128..][..128];
            entry[..16].fill(1);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&(first + 2047).to_le_bytes());
        }
        disk[1024 + 56..][..8].copy_from_slice(b"r\0o\0\x07\0t\0");
        disk
    }

    #[test]
    fn partitions_of_both_tables_are_found() {
        let found = partitions(&disk_of(&gpt_disk())).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|one| (one.number, one.start, one.len))
            .collect();
        assert_eq!(told, [(1, 1 << 20, 1 << 20), (15, 2 << 20, 1 << 20)]);
        assert_eq!(found[0].name(), "partition 1, rot");
        assert!(found[1].has(2 << 20) && !found[1].has(3 << 20));
    }

    #[test]
    fn hostile_tables_are_bounded() {
        let whole = |disk: &[u8]| {
            let found = partitions(&disk_of(disk)).unwrap();
            (found.len(), found[0].number, found[0].len)
        };
        for at in [512 + 72, 512 + 80, 512 + 84, 1024 + 32, 1024 + 40] {
            let mut disk = gpt_disk();
            disk[at..at + 4].fill(0xff);
            let found = partitions(&disk_of(&disk)).unwrap();
            assert!(
                found.iter().all(|one| one.start + one.len <= 4 << 20),
                "{at}"
            );
        }
        assert_eq!(whole(b"short"), (1, 0, 5));
        assert_eq!(whole(&gpt_disk()[..600]), (1, 0, 600));
    }
}
