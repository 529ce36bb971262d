//! `nicfetch chunks`: a chunk store that nobody serves from at the moment.

use std::ops::ControlFlow;
use std::path::{PathBuf, absolute};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use chunks::{ChunkStore as _, DiskStore, Sources, StoreConfig};
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{FormatArg, count, percent, print};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;

/// The flag that says which store.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ChunkStoreArg {
    /// Directory of the chunk store
    #[arg(
        long = "store",
        value_name = "DIR",
        env = "NICFETCH_STORE",
        default_value = "/var/lib/nicfetch/chunks"
    )]
    dir: PathBuf,
}

/// A chunk store that is open, and the sources that pin what is in it.
struct OpenStore {
    store: Arc<DiskStore>,
    _sources: Option<Sources>,
}

impl ChunkStoreArg {
    /// Opens the store, which must be there, and keeps its files within `budget_bytes`. What a
    /// source that is pinned needs stays; if that is too much, nothing goes and this fails.
    fn open(&self, budget_bytes: u64) -> anyhow::Result<OpenStore> {
        let dir = &self.dir;
        if !dir.join("segments").is_dir() {
            bail!("{} is not a chunk store: it has no segments", dir.display());
        }
        let config = StoreConfig {
            budget_bytes,
            ..StoreConfig::default()
        };
        let opening = || format!("opening {}", dir.display());
        let Some(nicfetch) = self.nicfetch() else {
            let store = DiskStore::open(dir, config).with_context(opening)?;
            return Ok(OpenStore {
                store: Arc::new(store),
                _sources: None,
            });
        };
        let sources = Sources::open(&nicfetch, config).with_context(opening)?;
        Ok(OpenStore {
            store: Arc::clone(sources.store()),
            _sources: Some(sources),
        })
    }

    /// Returns the directory of the nicfetch whose chunks these are, if it has sources: they say
    /// what is pinned.
    fn nicfetch(&self) -> Option<PathBuf> {
        let dir = absolute(&self.dir).ok()?;
        let above = dir.parent()?;
        let is_its = dir.ends_with("chunks") && above.join("sources").is_dir();
        is_its.then(|| above.to_owned())
    }

    /// Opens the store as it is: nothing goes.
    fn open_whole(&self) -> anyhow::Result<OpenStore> {
        self.open(u64::MAX)
    }
}

/// Inspect and shrink a chunk store that no server uses
#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum ChunksCommand {
    Status(StatusArgs),
    Verify(VerifyArgs),
    Gc(GcArgs),
}

pub(super) fn run(command: &ChunksCommand) -> anyhow::Result<Outcome> {
    match command {
        ChunksCommand::Status(command) => status(command),
        ChunksCommand::Verify(command) => verify(command, &Interrupt::install()?),
        ChunksCommand::Gc(command) => gc(command),
    }
}

/// Show what is in a chunk store
///
/// The store must not be in use by a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    store: ChunkStoreArg,
    #[command(flatten)]
    format: FormatArg,
}

/// What `chunks status --json` prints.
#[derive(Debug, Serialize)]
struct Status {
    chunks: u64,
    raw_bytes: u64,
    stored_bytes: u64,
    disk_bytes: u64,
    /// Records that opening found damaged, and torn ends.
    damaged: u64,
}

fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    let stats = args.store.open_whole()?.store.stats();
    let status = Status {
        chunks: stats.chunks,
        raw_bytes: stats.raw_bytes,
        stored_bytes: stats.stored_bytes,
        disk_bytes: stats.disk_bytes,
        damaged: stats.damaged,
    };
    print(args.format.format(), &status, |status| {
        format!(
            "{} of {}, stored in {} ({}), files of {}, {} damaged",
            count(status.chunks, "chunk"),
            Size(status.raw_bytes),
            Size(status.stored_bytes),
            percent(status.stored_bytes, status.raw_bytes),
            Size(status.disk_bytes),
            status.damaged,
        )
    })?;
    Ok(Outcome::Done)
}

/// Check every chunk of a chunk store
///
/// Reads and decompresses all of it, and compares each chunk with its id. Ends with code 4 if
/// anything is damaged, or cannot be read. What is damaged is not given out any more, and goes when its segment goes; what
/// cannot be read is kept. The store must not be in use by a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    store: ChunkStoreArg,
    #[command(flatten)]
    format: FormatArg,
}

/// What `chunks verify --json` prints.
#[derive(Debug, Serialize)]
struct Verified {
    chunks: u64,
    raw_bytes: u64,
    damaged: u64,
    /// The first of them that have a name still.
    damaged_chunks: Vec<String>,
    /// Files of segments that the disk did not give.
    unread_segments: Vec<String>,
}

fn verify(args: &VerifyArgs, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
    let open = args.store.open_whole()?;
    let store = &open.store;
    let opened = store.stats();
    let bar = progress::bytes("verifying", opened.raw_bytes);
    let report = store.verify(&mut |bytes| {
        bar.inc(bytes);
        match interrupt.asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.finish_and_clear();
    interrupt.check()?;
    let verified = Verified {
        chunks: report.chunks,
        raw_bytes: report.raw_bytes,
        damaged: opened.damaged + report.damaged,
        damaged_chunks: report.named.iter().map(ToString::to_string).collect(),
        unread_segments: report
            .unread_segments
            .iter()
            .map(|number| format!("{number:016x}.seg"))
            .collect(),
    };
    print(args.format.format(), &verified, |verified| {
        let read = format!(
            "{} of {} read, {} damaged\n",
            count(verified.chunks, "chunk"),
            Size(verified.raw_bytes),
            verified.damaged
        );
        let named = verified.damaged_chunks.iter();
        let unread = verified.unread_segments.iter().map(|file| {
            format!("{file} cannot be read, and is kept: look at the disk, then run this again\n")
        });
        let named = named.map(|id| format!("{id}\n"));
        read + &named.chain(unread).collect::<String>()
    })?;
    let is_sound = verified.damaged == 0 && verified.unread_segments.is_empty();
    Ok(match is_sound {
        true => Outcome::Done,
        false => Outcome::Different,
    })
}

/// Remove unused chunks of a chunk store, and make it smaller
///
/// Rewrites segments of which half or more is unused. With --max, the oldest chunks are evicted
/// until the files fit, but none of a source that is pinned. The store must not be in use by a server.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GcArgs {
    /// Most bytes that the files of the store may take afterwards, at least 256M
    #[arg(long, value_name = "SIZE")]
    max: Option<Size>,
    #[command(flatten)]
    store: ChunkStoreArg,
    #[command(flatten)]
    format: FormatArg,
}

/// What `chunks gc --json` prints.
#[derive(Debug, Serialize)]
struct Collected {
    segments_repacked: u64,
    chunks_evicted: u64,
    bytes_before: u64,
    bytes_after: u64,
}

fn gc(args: &GcArgs) -> anyhow::Result<Outcome> {
    let open = match args.max {
        Some(max) => args.store.open(max.0)?,
        None => args.store.open_whole()?,
    };
    let store = &open.store;
    let report = store.gc().context("collecting garbage")?;
    let collected = Collected {
        segments_repacked: report.compacted,
        chunks_evicted: store.stats().evicted,
        bytes_before: report.bytes_before,
        bytes_after: report.bytes_after,
    };
    print(args.format.format(), &collected, |collected| {
        format!(
            "{} to {}: {} evicted, {} repacked",
            Size(collected.bytes_before),
            Size(collected.bytes_after),
            count(collected.chunks_evicted, "chunk"),
            count(collected.segments_repacked, "segment"),
        )
    })?;
    Ok(Outcome::Done)
}
