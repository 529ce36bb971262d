//! `yolofs block verify`: whether all of an image can be read.

use anyhow::Context as _;
use blockimages::{Background, CacheCounts, Start};
use blocks::{BlockDevice, Content, DeviceAccess, DeviceErrorKind};
use host::interrupt::Interrupt;
use serde::Serialize;

use super::{ImageArg, access};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};

/// Bytes of one read.
const STEP_BYTES: u64 = 1 << 20;

/// Read all data of an image, and check what has checksums
#[derive(Clone, Debug, clap::Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    image: ImageArg,
    #[command(flatten)]
    format: FormatArg,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Verified {
    size: u64,
    /// Bytes that are data; the others are zeros.
    data: u64,
    /// Where reads of at most 1 MiB found damage.
    damaged: Vec<u64>,
    /// What was fetched, if there is a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheCounts>,
}

pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<Outcome> {
    let image = args.image.prepare()?;
    access::verify(&image).confine()?;
    let interrupt = Interrupt::install()?;
    let opened = image.open(
        DeviceAccess::ReadOnly,
        Background::Nothing,
        &Start::default(),
    )?;
    let mut found = verify(&*opened.device, &interrupt)?;
    found.cache = opened.cache.map(|cache| cache.counts());
    print(args.format.format(), &found, |found| {
        let Verified {
            size,
            data,
            damaged,
            ..
        } = found;
        let places = damaged.len();
        format!("{data} of {size} bytes are data; damaged places: {places}\n")
    })?;
    Ok(match found.damaged.is_empty() {
        true => Outcome::Done,
        false => Outcome::Different,
    })
}

fn verify(device: &dyn BlockDevice, interrupt: &Interrupt) -> anyhow::Result<Verified> {
    let size = device.info().size;
    let mut found = Verified {
        size,
        ..Verified::default()
    };
    let mut buffer = vec![0; usize::try_from(STEP_BYTES)?];
    let mut at = 0;
    while at < size {
        interrupt.check()?;
        let extents = device.extents(at..size, 1).context("looking for data")?;
        let extent = extents
            .first()
            .context("the device tells nothing of itself")?;
        let end = at + extent.len;
        while extent.content == Content::Data && at < end {
            interrupt.check()?;
            let len = (end - at).min(STEP_BYTES);
            match device.read_at(at, &mut buffer[..usize::try_from(len)?]) {
                Ok(()) => {}
                Err(error) if error.kind() == DeviceErrorKind::Damaged => found.damaged.push(at),
                Err(error) => return Err(error.into()),
            }
            found.data += len;
            at += len;
        }
        at = end;
    }
    Ok(found)
}
