//! What the store of boot images knows of the starts of block images.

use std::path::Path;

use blockimages::plan::PlanShelf;
use blockimages::{DeviceConfig, Trace};

/// The directory of plans in a store.
const PLANS: &str = "block-plans";

/// Returns the plans of a store.
#[must_use]
pub fn shelf(store: &Path) -> PlanShelf {
    PlanShelf::at(store.join(PLANS))
}

/// Returns what a store knows of the start of an image; nothing if that cannot be found out.
#[must_use]
pub fn known(store: &Path, image: &Path) -> Option<Trace> {
    let known = || {
        let digests = DeviceConfig::read(image)?.0.digests();
        let plan = shelf(store).find(&digests)?;
        anyhow::Ok(plan.map(|plan| plan.trace_of(&digests)))
    };
    known().unwrap_or_else(|error| {
        log::warn!("cannot look for a plan of {}: {error:#}", image.display());
        None
    })
}
