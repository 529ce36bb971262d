//! `bootimg inspect`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blocks::FileId;
use bootimg::Image;
use recording::disk_names::{self, DiskUse};
use serde::Serialize;
use tracer::plot::Plot;

use super::stacks;
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, count, duration, percent, print, table};
use bootstore::store::StoreSettings;
use host::size::Size;

/// How many files the text shows: the largest. All are in the JSON.
const FILES_SHOWN: usize = 20;

/// Bytes of all paths together; beyond them a file is told by its last name. The paths of 500 000
/// files of a real source fit.
pub(super) const PATHS_BUDGET: usize = 64 << 20;

/// Show what is in a boot image, or in those of a container image
///
/// Shows its source, how it was recorded, and how much it has of which file. For a container
/// image, shows its layers and their boot images.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct InspectArgs {
    /// Name or id in the store, a file (with a `/`), or the reference of a container image
    #[arg(add = image_names())]
    image: String,
    /// Draw the boot: time against file and offset
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What `inspect --json` prints.
#[derive(Debug, Serialize)]
struct Inspected {
    id: String,
    source: String,
    source_id: String,
    command: Vec<String>,
    tool: String,
    /// Seconds since 1970.
    recorded_at: i64,
    runs: u16,
    bin_ms: u32,
    ready_ms: Vec<u64>,
    inodes: u64,
    extents: u64,
    touches: u64,
    blocks: u64,
    zero_blocks: u64,
    data_blocks: u64,
    source_bytes: u64,
    file_bytes: u64,
    files: Vec<InspectedFile>,
    /// What of a raw disk image that is, if it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskUse>,
}

#[derive(Debug, Serialize)]
struct InspectedFile {
    path: String,
    size: u64,
    blocks: u64,
    /// Milliseconds from the start to the first use.
    first_ms: u64,
    /// Of its blocks, those that all runs needed.
    core_blocks: u64,
}

/// Opens a boot image: a file if there is a `/` in what it is called, or one of the store.
pub(super) fn open(store: &StoreSettings, wanted: &str) -> anyhow::Result<Arc<Image>> {
    if wanted.contains('/') {
        return Ok(Arc::new(Image::open(Path::new(wanted))?));
    }
    let looking = || format!("looking for {wanted}");
    let store = store.open_present().with_context(looking)?;
    let id = store.resolve(wanted)?;
    let image = store
        .peek_image(&id)
        .with_context(|| format!("opening {wanted}"))?;
    Ok(Arc::new(image))
}

pub(super) fn run(args: &InspectArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let image = match open(store, &args.image) {
        Ok(image) => image,
        Err(error) => {
            // References have slashes, too: what is no file may be one.
            let known = store.open_existing()?;
            let found = known.and_then(|store| {
                let stack = stacks::find(&store, &args.image).ok().flatten()?;
                Some((store, stack))
            });
            let Some((store, stack)) = found else {
                return Err(error);
            };
            ensure!(
                args.plot.is_none(),
                "--plot draws one boot image: name a layer's"
            );
            return stacks::inspect(args.format.format(), &store, &stack);
        }
    };
    if let Some(path) = &args.plot {
        let mut paths = image.tree().paths_within(PATHS_BUDGET);
        let title = format!("{}: {}", args.image, image.info().source.label);
        let svg = Plot::of_plan(title, image.plan(), |file| text_of(&paths.next(file))).svg();
        std::fs::write(path, svg).with_context(|| format!("drawing to {}", path.display()))?;
    }
    print(args.format.format(), &inspect(&image), text)?;
    Ok(Outcome::Done)
}

fn text_of(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn inspect(image: &Image) -> Inspected {
    let info = image.info();
    Inspected {
        id: info.id.to_string(),
        source: info.source.label.clone(),
        source_id: info.source.id.0.to_string(),
        command: info.source.command.clone(),
        tool: info.source.tool.clone(),
        recorded_at: info.source.recorded_at,
        runs: info.runs,
        bin_ms: info.bin_ms,
        ready_ms: info.source.ready_ms.clone(),
        inodes: info.inodes,
        extents: info.extents,
        touches: info.touches,
        blocks: info.blocks,
        zero_blocks: info.zero_blocks,
        data_blocks: info.data_blocks,
        source_bytes: info.source.source_bytes,
        file_bytes: info.file_bytes,
        files: files(image),
        disk: disk_names::of_image(image),
    }
}

/// Returns the files of an image, those with the most blocks first.
fn files(image: &Image) -> Vec<InspectedFile> {
    let plan = image.plan();
    let mut paths = image.tree().paths_within(PATHS_BUDGET);
    let mut files: BTreeMap<FileId, InspectedFile> = BTreeMap::new();
    for extent in &plan.extents {
        let first_ms = u64::from(extent.bin) * u64::from(plan.bin_ms);
        let file = files.entry(extent.file).or_insert_with(|| InspectedFile {
            path: text_of(&paths.next(extent.file)),
            size: image
                .tree()
                .inode(extent.file)
                .map_or(0, |inode| inode.attr.size),
            blocks: 0,
            first_ms,
            core_blocks: 0,
        });
        file.blocks += extent.range.len();
        file.first_ms = file.first_ms.min(first_ms);
        if extent.seen == plan.runs {
            file.core_blocks += extent.range.len();
        }
    }
    let mut files: Vec<_> = files.into_values().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.blocks));
    files
}

/// Returns who recorded an image, in how many runs, and how long each took: imported traces know
/// nothing of that.
fn recorded_by(shown: &Inspected) -> String {
    let ready = shown.ready_ms.iter().copied().map(Duration::from_millis);
    let ready: Vec<_> = ready.map(duration).collect();
    let runs = count(shown.runs.into(), "run");
    let ready = match ready.as_slice() {
        [] => String::new(),
        times => format!(", ready after {}", times.join(", ")),
    };
    format!("{}, {runs}{ready}", shown.tool)
}

fn text(shown: &Inspected) -> String {
    let bytes = shown.blocks * 4096;
    let content = format!(
        "{} in {}, {} of the source",
        Size(bytes),
        count(shown.files.len() as u64, "file"),
        percent(bytes, shown.source_bytes)
    );
    let stored = format!(
        "{}, {}, {}",
        count(shown.data_blocks, "different block"),
        count(shown.zero_blocks, "zero block"),
        count(shown.extents, "extent")
    );
    let metadata = format!(
        "{}, {} to repeat",
        count(shown.inodes, "inode"),
        count(shown.touches, "use")
    );
    let mut rows = vec![
        ("id", shown.id.clone()),
        ("source", shown.source.clone()),
        ("command", shown.command.join(" ")),
        ("recorded by", recorded_by(shown)),
        ("content", content),
        ("stored", stored),
        ("metadata", metadata),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let mut files = vec![
        ["BLOCKS", "OF", "FIRST", "FILE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    files.extend(shown.files.iter().take(FILES_SHOWN).map(|file| {
        let of = file.size.div_ceil(4096);
        let path = if file.path.is_empty() {
            "/"
        } else {
            &file.path
        };
        vec![
            file.blocks.to_string(),
            of.to_string(),
            format!("{} ms", file.first_ms),
            path.to_owned(),
        ]
    }));
    let more = shown.files.len().saturating_sub(FILES_SHOWN);
    let more = if more > 0 {
        format!("and {more} files more (--json shows all)\n")
    } else {
        String::new()
    };
    let disk = shown.disk.as_ref().map(disk_text).unwrap_or_default();
    format!("{}\n{}{more}{disk}", table(&rows), table(&files))
}

/// Tells what of a disk image is read, by partitions and files.
pub(super) fn disk_text(disk: &DiskUse) -> String {
    let row = |blocks: u64, of: String, name: &str| vec![blocks.to_string(), of, name.to_owned()];
    let mut rows = vec![["BLOCKS", "OF", "IN THE DISK"].map(str::to_owned).to_vec()];
    let partitions = disk.partitions.iter();
    rows.extend(partitions.map(|one| row(one.blocks, one.of.to_string(), &one.name)));
    let files = disk.files.iter().take(FILES_SHOWN);
    rows.extend(files.map(|file| row(file.blocks, String::new(), &file.path)));
    let warnings = disk.warnings.iter();
    format!(
        "\n{}{}",
        table(&rows),
        warnings
            .map(|warning| format!("{warning}\n"))
            .collect::<String>()
    )
}
