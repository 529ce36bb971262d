//! What is left to a process that talks to a registry.

use anyhow::Context as _;
use bootimg::Store;
use mounting::confinement::{Asks, Intake, Rights};

/// Leaves to a command that asks a registry that, and its store, which is there.
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
