//! `bootimg prewarm --tier`: copies of boot images on a tier.

use anyhow::Context as _;
use bootimg::{ImageId, Store};
use serde::Serialize;
use tiering::objects::Copied;

use bootstore::tiers::mover::{Mover, PATIENCE};
use bootstore::tiers::pace::Paced;
use bootstore::tiers::{Tiers, now};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

/// What happened to one boot image.
#[derive(Debug, Serialize)]
pub(super) struct Placed {
    name: String,
    tier: String,
    /// Bytes that were written; 0 if a sound copy was there.
    written_bytes: u64,
}

/// Puts copies on a tier. What was put there before something fails stays.
///
/// # Errors
/// If there is no such tier, it is away or full, or a boot image is damaged.
pub(super) fn place(
    tiers: &Tiers,
    tier: &str,
    store: &Store,
    wanted: Vec<(ImageId, String)>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Placed>> {
    let place = tiers.place_of(tier)?;
    let mut placed = Vec::new();
    for (id, name) in wanted {
        interrupt.check()?;
        let image = store.peek_image(&id);
        let image = image.with_context(|| format!("opening {name}"))?;
        // Read to be verified, then written, but for what is there.
        let bytes = image.info().data_blocks * 4096 * 2;
        drop(image);
        let bar = progress::bytes(&name, bytes);
        let pace = Paced::new(None, interrupt, bar.clone());
        // First: or a node would take away what is cold.
        tiers.known().expect_start(id.0, now())?;
        // For one at a time: others have their turn in between.
        let copied = Mover::open(tiers, PATIENCE)
            .and_then(|mover| mover.bring(store, &id, place, &pace))
            .with_context(|| format!("bringing {name} to tier {tier}"));
        bar.finish_and_clear();
        placed.push(Placed {
            name,
            tier: tier.to_owned(),
            written_bytes: match copied? {
                Copied::Bytes(bytes) => bytes,
                Copied::There => 0,
            },
        });
    }
    Ok(placed)
}

pub(super) fn text(placed: &[Placed]) -> String {
    let line = |one: &Placed| match one.written_bytes {
        0 => format!("{}: on {} already, and sound\n", one.name, one.tier),
        bytes => format!("{}: {} on {}, verified\n", one.name, Size(bytes), one.tier),
    };
    placed.iter().map(line).collect()
}
