//! `bootimg from-trace`: boot images from what was recorded elsewhere.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, ensure};
use blockimages::manage;
use serde_json::json;
use tracer::import::{BlkparseOptions, Disk};
use tracer::{MergeOptions, Trace, TracedFile};

use super::keep::{KeepArgs, kept_text};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use crate::yolofs::block::plan;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use mounting::source::{Source, trace_info};
use recording::keep::{Recording, keep};

/// The largest trace or log that is read, in bytes: a million events take some 60 MB of text.
const TRACE_MAX: u64 = 1 << 30;

/// Make a boot image from traces that were recorded elsewhere
///
/// Traces come from `yolofs mount --record`, from `bootimg record --keep-traces`, from QEMU's log
/// of block reads, from blkparse's text, or from overlaybd. Several traces are merged.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
QEMU writes such a log with: -trace enable=blk_co_preadv -D FILE
blktrace writes such a text with: blktrace -d DEVICE -o - | blkparse -i - > FILE")]
pub(super) struct FromTraceArgs {
    /// The source that was traced: a directory tree, a disk image, or a block image
    source: PathBuf,
    /// A trace of yolofs
    #[arg(long, value_name = "FILE", required_unless_present_any = ["qemu", "blkparse", "overlaybd"])]
    trace: Vec<PathBuf>,
    /// QEMU's log of block reads, of a disk image
    #[arg(long, value_name = "FILE")]
    qemu: Vec<PathBuf>,
    /// Text of blkparse, of a disk image
    #[arg(long, value_name = "FILE")]
    blkparse: Vec<PathBuf>,
    /// A trace of overlaybd, of a block image: it becomes the plan of the image's layers
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "qemu", "blkparse"])]
    overlaybd: Vec<PathBuf>,
    /// Where the disk image starts on the traced device, in sectors of 512 bytes
    #[arg(
        long,
        value_name = "SECTORS",
        default_value_t = 0,
        requires = "blkparse"
    )]
    first_sector: u64,
    #[command(flatten)]
    keep: KeepArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(
    args: &FromTraceArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    if !args.overlaybd.is_empty() {
        return of_block_image(args, store);
    }
    let source = Source::open(&args.source)?;
    for warning in source.root.warnings() {
        log::warn!("{warning}");
    }
    let mut traces = Vec::new();
    for path in &args.trace {
        let trace = Trace::read(&read(path)?);
        traces.push(trace.with_context(|| format!("reading the trace {}", path.display()))?);
    }
    for path in &args.qemu {
        traces.push(import(&source, path, &Kind::Qemu)?);
    }
    for path in &args.blkparse {
        traces.push(import(
            &source,
            path,
            &Kind::Blkparse {
                first_sector: args.first_sector,
            },
        )?);
    }
    let merged = tracer::merge(&traces, &source.tree, &MergeOptions::default())
        .context("merging the traces")?;
    if merged.changed_files > 0 {
        log::warn!(
            "{} files changed since they were traced: left out",
            merged.changed_files
        );
    }
    let recording = Recording {
        merged,
        command: Vec::new(),
        ready_ms: Vec::new(),
        left_out: BTreeSet::new(),
    };
    let kept = keep(&args.keep.place(), store, &source, &recording, interrupt)?;
    print(args.format.format(), &kept, kept_text)?;
    Ok(Outcome::Done)
}

/// Makes a plan of overlaybd's traces.
fn of_block_image(args: &FromTraceArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let mut trace = blockimages::Trace::default();
    for path in &args.overlaybd {
        trace.reads.extend(manage::read_trace(path)?.reads);
    }
    let (file, plan) = plan::keep(store, &args.source, &trace)?;
    let (layers, bytes) = (plan.layers().len(), plan.bytes());
    let kept = json!({"plan": file, "layers": layers, "bytes": bytes});
    print(args.format.format(), &kept, |_| {
        format!("{}: {bytes} bytes of {layers} layers\n", file.display())
    })?;
    Ok(Outcome::Done)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let doing = || format!("reading {}", path.display());
    let file = File::open(path).with_context(doing)?;
    // What is no file may have no length, and no end.
    let mut bytes = Vec::new();
    file.take(TRACE_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(doing)?;
    ensure!(
        bytes.len() as u64 <= TRACE_MAX,
        "{} is longer than {TRACE_MAX} bytes, the limit for traces: split it, or name another file",
        path.display()
    );
    Ok(bytes)
}

/// What wrote a log.
enum Kind {
    Qemu,
    Blkparse { first_sector: u64 },
}

fn import(source: &Source, path: &Path, kind: &Kind) -> anyhow::Result<Trace> {
    let text = read(path)?;
    let disk = disk(source)?;
    let imported = match kind {
        Kind::Qemu => tracer::import::qemu(&text, &disk),
        Kind::Blkparse { first_sector } => {
            let options = BlkparseOptions {
                first_sector: *first_sector,
            };
            tracer::import::blkparse(&text, &disk, &options)
        }
    };
    let imported = imported.with_context(|| format!("parsing {}", path.display()))?;
    if let Some(first) = &imported.first_skipped {
        log::warn!(
            "{}: skipped {} malformed lines; the first is line {}: {}",
            path.display(),
            imported.skipped_lines,
            first.number,
            first.text
        );
    }
    if imported.outside > 0 {
        log::warn!(
            "{}: {} reads lie outside the disk image",
            path.display(),
            imported.outside
        );
    }
    Ok(imported.trace)
}

/// Returns the disk whose reads a log has.
fn disk(source: &Source) -> anyhow::Result<Disk> {
    let (name, file) = source
        .disk()
        .context("--qemu and --blkparse need a disk image as the source")?;
    let key = source.tree.key(file).context("the disk image is gone")?;
    let info = trace_info(&source.root, SystemTime::now());
    let path = name.as_bytes().to_vec();
    Ok(Disk {
        info,
        file: TracedFile {
            file,
            version: key.version,
            path,
        },
    })
}
