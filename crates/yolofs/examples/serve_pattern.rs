//! Serves one file of made-up bytes, all of it prewarmed, until its standard input ends.
//!
//! `serve_pattern MOUNTPOINT MIB` says `ready` when the file can be read, and in the end how many
//! pages it pushed and how many of them the kernel asked for again. The tests kill it, and starve
//! it of memory.

use std::env;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::{Node, tree};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, BlockSource, Extent, FileId, FileKey, Lookup,
    ReplayPlan, SourceError,
};
use yolofs::{Busy, Config, FileSystem, Mount, MountOptions, PrewarmOptions};

/// Bytes that follow from their place: every eight of them are their own offset.
struct Pattern;

impl BlockSource for Pattern {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let left = file.version.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        // The kernel asks for whole pages, so that no word is cut at its start.
        for (at, word) in (offset..).step_by(8).zip(buf[..len].chunks_mut(8)) {
            word.copy_from_slice(&at.to_le_bytes()[..word.len()]);
        }
        Ok(len)
    }
}

impl BlockCache for Pattern {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        match self.read_at(file, range.bytes().start, out) {
            Ok(_) => Lookup::Hit {
                blocks: range.len(),
            },
            Err(_) => Lookup::Miss {
                blocks: range.len(),
            },
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args_os().skip(1);
    let target = args.next().ok_or("no mount point")?;
    let mib: u64 = args
        .next()
        .and_then(|mib| mib.to_str()?.parse().ok())
        .ok_or("no size in MiB")?;
    let size = mib << 20;
    let names = Arc::new(tree(&[Node::dir(&[("file", 1)]), Node::file(size)])?);
    let fs = FileSystem::new(names, Arc::new(Pattern), Config::default());
    let mount = Mount::start(Arc::new(fs), &MountOptions::new(target, "pattern"))?;
    let plan = ReplayPlan {
        extents: vec![Extent {
            file: FileId(1),
            range: BlockRange::with_len(BlockIndex(0), size / BLOCK_SIZE as u64),
            bin: 0,
            seen: 1,
        }],
        ..ReplayPlan::default()
    };
    mount.prewarm(&plan, &Pattern, &PrewarmOptions::default())?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let counters = mount.counters();
    println!("{} {}", counters.injected_pages, counters.evicted_pages);
    mount.unmount(Busy::Wait, Duration::from_secs(60))?;
    Ok(())
}
