//! What a recorded start read, in compressed bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use lsmt::{FileStorage, Trace, Window, ZFile, blob_range};
use serde_json::Value;

/// What a start needs of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Blocks of 4 KiB that were read.
    pub blocks: u64,
    /// Their bytes as they are stored.
    pub bytes: u64,
    /// Ranges of stored bytes without gaps.
    pub ranges: u64,
}

/// Adds up the blocks of a trace of a converted image.
///
/// # Errors
/// If the trace or a layer cannot be read.
pub fn touched(trace: &Path, image: &Path) -> anyhow::Result<Touched> {
    let trace = Trace::decode(&fs::read(trace).context("reading a trace")?)?;
    let mut touched = Touched::default();
    for (number, path) in (0..).zip(lowers(image)?) {
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let blob = Arc::new(FileStorage::new(file));
        let range = blob_range(&blob)?;
        let layer = ZFile::open(Window::new(Arc::clone(&blob), range))?;
        let block = u64::from(layer.block_size());
        let reads = trace.reads.iter().filter(|read| read.layer == number);
        let blocks: BTreeSet<u64> = reads
            .flat_map(|read| read.offset / block..(read.offset + read.len).div_ceil(block))
            .collect();
        let mut last = None;
        for at in blocks {
            // The last block of a layer may be short.
            let stored = layer.compressed(at * block, 1)?;
            touched.blocks += 1;
            touched.bytes += stored.end - stored.start;
            touched.ranges += u64::from(last != Some(at));
            last = Some(at + 1);
        }
    }
    Ok(touched)
}

/// Returns the blobs of an image, the lowest first.
fn lowers(image: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let config = fs::read(image.join("config.v1.json")).context("reading an image")?;
    let config: Value = serde_json::from_slice(&config).context("reading an image")?;
    let lowers = config["lowers"].as_array().context("an image has layers")?;
    let files = lowers.iter().map(|lower| lower["file"].as_str());
    let files = files.map(|file| Some(image.join(file?)));
    files.collect::<Option<_>>().context("a layer has a file")
}
