//! `nicfetch import`: makes a source of a directory, for mounts that have it nowhere else.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Context as _;
use nicfetch::index::build;
use serde::Serialize;

use super::place::PlaceArgs;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::{FormatArg, byte_bar, print};
use crate::size::Size;
use crate::source::Source;

/// Take a directory tree as a source of the block service
///
/// Every file is read once and cut into chunks of 128 KiB; equal ones are kept once. A source of
/// this name that is there already is replaced for those who open it from now on. The service must
/// not run meanwhile.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The directory, or a disk image
    source: PathBuf,
    /// What it is called from now on
    #[arg(long)]
    name: String,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// A source that was taken, as `--json` shows it.
#[derive(Debug, Serialize)]
struct Imported {
    name: String,
    /// The id of its index: what `nic:NAME@ID` pins.
    index: String,
    /// Files, directories and links.
    files: usize,
    /// Pieces of files.
    chunks: usize,
    /// Bytes of all files.
    bytes: u64,
    /// Bytes of chunks that were not there before.
    new_bytes: u64,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let (store, catalog) = args.place.open()?;
    let source = Source::open(&args.source)?;
    let bar = byte_bar("reading the source", source.bytes());
    let mut watch = |bytes| {
        bar.set_position(bytes);
        if interrupt.asked() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let name = args.name.as_bytes();
    let built = build(name, &source.tree, &*source.reader(), &*store, &mut watch);
    bar.finish_and_clear();
    interrupt.check()?;
    let built = built.with_context(|| format!("importing {}", args.source.display()))?;
    catalog.add(name, &built.index)?;
    let imported = Imported {
        name: args.name.clone(),
        index: built.index.id().to_string(),
        files: built.index.tree().len(),
        chunks: built.index.chunks().len(),
        bytes: built.bytes,
        new_bytes: built.new_bytes,
    };
    print(args.format.format(), &imported, |imported| {
        format!(
            "{}: {} files, {} in {} chunks, {} of it new\nindex {}\n",
            imported.name,
            imported.files,
            Size(imported.bytes),
            imported.chunks,
            Size(imported.new_bytes),
            imported.index
        )
    })?;
    Ok(Outcome::Done)
}
