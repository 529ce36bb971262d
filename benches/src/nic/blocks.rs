//! The block path: reads of chunks from a `nicfetch` of its own, by the client that mounts use.

mod bed;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use blockservice::client::Remote;
use blockservice::wire::Priority;

use crate::aims::Aim;
use crate::interrupt;
use crate::micro::{Series, ratio};
use crate::rounds::{Shuffle, median};

use super::service::Nicfetch;
use bed::{Bed, CHUNK, Content, SMALL, Transport};

/// Longer than any read takes, on a busy machine, too: a read that is given up ends the bench.
const PATIENCE: Duration = Duration::from_secs(60);
/// Reads of 128 KiB one by one in each turn.
const READS: usize = 400;
/// Ranges of the registry in each turn; one takes some milliseconds.
const RANGES: usize = 100;
/// Single reads of 4 KiB in each turn.
const SINGLES: usize = 1600;
/// Chunks that are asked for in one READ while pipelining, and threads that ask. Together they
/// stay within a window of 16 MiB.
const PIPELINE: usize = 32;
const PIPELINES: usize = 2;
/// READs of eight small chunks that are in flight at once.
const BATCH: usize = 8;
const BATCHES: usize = 8;

/// One thing that is measured, in turns with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Microseconds of a read of 128 KiB, one after the other.
    Read(Transport, Content),
    /// The same by TCP, from a service that keeps nothing in memory.
    Cold(Content),
    /// Bytes a second with several READs in flight.
    Pipelined(Transport, Content),
    /// Bytes a second of reads of 4 KiB, one after the other.
    Single,
    /// Bytes a second of READs of eight chunks of 4 KiB, one after the other.
    Batch,
    /// The same, several in flight.
    Batches,
    /// Microseconds of a range of 128 KiB from docker-registry.
    Range,
    /// Microseconds of a bare answer of 128 KiB.
    Answer,
    /// Microseconds of decompressing and comparing a chunk.
    Open(Content),
    /// Microseconds of both, one after the other.
    AnswerAndOpen(Content),
}

impl What {
    fn all() -> Vec<Self> {
        let contents = [Content::Files, Content::Noise];
        let mut all = vec![Self::Single, Self::Batch, Self::Batches, Self::Range];
        all.push(Self::Answer);
        all.extend(contents.map(Self::Open));
        all.extend(contents.map(Self::AnswerAndOpen));
        all.extend(contents.map(Self::Cold));
        for transport in Transport::ALL {
            for content in contents {
                all.push(Self::Read(transport, content));
                all.push(Self::Pipelined(transport, content));
            }
        }
        all
    }

    fn name(self) -> String {
        match self {
            Self::Read(transport, content) => format!("read of 128 KiB, {transport}, {content}"),
            Self::Cold(content) => format!("read of 128 KiB, TCP, {content}, not out of memory"),
            Self::Pipelined(transport, content) => format!("pipelined, {transport}, {content}"),
            Self::Single => "4 KiB, one by one, TCP".to_owned(),
            Self::Batch => "8 x 4 KiB in a READ, one by one, TCP".to_owned(),
            Self::Batches => format!("8 x 4 KiB in a READ, {BATCHES} at a time, TCP"),
            Self::Range => "range of 128 KiB, docker-registry".to_owned(),
            Self::Answer => "floor: a bare answer of 128 KiB, TCP".to_owned(),
            Self::Open(content) => format!("floor: decompressing and comparing 128 KiB, {content}"),
            Self::AnswerAndOpen(content) => {
                format!("floor: a bare answer, then decompressing and comparing, {content}")
            }
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Single | Self::Batch | Self::Batches | Self::Pipelined(..) => "MB/s",
            _ => "us",
        }
    }
}

/// Has all take `rounds` turns in a shuffled order.
///
/// # Errors
/// If a server does not come up, or a read fails.
pub fn measure(
    nicfetch: &Nicfetch,
    content: &Path,
    home: &Path,
    rounds: u32,
) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let mut bed = Bed::lay(nicfetch, content, home)?;
    let all = What::all();
    let mut series: Vec<_> = all
        .iter()
        .map(|what| Series::new(what.name(), what.unit()))
        .collect();
    let mut shuffle = Shuffle::from_clock();
    // The first turns fill the page cache and the allocators, and do not count.
    for round in 0..=rounds {
        let turns: Vec<usize> = (0..all.len()).collect();
        for turn in shuffle.order(&turns) {
            interrupt::check()?;
            let value = once(&mut bed, all[turn], &mut shuffle)
                .with_context(|| format!("measuring {}", all[turn].name()))?;
            if round > 0 {
                series[turn].values.push(value);
            }
        }
    }
    let aims = aims(&all, &series);
    Ok((series, aims))
}

fn once(bed: &mut Bed, what: What, shuffle: &mut Shuffle) -> anyhow::Result<f64> {
    match what {
        What::Read(transport, content) => {
            let chunks = shuffle.order(bed.chunks(content));
            one_by_one(bed.remote(transport), &chunks)
        }
        What::Cold(content) => {
            let chunks = shuffle.order(bed.chunks(content));
            one_by_one(bed.cold(), &chunks)
        }
        What::Pipelined(transport, content) => {
            let runs = runs(bed.chunks(content), PIPELINE);
            let bytes = runs.len() * PIPELINE * CHUNK;
            together(bed.remote(transport), &runs, PIPELINES).map(|took| rate(bytes, took))
        }
        What::Single => {
            let chunks = shuffle.order(bed.chunks(Content::Small));
            let chunks: Vec<_> = chunks.into_iter().take(SINGLES).map(|n| vec![n]).collect();
            let bytes = chunks.len() * SMALL;
            together(bed.remote(Transport::Tcp), &chunks, 1).map(|took| rate(bytes, took))
        }
        What::Batch | What::Batches => {
            let threads = if what == What::Batch { 1 } else { BATCHES };
            let runs = shuffle.order(&runs(bed.chunks(Content::Small), BATCH));
            let bytes = runs.len() * BATCH * SMALL;
            together(bed.remote(Transport::Tcp), &runs, threads).map(|took| rate(bytes, took))
        }
        What::Range => {
            let mut took = Vec::new();
            for _ in 0..RANGES {
                let began = Instant::now();
                bed.range(shuffle)?;
                took.push(microseconds(began.elapsed()));
            }
            median(&took).context("nothing was read")
        }
        What::Answer => bed.floor.answer(),
        What::Open(content) => bed.floor.open(content),
        What::AnswerAndOpen(content) => bed.floor.answer_and_open(content),
    }
}

/// Reads chunks one after the other, and returns the median of the microseconds.
fn one_by_one(remote: &Remote, chunks: &[u32]) -> anyhow::Result<f64> {
    let mut took = Vec::with_capacity(READS);
    for chunk in chunks.iter().cycle().take(READS) {
        let began = Instant::now();
        fetch(remote, &[*chunk])?;
        took.push(microseconds(began.elapsed()));
    }
    median(&took).context("there are no chunks to read")
}

/// Has so many threads read runs of chunks, each with one READ at a time.
fn together(remote: &Remote, runs: &[Vec<u32>], threads: usize) -> anyhow::Result<Duration> {
    ensure!(!runs.is_empty(), "there are no chunks to read");
    let next = std::sync::atomic::AtomicUsize::new(0);
    let next = || next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(run) = runs.get(next()) {
                fetch(remote, run)?;
            }
            Ok(())
        };
        let others: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut results = others.into_iter().map(|thread| thread.join());
        results.try_for_each(|result| {
            result.unwrap_or_else(|_| anyhow::bail!("a thread that reads panicked"))
        })
    })?;
    Ok(began.elapsed())
}

/// Reads chunks that follow each other; all of them have to come.
fn fetch(remote: &Remote, run: &[u32]) -> anyhow::Result<()> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else {
        return Ok(());
    };
    let found = remote.fetch(*first..last + 1, Priority::Demand, PATIENCE);
    let came = found.iter().flatten().count();
    ensure!(
        came == run.len(),
        "{came} of {} chunks came: {:?}",
        run.len(),
        remote.counts()
    );
    Ok(())
}

/// Cuts numbers that follow each other into runs of `len`, without what is left over.
fn runs(numbers: &[u32], len: usize) -> Vec<Vec<u32>> {
    let following = numbers.chunk_by(|one, next| one + 1 == *next);
    let runs = following.flat_map(|numbers| numbers.chunks_exact(len));
    runs.map(<[u32]>::to_vec).collect()
}

fn microseconds(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// Returns megabytes a second.
fn rate(bytes: usize, took: Duration) -> f64 {
    crate::report::count(bytes as u64) / took.as_secs_f64() / 1e6
}

fn aims(all: &[What], series: &[Series]) -> Vec<Aim> {
    let of = |what: What| {
        let at = all.iter().position(|one| *one == what);
        at.map_or_else(|| Series::new("", ""), |at| series[at].clone())
    };
    let mut aims = Vec::new();
    for content in [Content::Files, Content::Noise] {
        let read = of(What::Read(Transport::Tcp, content));
        let name = format!("us of a read of 128 KiB, TCP, {content}, p50");
        aims.push(Aim::at_most(150.0, name, read.median()));
        let cold = of(What::Cold(content)).median();
        let name = format!("us of the same if the service has to read it, {content}, p50");
        aims.push(Aim::at_most(150.0, name, cold));
        let pipelined = of(What::Pipelined(Transport::Tcp, content)).median();
        let name = format!("GB/s pipelined, TCP, {content}");
        aims.push(Aim::at_least(1.0, name, pipelined.map(|rate| rate / 1e3)));
    }
    let single = of(What::Single);
    let batched = ratio(&of(What::Batches), &single);
    let what = format!("8 x 4 KiB, {BATCHES} at a time: bytes/s to those of single reads");
    aims.push(Aim::at_least(10.0, what, batched));
    let range = of(What::Range);
    let faster = ratio(&range, &of(What::Read(Transport::Tcp, Content::Files)));
    let what = "time of docker-registry's range of 128 KiB to a read, TCP, files";
    aims.push(Aim::at_least(30.0, what, faster));
    aims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_follow_each_other() {
        assert_eq!(
            runs(&[1, 2, 3, 4, 5, 9, 10, 12], 2),
            [vec![1, 2], vec![3, 4], vec![9, 10]]
        );
        assert!(runs(&[], 2).is_empty());
    }

    #[test]
    fn every_aim_has_its_series() {
        let all = What::all();
        let one = |what: &What| Series {
            values: vec![1.0],
            ..Series::new(what.name(), what.unit())
        };
        let series: Vec<_> = all.iter().map(one).collect();
        let aims = aims(&all, &series);
        assert!(aims.iter().all(|aim| aim.measured.is_some()), "{aims:?}");
    }
}
