//! `yolofs tier probe`.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tiering::Rate;
use tiering::pace::{Cancelled, Pace};
use tiering::tier::{Capability, Kind, Map, MeasureError, Measured, Sync, detect, measure};

use crate::exit::Outcome;
use crate::output::{FormatArg, print, table};
use host::interrupt::{Interrupt, Interrupted};
use host::progress;
use host::progress::Bar;
use host::size::Size;

/// Show what kind of tier directories would be, and how fast
///
/// Finds out what medium it is on (NVM, memory, a disk), what its mappings reach, and what
/// makes writes durable; then a file without a name is written, synced and read there. Nothing is
/// left of it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: yolofs tier probe /mnt/pmem0 /dev/shm /var/lib --bytes 256M")]
pub(super) struct ProbeArgs {
    /// Writable directories
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Bytes to write and read in each; 0 measures nothing
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    bytes: Size,
    #[command(flatten)]
    format: FormatArg,
}

/// One directory, for programs.
#[derive(Debug, Serialize)]
struct Probed {
    dir: PathBuf,
    kind: &'static str,
    map: &'static str,
    sync: &'static str,
    capacity_bytes: u64,
    free_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Speeds>,
}

/// How fast it was.
#[derive(Debug, Serialize)]
struct Speeds {
    bytes: u64,
    write_bytes_per_second: Option<u64>,
    read_bytes_per_second: Option<u64>,
    sync_microseconds: u64,
}

/// Goes as fast as it can, shows how far it is, and stops when the user says so.
struct Shown<'a> {
    interrupt: &'a Interrupt,
    bar: Bar,
}

impl Pace for Shown<'_> {
    fn turn(&self, bytes: u64) -> Result<(), Cancelled> {
        self.bar.inc(bytes);
        match self.interrupt.asked() {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }
}

pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let mut probed = Vec::new();
    for dir in &args.dirs {
        let found = detect(dir).context("a tier must be a writable directory")?;
        let measured = match args.bytes.0 {
            0 => None,
            bytes => Some(measured(&found, bytes, &interrupt)?),
        };
        probed.push(Probed::of(found, measured));
    }
    print(args.format.format(), &probed, |probed| text(probed))?;
    Ok(Outcome::Done)
}

fn measured(found: &Capability, bytes: u64, interrupt: &Interrupt) -> anyhow::Result<Measured> {
    ensure!(
        bytes <= found.free_bytes / 2,
        "{} has {} free, and a probe takes at most half of that: use a smaller --bytes",
        found.dir.display(),
        Size(found.free_bytes)
    );
    // Written once, read once.
    let bar = progress::bytes("probing", bytes.saturating_mul(2));
    let pace = Shown { interrupt, bar };
    let result = measure(&found.dir, bytes, &pace);
    pace.bar.finish_and_clear();
    match result {
        Err(MeasureError::Cancelled(_)) => Err(Interrupted.into()),
        other => Ok(other?),
    }
}

impl Probed {
    fn of(found: Capability, measured: Option<Measured>) -> Self {
        Self {
            kind: kind_word(found.kind),
            map: map_word(found.map),
            sync: sync_word(found.sync),
            dir: found.dir,
            capacity_bytes: found.capacity_bytes,
            free_bytes: found.free_bytes,
            measured: measured.map(|measured| Speeds {
                bytes: measured.bytes,
                write_bytes_per_second: measured.write.map(Rate::bytes_per_second),
                read_bytes_per_second: measured.read.map(Rate::bytes_per_second),
                sync_microseconds: u64::try_from(measured.sync.as_micros()).unwrap_or(u64::MAX),
            }),
        }
    }
}

/// What lies under a tier, as users read it.
pub(crate) const fn kind_word(kind: Kind) -> &'static str {
    match kind {
        Kind::Nvm => "nvm",
        Kind::Memory => "memory",
        Kind::Ssd => "ssd",
        Kind::Hdd => "hdd",
        Kind::Other => "other",
    }
}

/// What a mapping reaches, as users read it.
pub(crate) const fn map_word(map: Map) -> &'static str {
    match map {
        Map::Direct => "direct",
        Map::HugePages => "huge-pages",
        Map::PageCache => "page-cache",
    }
}

/// What makes writes durable, as users read it.
pub(crate) const fn sync_word(sync: Sync) -> &'static str {
    match sync {
        Sync::MapSync => "map-sync",
        Sync::Msync => "msync",
        Sync::None => "none",
    }
}

fn text(probed: &[Probed]) -> String {
    let heading = [
        "DIRECTORY",
        "KIND",
        "MAPPING",
        "DURABLE BY",
        "SIZE",
        "FREE",
        "WRITE",
        "READ",
        "SYNC",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for tier in probed {
        let rate =
            |rate: Option<u64>| rate.map_or("-".to_owned(), |rate| format!("{}/s", Size(rate)));
        let speeds = tier.measured.as_ref();
        rows.push(vec![
            tier.dir.display().to_string(),
            tier.kind.to_owned(),
            tier.map.to_owned(),
            tier.sync.to_owned(),
            Size(tier.capacity_bytes).to_string(),
            Size(tier.free_bytes).to_string(),
            rate(speeds.and_then(|speeds| speeds.write_bytes_per_second)),
            rate(speeds.and_then(|speeds| speeds.read_bytes_per_second)),
            speeds.map_or("-".to_owned(), |speeds| {
                format!("{} us", speeds.sync_microseconds)
            }),
        ]);
    }
    table(&rows)
}
