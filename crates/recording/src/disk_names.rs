//! The reads of a boot from a raw disk image, by partitions and files instead of offsets.
//!
//! This is for people: names are looked up in the present image. Files are found by e2fsprogs' `debugfs`, in
//! partitions with ext2, ext3 or ext4; if it is missing or takes too long, only partitions are reported.

mod ext4;
mod partitions;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use blocks::{BLOCK_SIZE, BlockRange};
use bootimg::Image;
use localfs::{DiskFormat, SourceKind, SourceRoot};
use serde::Serialize;

use ext4::FileBlocks;
use partitions::{Partition, partitions};

/// Files that are reported: those with the most blocks.
const FILES_TOLD: usize = 1000;

/// The reads from a disk image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskUse {
    /// The reads from each partition, in their order, and from outside of them.
    pub partitions: Vec<PartitionUse>,
    /// Files of which most is read, the first 1000.
    pub files: Vec<FileUse>,
    /// Why files of some partitions are not reported although they could be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The reads from a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionUse {
    /// Its number; 0 for reads outside of all partitions, and for a disk without a partition table.
    pub number: u32,
    /// Its name or purpose, and its file system if that is known.
    pub name: String,
    /// Blocks of 4 KiB that are read.
    pub blocks: u64,
    /// Blocks of 4 KiB that it has.
    pub of: u64,
}

/// The reads from a file in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileUse {
    /// The partition's number.
    pub partition: u32,
    /// Its path from the root of the partition's file system.
    pub path: String,
    /// Blocks of 4 KiB that are read.
    pub blocks: u64,
}

/// Returns the reads in a boot image, if it is of a raw disk image that still exists.
#[must_use]
pub fn of_image(image: &Image) -> Option<DiskUse> {
    let path = image.info().source.label.strip_prefix("disk:")?;
    let root = SourceRoot::open(path).ok()?;
    let SourceKind::Disk {
        name,
        format: DiskFormat::Raw,
    } = root.kind()
    else {
        return None;
    };
    let file = image.tree().resolve(name.as_encoded_bytes())?;
    let extents = image.plan().extents.iter();
    let ranges = extents.filter(|extent| extent.file == file);
    let ranges: Vec<BlockRange> = ranges.map(|extent| extent.range).collect();
    of_ranges(root.path(), &ranges).ok()
}

/// Returns the reads in some ranges of a raw disk image.
///
/// # Errors
/// If the image cannot be read.
pub fn of_ranges(path: &Path, ranges: &[BlockRange]) -> std::io::Result<DiskUse> {
    let disk = File::open(path)?;
    let found = partitions(&disk)?;
    let mut told = DiskUse::default();
    let mut outside = 0;
    let mut within: BTreeMap<u32, Vec<BlockRange>> = BTreeMap::new();
    for range in ranges {
        let start = range.start().0 * BLOCK_SIZE as u64;
        match found.iter().find(|partition| partition.has(start)) {
            Some(partition) => within.entry(partition.number).or_default().push(*range),
            None => outside += range.len(),
        }
    }
    if outside > 0 {
        told.partitions.push(PartitionUse {
            number: 0,
            name: "partition tables, boot loader".to_owned(),
            blocks: outside,
            of: outside,
        });
    }
    for partition in &found {
        let Some(ranges) = within.get(&partition.number) else {
            continue;
        };
        told.partitions.push(PartitionUse {
            number: partition.number,
            name: partition.name(),
            blocks: ranges.iter().map(|range| range.len()).sum(),
            of: partition.len / BLOCK_SIZE as u64,
        });
        if partition.is_ext4() {
            add_files(&mut told, path, partition, ranges);
        }
    }
    told.files
        .sort_by_key(|file| std::cmp::Reverse(file.blocks));
    told.files.truncate(FILES_TOLD);
    Ok(told)
}

fn add_files(told: &mut DiskUse, path: &Path, partition: &Partition, ranges: &[BlockRange]) {
    match ext4::files(path, partition, ranges) {
        Ok(files) => {
            let files = files.into_iter();
            told.files
                .extend(files.map(|FileBlocks { path, blocks }| FileUse {
                    partition: partition.number,
                    path,
                    blocks,
                }));
        }
        Err(error) => told.warnings.push(format!(
            "cannot name the files of {}: {error:#}",
            partition.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::BlockIndex;
    use std::process::Command;

    fn run(command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn one_block(block: u64) -> BlockRange {
        BlockRange::new(BlockIndex(block), BlockIndex(block + 1))
    }

    /// A disk of 24 MiB with a file system from 1 MiB on, and the blocks of a file of 100 KB in it.
    fn disk(dir: &Path) -> (std::path::PathBuf, Vec<BlockRange>) {
        let (root, disk) = (dir.join("root"), dir.join("disk.raw"));
        std::fs::create_dir_all(root.join("usr/bin")).unwrap();
        std::fs::write(root.join("usr/bin/tool one"), vec![7; 100_000]).unwrap();
        let size = 24 << 20;
        File::create(&disk).unwrap().set_len(size).unwrap();
        let image = format!("{}", disk.display());
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-E", "offset=1048576", "-d"])
            .arg(&root)
            .args([&image, "5000"]));
        let at = format!("{image}?offset=1048576");
        let listed = run(Command::new("debugfs").args(["-R", "blocks \"/usr/bin/tool one\"", &at]));
        let blocks = listed
            .split_whitespace()
            .map(|word| word.parse::<u64>().unwrap());
        let ranges = blocks.map(|block| one_block(block + 256));
        let mut ranges: Vec<_> = ranges.collect();
        assert_eq!(ranges.len(), 25);
        ranges.push(one_block(0));
        (disk, ranges)
    }

    #[test]
    fn a_file_in_a_partition_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, ranges) = disk(dir.path());
        partitions::tests::write_mbr(&disk, 2048, 40960);
        let told = of_ranges(&disk, &ranges).unwrap();
        assert_eq!(told.warnings, [""; 0]);
        let partitions: Vec<_> = told
            .partitions
            .iter()
            .map(|one| (one.number, one.blocks))
            .collect();
        assert_eq!(partitions, [(0, 1), (1, 25)]);
        assert!(told.partitions[1].name.contains("ext4"), "{told:?}");
        let file = &told.files[0];
        assert_eq!((file.path.as_str(), file.blocks), ("/usr/bin/tool one", 25));
        assert_eq!(told.files.len(), 1);
    }

    #[test]
    fn without_a_table_all_of_the_disk_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, ranges) = disk(dir.path());
        let told = of_ranges(&disk, &ranges).unwrap();
        assert_eq!(told.partitions.len(), 1);
        assert_eq!((told.partitions[0].blocks, told.files.len()), (26, 0));
    }
}
