//! What was asked for: traces of boots and texts of accesses, as accesses to chunks.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context as _, bail};
use blocks::{Access, ContentId, Event};
use nicfetch::simulate::{ChunkAccess, Random, Zipf, read_accesses};
use nicfetch::{CHUNK_MAX, Class};
use tracer::{Trace, TraceError, TracedFile};

/// The largest file that is read, in bytes.
const TRACE_MAX: u64 = 1 << 30;
/// Accesses that are simulated, at most: some 1 GiB of memory.
const ACCESSES_MAX: usize = 40_000_000;
/// How much less popular the second image is than the first: that of registries.
const POPULARITY: f64 = 0.9;

const CHUNK: u64 = CHUNK_MAX as u64;

/// Reads a file of accesses, or a trace of a boot.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<ChunkAccess>> {
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

/// Starts machines, each with one of the workloads.
pub(super) fn starts(
    traces: &[Vec<ChunkAccess>],
    starts: u64,
    seed: u64,
) -> anyhow::Result<Vec<ChunkAccess>> {
    let (zipf, mut random) = (Zipf::new(traces.len(), POPULARITY), Random::new(seed));
    let mut accesses = Vec::new();
    for _ in 0..starts {
        accesses.extend_from_slice(&traces[zipf.pick(&mut random)]);
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
