//! `yolofs tier pin` and `unpin`; and which boot images somebody means.

use std::path::Path;

use anyhow::Context as _;
use blocks::ContentId;
use bootimg::{ImageId, Store, StoreError};

use crate::bootimg::stacks;
use crate::exit::Outcome;
use bootstore::store::StoreSettings;
use bootstore::tiers::known::Knowledge;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct PinArgs {
    /// Names or ids of boot images, or container images that were recorded: all of their layers; or
    /// paths of files that were promoted, which begin with /, ./ or ../
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<String>,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pinning {
    Pinned,
    Unpinned,
}

pub(super) fn run(
    args: &PinArgs,
    store: &StoreSettings,
    pinning: Pinning,
) -> anyhow::Result<Outcome> {
    let tiers = store.tiers()?;
    let store = store.open_present()?;
    // All are looked up before one is changed: a typo changes nothing.
    let (files, images) = files_apart(&args.images);
    let mut wanted: Vec<(Knowledge, ContentId, String)> = Vec::new();
    for (id, name) in meant(&store, &images)? {
        wanted.push((tiers.known(), id.0, name));
    }
    for name in files {
        let versions = tiers.versions_of(Path::new(&name))?;
        wanted.extend(
            versions
                .into_iter()
                .map(|(key, _)| (tiers.files(), key, name.clone())),
        );
    }
    for (known, key, name) in wanted {
        let changing = known.change(key, |known| known.pinned = pinning == Pinning::Pinned);
        changing.with_context(|| format!("recording the pin of {name}"))?;
    }
    Ok(Outcome::Done)
}

/// Parts what somebody named into paths of files, and boot images: no name of those begins so.
pub(super) fn files_apart(names: &[String]) -> (Vec<String>, Vec<String>) {
    let is_path = |name: &String| {
        ["/", "./", "../"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    names.iter().cloned().partition(is_path)
}

/// Returns the boot images that `names` mean, each once.
///
/// # Errors
/// If one of them means none.
pub(super) fn meant(store: &Store, names: &[String]) -> anyhow::Result<Vec<(ImageId, String)>> {
    let mut images: Vec<(ImageId, String)> = Vec::new();
    for name in names {
        let found = match store.resolve(name) {
            Ok(id) => vec![(id, name.clone())],
            Err(error @ StoreError::NotFound { .. }) => match stacks::find(store, name)? {
                Some(stack) => stacks::boot_images(store, &stack)?,
                None => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        for (id, name) in found {
            if images.iter().all(|(known, _)| *known != id) {
                images.push((id, name));
            }
        }
    }
    Ok(images)
}
