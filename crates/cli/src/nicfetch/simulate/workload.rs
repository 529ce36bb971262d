//! What was asked for: traces of boots and texts of accesses, as accesses to chunks.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use blocks::{Access, ContentId, Event};
use chunks::simulate::{ChunkAccess, Random, Zipf, read_accesses};
use chunks::{CHUNK_MAX, Class};
use tracer::{Trace, TraceError, TracedFile};

/// The largest file that is read, in bytes.
const TRACE_MAX: u64 = 1 << 30;
/// Accesses that are simulated, at most: some 1 GiB of memory.
const ACCESSES_MAX: usize = 40_000_000;
/// How much less popular the second image is than the first: that of registries.
const POPULARITY: f64 = 0.9;

const CHUNK: u64 = CHUNK_MAX as u64;

/// What some starts of the same thing asked for, one after the other.
pub(super) type Runs = Vec<Vec<ChunkAccess>>;

/// Reads a file, which is one run, or a directory of traces, as `bootimg record --keep-traces` makes
/// it: a trace for each run, or for each layer of an image in each run.
pub(super) fn read(path: &Path) -> anyhow::Result<Runs> {
    if !path.is_dir() {
        return Ok(vec![read_file(path)?]);
    }
    let doing = || format!("reading {}", path.display());
    let mut runs: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for entry in std::fs::read_dir(path).with_context(doing)? {
        let entry = entry.with_context(doing)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".trace") {
            let run = stem.split_once("-layer").map_or(stem, |(run, _)| run);
            runs.entry(run.to_owned()).or_default().push(entry.path());
        }
    }
    if runs.is_empty() {
        bail!(
            "{} has no traces: fill it with `bootimg record --keep-traces`",
            path.display()
        );
    }
    let read_run = |mut layers: Vec<PathBuf>| {
        layers.sort_unstable();
        let read: Vec<_> = layers
            .iter()
            .map(|path| read_file(path))
            .collect::<Result<_, _>>()?;
        Ok(read.concat())
    };
    runs.into_values().map(read_run).collect()
}

/// Reads a file of accesses, or a trace of a boot.
fn read_file(path: &Path) -> anyhow::Result<Vec<ChunkAccess>> {
    let doing = || format!("reading {}", path.display());
    let len = std::fs::metadata(path).with_context(doing)?.len();
    if len > TRACE_MAX {
        bail!(
            "{} is {len} bytes long: at most {TRACE_MAX} are read",
            path.display()
        );
    }
    let bytes = std::fs::read(path).with_context(doing)?;
    match Trace::read(&bytes) {
        Ok(trace) => Ok(of_boot(&trace)),
        Err(TraceError::NotATrace) => read_accesses(&bytes[..], ACCESSES_MAX).with_context(doing),
        Err(error) => Err(error).with_context(doing),
    }
}

/// Starts machines, each with one of the workloads, as one of its runs was.
pub(super) fn starts(
    workloads: &[Runs],
    starts: u64,
    seed: u64,
) -> anyhow::Result<Vec<ChunkAccess>> {
    let (zipf, mut random) = (Zipf::new(workloads.len(), POPULARITY), Random::new(seed));
    let mut accesses = Vec::new();
    for _ in 0..starts {
        let runs = &workloads[zipf.pick(&mut random)];
        let run = usize::try_from(random.below(runs.len() as u64))?;
        accesses.extend_from_slice(&runs[run]);
        if accesses.len() > ACCESSES_MAX {
            bail!("more than {ACCESSES_MAX} accesses: have fewer --starts");
        }
    }
    Ok(accesses)
}

/// Returns the chunks that a boot reads, each once: then the machine has it.
fn of_boot(trace: &Trace) -> Vec<ChunkAccess> {
    let mut had = HashSet::new();
    let mut accesses = Vec::new();
    for event in &trace.events {
        let Event::Read(Access {
            file, offset, len, ..
        }) = event.what
        else {
            continue;
        };
        let Some(file) = trace.file(file) else {
            continue;
        };
        let size = file.version.size;
        let end = offset.saturating_add(len).min(size);
        for index in offset / CHUNK..end.div_ceil(CHUNK) {
            let access = chunk(file, index, size);
            if had.insert(access.chunk) {
                accesses.push(access);
            }
        }
    }
    accesses
}

/// Returns chunk `index` of a file. A trace has no content: what has the same path, size and time in
/// two images came from the same package.
fn chunk(file: &TracedFile, index: u64, size: u64) -> ChunkAccess {
    let mut name = file.path.clone();
    let mtime = file.version.mtime;
    name.push(0);
    for field in [
        size,
        mtime.secs.cast_unsigned(),
        u64::from(mtime.nanos),
        index,
    ] {
        name.extend_from_slice(&field.to_le_bytes());
    }
    ChunkAccess {
        chunk: ChunkAccess::number(&ContentId::of(&name)),
        bytes: u32::try_from(CHUNK.min(size - index * CHUNK)).unwrap_or(u32::MAX),
        class: Class::Demand,
    }
}
