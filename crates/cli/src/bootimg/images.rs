//! The verbs of the store: `ls`, `rm`, `pin`, `unpin`, `merge`, `export`, `import`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blocks::Digest;
use bootimg::{AddReport, ImageId, Stack, Store, StoreError, StoredImage, Variant, WriteRequest};
use clap::ValueEnum;
use serde::Serialize;

use super::stacks::{self, ListedStack};
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, print, table};
use bootstore::store::{StoreSettings, add_written, name_of, watch};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

/// List the boot images of the store
///
/// The most valuable come first: those that save the most reads for the space they take.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LsArgs {
    /// List container images instead: each stacks the boot images of its layers
    #[arg(long)]
    images: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// Remove boot images from the store
///
/// With a container image go the boot images of layers that no other image stacks. The blocks that
/// no other boot image uses go with the next gc. If one of the names is unknown, nothing is removed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RmArgs {
    /// Names or ids of boot images, or references of container images
    #[arg(required = true, value_name = "IMAGE", add = image_names())]
    images: Vec<String>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// Which boot images to `pin` or `unpin`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PinArgs {
    /// Names or ids of boot images
    #[arg(required = true, value_name = "IMAGE", add = image_names())]
    images: Vec<String>,
}

/// Whether gc may remove an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// It may not.
    Pinned,
    /// It may.
    Unpinned,
}

/// Make one boot image of several of one source
///
/// Each block keeps how many of the recorded runs needed it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MergeArgs {
    /// Names or ids of boot images
    #[arg(required = true, num_args = 2.., value_name = "IMAGE", add = image_names())]
    images: Vec<String>,
    /// Name of the merged boot image
    #[arg(long)]
    name: String,
    #[command(flatten)]
    format: FormatArg,
}

/// Write a boot image to a file
///
/// The file is all that another node needs: see `bootimg import`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// Name or id of a boot image
    #[arg(add = image_names())]
    image: String,
    /// The file to write; one that is there is replaced
    file: PathBuf,
    /// Layout of the file: compressed, or as it is served
    #[arg(long, value_enum, default_value_t = VariantArg::Packed)]
    variant: VariantArg,
}

/// `--variant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VariantArg {
    /// Compressed: for transport.
    Packed,
    /// Uncompressed: larger, and served without unpacking.
    Mapped,
}

/// Take a boot image from a file into the store
///
/// All of it is verified first.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// A file that `bootimg export` or `--out` wrote
    file: PathBuf,
    /// Name in the store [default: made of the source's path]
    #[arg(long, value_parser = crate::store_args::image_name)]
    name: Option<String>,
    #[command(flatten)]
    format: FormatArg,
}

/// A boot image, as `ls --json` shows it.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    name: String,
    names: Vec<String>,
    id: String,
    source: String,
    blocks: u64,
    bytes: u64,
    runs: u16,
    /// Bytes that only this boot image takes in the store.
    own_bytes: u64,
    /// Bytes that it shares with others.
    shared_bytes: u64,
    pinned: bool,
    /// Seconds since 1970.
    recorded_at: i64,
    /// Seconds since it was used.
    unused_secs: u64,
}

impl From<&StoredImage> for Listed {
    fn from(image: &StoredImage) -> Self {
        let unused = SystemTime::now()
            .duration_since(image.last_used)
            .unwrap_or_default();
        Self {
            name: name_of(image),
            names: image.names.clone(),
            id: image.info.id.to_string(),
            source: image.info.source.label.clone(),
            blocks: image.info.blocks,
            bytes: image.info.blocks * 4096,
            runs: image.info.runs,
            own_bytes: image.own_bytes,
            shared_bytes: image.shared_bytes,
            pinned: image.pinned,
            recorded_at: image.info.source.recorded_at,
            unused_secs: unused.as_secs(),
        }
    }
}

pub(super) fn ls(args: &LsArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    if args.images {
        return stacks::ls(args.format.format(), store);
    }
    let images = match store.open_existing()? {
        Some(store) => store.list().context("listing the store")?,
        None => Vec::new(),
    };
    let listed: Vec<Listed> = images.iter().map(Listed::from).collect();
    print(args.format.format(), &listed, |listed| list_text(listed))?;
    Ok(Outcome::Done)
}

fn list_text(listed: &[Listed]) -> String {
    let head = ["NAME", "ID", "BOOT", "OWN", "SHARED", "RUNS", "SOURCE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(listed.iter().map(|image| {
        let pin = if image.pinned { " (pinned)" } else { "" };
        vec![
            // Several names can have one content.
            format!("{}{pin}", names(image)),
            image.id.chars().take(12).collect(),
            Size(image.bytes).to_string(),
            Size(image.own_bytes).to_string(),
            Size(image.shared_bytes).to_string(),
            image.runs.to_string(),
            image.source.clone(),
        ]
    }));
    table(&rows)
}

/// Returns all that an image is called, or the start of its id.
fn names(image: &Listed) -> String {
    match image.names.len() {
        0 => image.name.clone(),
        _ => spoken(&image.names).join(", "),
    }
}

/// Returns names as people say them: whoever needs all of a layer's digest has the id beside it, and
/// `--json`. A layer's name at a place adds nothing where its name alone is there.
fn spoken(names: &[String]) -> Vec<String> {
    let layer = |name: &str| name.parse::<Digest>().ok();
    let mut spoken = Vec::new();
    for name in names {
        let (of, place) = name.split_once('@').unwrap_or((name, ""));
        match layer(of) {
            None => spoken.push(name.clone()),
            Some(digest) if place.is_empty() => spoken.push(format!("layer {}", digest.short())),
            Some(_) if names.iter().any(|other| other == of) => {}
            Some(digest) => spoken.push(format!("layer {} @{place}", digest.short())),
        }
    }
    spoken
}

pub(super) fn rm(args: &RmArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let store = store.open_present()?;
    // All are looked up before one is removed: a typo removes nothing.
    let found = args.images.iter().map(|wanted| found(&store, wanted));
    let found = found.collect::<anyhow::Result<Vec<_>>>()?;
    let mut told = String::new();
    let mut removed = Vec::new();
    for one in &found {
        removed.push(one.listed(&store)?);
        told.push_str(&if args.dry_run {
            format!("would remove {}\n", one.name())
        } else {
            one.remove(&store)?
        });
    }
    print(args.format.format(), &removed, |_| told)?;
    Ok(Outcome::Done)
}

/// What `rm` was asked to remove.
enum Found {
    Boot(StoredImage),
    Container(Stack),
    /// A boot image of another release, of which nothing else is known.
    Foreign(ImageId),
}

/// The same, as `rm --json` shows it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Removed {
    Boot(Listed),
    Container(ListedStack),
    Foreign { id: String },
}

fn found(store: &Store, wanted: &str) -> anyhow::Result<Found> {
    match store.find(wanted) {
        Ok(image) => Ok(Found::Boot(image)),
        Err(StoreError::Open(error)) if error.is_of_another_release() => {
            Ok(Found::Foreign(store.resolve(wanted)?))
        }
        Err(error) => match stacks::find(store, wanted)? {
            Some(stack) => Ok(Found::Container(stack)),
            None => Err(error.into()),
        },
    }
}

impl Found {
    fn listed(&self, store: &Store) -> anyhow::Result<Removed> {
        Ok(match self {
            Self::Boot(image) => Removed::Boot(Listed::from(image)),
            Self::Container(stack) => Removed::Container(ListedStack::of(store, stack)?),
            Self::Foreign(id) => Removed::Foreign { id: id.to_string() },
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Boot(image) => {
                let listed = Listed::from(image);
                format!("{} ({})", names(&listed), &listed.id[..12])
            }
            Self::Container(stack) => stack.reference.clone(),
            Self::Foreign(id) => format!("{}, of another release", id.short()),
        }
    }

    fn remove(&self, store: &Store) -> anyhow::Result<String> {
        match self {
            Self::Boot(image) => {
                store
                    .remove(&image.info.id)
                    .with_context(|| format!("removing {}", name_of(image)))?;
                Ok(format!("removed {}\n", self.name()))
            }
            Self::Container(stack) => stacks::remove(store, stack),
            Self::Foreign(id) => {
                let removing = || format!("removing {}", id.short());
                store.remove(id).with_context(removing)?;
                Ok(format!("removed {}\n", self.name()))
            }
        }
    }
}

pub(super) fn pin(args: &PinArgs, store: &StoreSettings, keep: Keep) -> anyhow::Result<Outcome> {
    let store = store.open_present()?;
    for wanted in &args.images {
        let id = store.resolve(wanted)?;
        match keep {
            Keep::Pinned => store.pin(&id),
            Keep::Unpinned => store.unpin(&id),
        }
        .with_context(|| format!("changing the pin of {wanted}"))?;
    }
    Ok(Outcome::Done)
}

/// What was added to the store.
#[derive(Debug, Serialize)]
struct Added {
    name: String,
    id: String,
    /// Bytes of blocks that the store had not.
    new_bytes: u64,
    /// Bytes of blocks that it had already.
    shared_bytes: u64,
}

impl From<AddReport> for Added {
    fn from(report: AddReport) -> Self {
        Self {
            name: report.name,
            id: report.id.to_string(),
            new_bytes: report.new_bytes,
            shared_bytes: report.shared_bytes,
        }
    }
}

fn added_text(added: &Added) -> String {
    format!(
        "boot image {} ({}): {} new, {} shared with others",
        added.name,
        &added.id[..12],
        Size(added.new_bytes),
        Size(added.shared_bytes)
    )
}

pub(super) fn merge(
    args: &MergeArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let store = store.open_present()?;
    let open = |wanted: &String| {
        let id = store.resolve(wanted)?;
        store.open_image(&id).map(Arc::new)
    };
    let images = args
        .images
        .iter()
        .map(open)
        .collect::<Result<Vec<_>, _>>()?;
    let merged = bootimg::merge(&images).context("merging")?;
    let left_out: u64 = merged.reports().map(|report| report.dropped.len()).sum();
    if left_out > 0 {
        log::warn!("{left_out} files changed between the recordings: the newest counts");
    }
    let bar = progress::bytes("merging", merged.plan().block_count().saturating_mul(4096));
    let request = WriteRequest {
        tree: merged.tree(),
        info: merged.info(),
        plan: merged.plan(),
        blocks: &merged,
        variant: Variant::Mapped,
    };
    let added = add_written(
        &store,
        Some(&args.name),
        &request,
        &mut watch(&bar, interrupt),
    );
    bar.finish_and_clear();
    interrupt.check()?;
    let (added, _) = added.context("keeping the merged boot image")?;
    print(args.format.format(), &Added::from(added), added_text)?;
    Ok(Outcome::Done)
}

pub(super) fn export(
    args: &ExportArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    ensure!(
        !args.file.is_dir(),
        "{} is a directory: name the file to write",
        args.file.display()
    );
    let store = store.open_present()?;
    let image = store.find(&args.image)?;
    let variant = match args.variant {
        VariantArg::Packed => Variant::Packed,
        VariantArg::Mapped => Variant::Mapped,
    };
    let bar = progress::bytes("exporting", image.info.data_blocks * 4096);
    let done = store.export(
        &image.info.id,
        &args.file,
        variant,
        &mut watch(&bar, interrupt),
    );
    bar.finish_and_clear();
    interrupt.check()?;
    done.with_context(|| format!("exporting {} to {}", args.image, args.file.display()))?;
    Ok(Outcome::Done)
}

pub(super) fn import(
    args: &ImportArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let bar = progress::bytes("importing", 0);
    let store = store.open()?;
    let added = store.import(
        &args.file,
        args.name.as_deref(),
        &mut watch(&bar, interrupt),
    );
    bar.finish_and_clear();
    interrupt.check()?;
    let added = added.with_context(|| format!("importing {}", args.file.display()))?;
    print(args.format.format(), &Added::from(added), added_text)?;
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_layers_are_short() {
        let layer = Digest([0xab; 32]);
        let names = |of: &[String]| spoken(of).join(", ");
        let (plain, placed) = (layer.to_string(), format!("{layer}@0123456789ab"));
        assert_eq!(names(&["web".to_owned()]), "web");
        assert_eq!(names(&[plain, placed.clone()]), "layer abababababab");
        assert_eq!(names(&[placed]), "layer abababababab @0123456789ab");
        assert_eq!(names(&["sha256:no@1".to_owned()]), "sha256:no@1");
    }
}
