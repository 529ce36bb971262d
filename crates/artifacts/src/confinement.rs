//! Confinement of a process that connects to a registry.

use anyhow::Context as _;
use bootimg::Store;
use mounting::confinement::{Asks, Intake, Rights};

/// Confines a command to its registry, and its existing store.
///
/// # Errors
/// If the kernel refuses.
pub fn confine(store: &Store) -> anyhow::Result<()> {
    let dir = store.dir().canonicalize();
    let intake = Intake {
        reads: Vec::new(),
        writes: vec![dir.with_context(|| format!("opening {}", store.dir().display()))?],
        clears: Vec::new(),
        asks: Asks::Registry,
        rights: Rights::Keeps,
    };
    intake.confine()
}
