//! Where `record` and `from-trace` keep a boot image, and what they say of it.

use std::path::PathBuf;

use recording::keep::{KeepPlace, Kept};

use crate::output::{count, percent};
use host::size::Size;

/// Where to keep a boot image.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KeepArgs {
    /// Name in the store [default: made of the source's path]
    #[arg(long, value_parser = crate::store_args::image_name)]
    name: Option<String>,
    /// Write the boot image to this file instead of the store
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    out: Option<PathBuf>,
}

impl KeepArgs {
    /// Returns the place that was chosen.
    pub(super) fn place(&self) -> KeepPlace {
        match &self.out {
            Some(path) => KeepPlace::File(path.clone()),
            None => KeepPlace::Store {
                name: self.name.clone(),
            },
        }
    }

    /// Returns whether it goes to the store.
    pub(super) const fn is_in_store(&self) -> bool {
        self.out.is_none()
    }

    /// Returns whether a place was chosen.
    pub(super) const fn are_given(&self) -> bool {
        self.name.is_some() || self.out.is_some()
    }
}

/// Writes what was kept for people.
pub(super) fn kept_text(kept: &Kept) -> String {
    let place = match (&kept.name, &kept.file) {
        (Some(name), _) => format!("boot image {name}"),
        (None, Some(file)) => file.display().to_string(),
        (None, None) => "boot image".to_owned(),
    };
    let id: String = kept.id.chars().take(12).collect();
    let mut text = format!(
        "{place} ({id}): {}, {}, {}, {} of the source's {}, {} of metadata\n",
        count(kept.files, "file"),
        count(kept.blocks, "block"),
        Size(kept.bytes),
        percent(kept.bytes, kept.source_bytes),
        Size(kept.source_bytes),
        count(kept.touches, "use")
    );
    for dropped in &kept.dropped {
        text.push_str(&format!("left out: {dropped}\n"));
    }
    text
}

/// Writes how alike the runs were.
pub(super) fn similarity_text(kept: &Kept) -> String {
    let alike = &kept.similarity;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    format!(
        "similarity of the runs: {} of the blocks of a pair in common (at least {}), \
         {} of them in the same order, {} read by all runs\n",
        percent(alike.jaccard_mean),
        percent(alike.jaccard_min),
        percent(alike.order_mean),
        percent(alike.core_share)
    )
}
