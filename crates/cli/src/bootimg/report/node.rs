//! What is known of the node: its store, its images, its mounts.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use bootimg::{Stack, Store, StoredImage};
use report::{ImageReport, Measured, NodeReport};

use super::collect::Collector;
use super::subject::Subject;
use super::take_measured;

/// Collects all images, by name: container images, and what is no layer of any.
///
/// # Errors
/// If the store cannot be read. An image that cannot is left out, and logged.
pub(super) fn report(
    collector: &Collector<'_>,
    mut measured: Option<Measured>,
    max_bytes: u64,
) -> anyhow::Result<NodeReport> {
    let images = images(collector, measured.as_mut())?;
    let alone = |stored: &StoredImage| stored.own_bytes.saturating_add(stored.shared_bytes);
    let alone = collector.stored.values().map(alone);
    let dir = collector.store().map(Store::dir);
    let mounts = collector.mounts.iter();
    Ok(NodeReport {
        name: host_name(),
        store: dir.map_or_else(String::new, |dir| dir.display().to_string()),
        store_max_bytes: max_bytes,
        store_bytes: dir.map_or(Ok(0), bytes_of)?,
        unshared_bytes: alone.fold(0, u64::saturating_add),
        boot_images: collector.stored.len() as u64,
        images,
        mounts: mounts.map(|mount| mount.report.clone()).collect(),
        measured: measured.map_or_else(Vec::new, Measured::into_rest),
    })
}

fn images(
    collector: &Collector<'_>,
    mut measured: Option<&mut Measured>,
) -> anyhow::Result<Vec<ImageReport>> {
    let stacks = match collector.store() {
        Some(store) => store.stacks().context("listing the container images")?,
        None => Vec::new(),
    };
    let mut images = Vec::new();
    for subject in subjects(collector, stacks) {
        match collector.image(&subject) {
            Ok(mut image) => {
                image.measured = take_measured(measured.as_deref_mut(), &image);
                images.push(image);
            }
            Err(error) => log::warn!("{error:#}"),
        }
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(images)
}

fn subjects(collector: &Collector<'_>, stacks: Vec<Stack>) -> Vec<Subject> {
    let singles = collector.stored.values().filter(|stored| {
        // What has no name is garbage; what has only digests is a layer.
        stored.names.iter().any(|name| !name.starts_with("sha256:"))
    });
    let singles = singles.map(|stored| Subject::Stored(stored.info.id));
    stacks
        .into_iter()
        .map(Subject::Stack)
        .chain(singles)
        .collect()
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().ok();
    name.map_or_else(
        || "this node".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Returns the bytes of all files below a store's directory, which is two levels deep.
fn bytes_of(store: &Path) -> anyhow::Result<u64> {
    let mut bytes: u64 = 0;
    for part in list(store)? {
        for file in list(&part)? {
            let meta = match fs::symlink_metadata(&file) {
                // gc took it away since we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta.with_context(|| format!("looking at {}", file.display()))?,
            };
            if meta.is_file() {
                bytes = bytes.saturating_add(meta.len());
            }
        }
    }
    Ok(bytes)
}

/// Returns what is in a directory; nothing of what is none.
fn list(dir: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let listing = || format!("listing {}", dir.display());
    let entries = fs::read_dir(dir).with_context(listing)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<io::Result<_>>().with_context(listing)
}
