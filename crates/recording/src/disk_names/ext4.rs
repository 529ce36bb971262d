//! Finds the files of an ext4 file system that contain some blocks, with e2fsprogs' `debugfs`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use blocks::{BLOCK_SIZE, BlockRange};
use mounting::confinement::BlockAccess;

use super::partitions::Partition;
use crate::confined_program;

/// Longest line of commands that `debugfs` takes is 8191 bytes: so many numbers fit, whatever they are.
const NUMBERS_IN_LINE: usize = 500;

/// Blocks that are asked for: each line of them is a pass over all inodes.
const BLOCKS_MAX: usize = 40_000;

/// What looks up names.
const DEBUGFS: &str = "debugfs";

/// How long `debugfs` may take for all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Most that is read of its answer.
const ANSWER_MAX: u64 = 64 << 20;

/// A file, and how much of it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileBlocks {
    pub(super) path: String,
    /// Blocks of 4 KiB.
    pub(super) blocks: u64,
}

/// Returns which files of a partition have blocks in some ranges of the disk.
pub(super) fn files(
    disk: &Path,
    partition: &Partition,
    ranges: &[BlockRange],
) -> anyhow::Result<Vec<FileBlocks>> {
    let block_bytes = block_bytes(disk, partition).context("reading its super block")?;
    ensure!(
        block_bytes == BLOCK_SIZE as u64,
        "its blocks have {block_bytes} bytes, and only those of 4096 are looked up"
    );
    let blocks: Vec<u64> = ranges
        .iter()
        .flat_map(|range| range.start().0..range.start().0 + range.len())
        .filter_map(|block| (block * BLOCK_SIZE as u64).checked_sub(partition.start))
        .map(|byte| byte / block_bytes)
        .collect();
    ensure!(
        blocks.len() <= BLOCKS_MAX,
        "{} blocks are more than can be looked up",
        blocks.len()
    );
    let deadline = Instant::now() + PATIENCE;
    let inodes = look_up(
        DEBUGFS,
        (disk, partition.start),
        ("icheck", &blocks),
        deadline,
    )?;
    let mut counted: HashMap<u64, u64> = HashMap::new();
    for (_, inode) in pairs(&inodes) {
        if let Ok(inode) = inode.parse() {
            *counted.entry(inode).or_default() += 1;
        }
    }
    let mut wanted: Vec<u64> = counted.keys().copied().collect();
    wanted.sort_unstable();
    let names = look_up(
        DEBUGFS,
        (disk, partition.start),
        ("ncheck", &wanted),
        deadline,
    )?;
    let mut found = Vec::new();
    for (inode, path) in pairs(&names) {
        // A file with several names counts once.
        if let Some(blocks) = counted.remove(&inode) {
            let path = path.replace(char::is_control, "?");
            found.push(FileBlocks { path, blocks });
        }
    }
    Ok(found)
}

/// Returns the size of its blocks, which the super block has as a power of two above 1 KiB.
fn block_bytes(disk: &Path, partition: &Partition) -> std::io::Result<u64> {
    let mut log = [0; 4];
    File::open(disk)?.read_exact_at(&mut log, partition.start + 1024 + 24)?;
    Ok(1024_u64.checked_shl(u32::from_le_bytes(log)).unwrap_or(0))
}

/// Splits what `debugfs` prints: a number, a tab, and what belongs to it; everything else is a heading.
fn pairs(answer: &str) -> impl Iterator<Item = (u64, &str)> {
    let lines = answer.lines().filter_map(|line| line.split_once('\t'));
    lines.filter_map(|(number, rest)| Some((number.trim().parse().ok()?, rest.trim())))
}

/// Has `debugfs` look up numbers, a line of them at a time.
fn look_up(
    program: &str,
    (disk, start): (&Path, u64),
    (command, numbers): (&str, &[u64]),
    deadline: Instant,
) -> anyhow::Result<String> {
    let mut script = tempfile::NamedTempFile::new().context("making a file of commands")?;
    for line in numbers.chunks(NUMBERS_IN_LINE) {
        let words: Vec<String> = line.iter().map(u64::to_string).collect();
        writeln!(script, "{command} {}", words.join(" ")).context("writing commands")?;
    }
    let mut image = disk.as_os_str().to_owned();
    image.push(format!("?offset={start}"));
    let mut program = Command::new(program);
    program
        .arg("-f")
        .arg(script.path())
        .arg(image)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let access = BlockAccess {
        reads: vec![disk.to_owned(), script.path().to_owned()],
        ..BlockAccess::default()
    };
    let mut child =
        confined_program::start(program, access).context("in Debian's package e2fsprogs")?;
    let out = child.stdout.take().context("listening to debugfs")?;
    let reader = std::thread::Builder::new()
        .name("debugfs".to_owned())
        .spawn(move || {
            let mut answer = Vec::new();
            let read = out.take(ANSWER_MAX).read_to_end(&mut answer);
            read.map(|_| String::from_utf8_lossy(&answer).into_owned())
        })
        .context("starting the thread that listens to debugfs")?;
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let in_time = reader.is_finished();
    // It has ended, or is not wanted any more.
    let _gone = child.kill();
    child.wait().context("waiting for debugfs")?;
    // What it may have left behind could keep its output open.
    ensure!(in_time, "debugfs took longer than {} s", PATIENCE.as_secs());
    let answer = reader.join().ok().context("listening to debugfs")?;
    answer.context("listening to debugfs")
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::confined_program::hostile;

    /// As if a damaged ext4 had made `debugfs` do what its author wants.
    #[test]
    fn the_program_that_looks_up_names_only_reads_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (program, secret) = hostile::program(dir.path());
        let disk = dir.path().join("disk");
        std::fs::write(&disk, "disk").unwrap();
        let deadline = Instant::now() + PATIENCE;
        let program = program.to_str().unwrap();
        let told = look_up(program, (&disk, 0), ("icheck", &[1]), deadline).unwrap();
        hostile::assert_harmless(&told, &secret);
        assert_eq!(std::fs::read_to_string(&disk).unwrap(), "disk");
    }
}
