//! How large a boot image is, beside what the boot touched.

use std::fs;

use anyhow::Context as _;
use bootimg::{Store, StoreConfig, Variant, unwatched};

use super::Series;
use crate::aims::Aim;
use crate::boots::{Lab, Subject, image_of};
use crate::report::count;

const BLOCK_BYTES: u64 = 4096;

/// Compares a boot image's file, without compression, with its blocks.
///
/// # Errors
/// If the image is not in the store, or cannot be written to a file.
pub fn measure(lab: &Lab) -> anyhow::Result<(Series, Aim)> {
    let store = Store::open(lab.programs().store(), StoreConfig::default())?;
    let stored = store.find(image_of(Subject::Container))?;
    let touched = stored.info.blocks * BLOCK_BYTES;
    let file = lab.home().join("mapped.bimg");
    store.export(&stored.info.id, &file, Variant::Mapped, &mut unwatched)?;
    let bytes = fs::metadata(&file)
        .context("looking at the boot image")?
        .len();
    let share = count(bytes) / count(touched);
    let mut series = Series::new("boot image to touched blocks", "x");
    series.values.push(share);
    let aim = Aim::at_most(
        1.06,
        "boot image without compression to touched blocks",
        Some(share),
    );
    Ok((series, aim))
}
