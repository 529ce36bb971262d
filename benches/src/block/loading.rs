//! Opening a layer of a million segments.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use lsmt::{BlobOptions, FileStorage, Layer, LayerInfo, LsmtError, SECTOR, Stack, write_layer};

use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::micro::Series;

/// The most that overlaybd takes, in whole pages of an index.
const SEGMENTS: u64 = 1_000_000 / 256 * 256;

/// Measures how long it takes until such a layer of the page cache can be read.
///
/// # Errors
/// If it cannot be written or opened.
pub fn measure(rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let dir = tempfile::tempdir().context("making a directory")?;
    let path = dir.path().join("layer");
    let file = File::create_new(&path).context("making a layer")?;
    let info = LayerInfo {
        virtual_size: 4 * SEGMENTS * SECTOR,
        ..LayerInfo::default()
    };
    write_layer::<LsmtError>(
        &FileStorage::new(file),
        BlobOptions::default(),
        &info,
        |body| {
            // Zeros take no room, and their entries are as long as any.
            (0..SEGMENTS).try_for_each(|number| body.zeros(4 * number * SECTOR, SECTOR))
        },
    )
    .context("writing a layer")?;
    let mut series = Series::new(format!("opening a layer of {SEGMENTS} segments"), "ms");
    for _ in 0..rounds {
        let started = Instant::now();
        let file = File::open(&path).context("opening a layer")?;
        let layer = Layer::open(Arc::new(FileStorage::new(file))).context("opening a layer")?;
        let stack = Stack::new(vec![layer]).context("stacking a layer")?;
        series.values.push(milliseconds(started.elapsed()));
        ensure!(
            stack.index().segments().len() as u64 == SEGMENTS,
            "segments are missing"
        );
    }
    let what = "milliseconds until a layer of a million segments can be read";
    let aim = Aim::at_most(100.0, what, series.median());
    Ok((vec![series], vec![aim]))
}
