//! `nicfetch simulate`.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use chunks::PolicyKind;
use chunks::simulate::{ChunkAccess, ManyVms, Outcome as Simulated, footprint_bytes, simulate};
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{FormatArg, percent, print, table};
use host::size::{ParseSizeError, Size};

mod workload;

/// Simulate eviction policies on traces
///
/// Replays the accesses of traces against a cache of --capacity, which is empty at first. A trace is
/// one of yolofs, as `bootimg record --keep-traces` writes them, or a text with a line `CHUNK BYTES`
/// for each access. A directory is what `--keep-traces` filled: the runs of one recording. A machine
/// requests each chunk that a boot reads once. Prints the hit rates: of all requests, and of those
/// that a client waits for.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SimulateArgs {
    /// Traces of boots, directories of them, or texts of accesses; one after the other
    #[arg(value_name = "FILE", required_unless_present = "many_vms")]
    traces: Vec<PathBuf>,
    /// Room of the cache: a size, or a part of all different chunks, such as 10%; may be repeated
    #[arg(long, value_name = "SIZE", required = true)]
    capacity: Vec<Capacity>,
    /// Policy: lru, lfu, sieve, s3-fifo or learned [default: each of them]
    #[arg(long, value_name = "NAME")]
    policy: Vec<PolicyKind>,
    /// Start this many machines, each as one of the FILEs: the first most often, by Zipf's law; of a
    /// directory, as any of its runs
    #[arg(long, value_name = "N", requires = "traces")]
    starts: Option<u64>,
    /// Instead of traces: a synthetic host that starts many machines, some of which read all of
    /// their images
    #[arg(long, conflicts_with = "traces")]
    many_vms: bool,
    /// Treat reads of whole images as background reads, which no client waits for
    #[arg(long, requires = "many_vms")]
    scans_ahead: bool,
    /// Seed of the random workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the accesses to this file, as text
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// Room of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capacity {
    Bytes(Size),
    Percent(u64),
}

impl FromStr for Capacity {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(percent) = text.strip_suffix('%') else {
            return text.parse().map(Self::Bytes);
        };
        let percent = percent.parse().ok().filter(|percent| *percent <= 100);
        percent.map(Self::Percent).ok_or(ParseSizeError)
    }
}

impl Capacity {
    fn bytes(self, footprint: u64) -> u64 {
        match self {
            Self::Bytes(size) => size.0,
            // Rounded up; no footprint is near the end of the numbers.
            Self::Percent(percent) => (footprint * percent).div_ceil(100),
        }
    }
}

/// What `simulate --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    accesses: u64,
    bytes: u64,
    /// Of those for which somebody waited.
    demand_accesses: u64,
    demand_bytes: u64,
    footprint_bytes: u64,
    results: Vec<Row>,
}

/// One policy with one capacity.
#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    capacity_bytes: u64,
    hits: u64,
    hit_bytes: u64,
    demand_hits: u64,
    demand_hit_bytes: u64,
    chunks_evicted: u64,
}

pub(super) fn run(args: &SimulateArgs) -> anyhow::Result<Outcome> {
    let accesses = accesses(args)?;
    if accesses.is_empty() {
        bail!("the traces have no reads");
    }
    if let Some(path) = &args.write {
        let doing = || format!("writing {}", path.display());
        let file = File::create(path).with_context(doing)?;
        chunks::simulate::write_accesses(&accesses, BufWriter::new(file)).with_context(doing)?;
    }
    let footprint = footprint_bytes(&accesses);
    let policies = match &args.policy[..] {
        [] => &PolicyKind::ALL[..],
        some => some,
    };
    let mut last = Simulated::default();
    let mut results = Vec::new();
    for capacity in &args.capacity {
        let capacity_bytes = capacity.bytes(footprint);
        for policy in policies {
            last = simulate(accesses.iter().copied(), *policy, capacity_bytes);
            results.push(row(*policy, capacity_bytes, &last));
        }
    }
    let report = Report {
        accesses: last.all.accesses,
        bytes: last.all.bytes,
        demand_accesses: last.demand.accesses,
        demand_bytes: last.demand.bytes,
        footprint_bytes: footprint,
        results,
    };
    print(args.format.format(), &report, text)?;
    Ok(Outcome::Done)
}

fn accesses(args: &SimulateArgs) -> anyhow::Result<Vec<ChunkAccess>> {
    if args.many_vms {
        let host = ManyVms {
            seed: args.seed,
            ..ManyVms::default()
        };
        let class = match args.scans_ahead {
            true => chunks::Class::Prefetch,
            false => host.scan_class,
        };
        return Ok(ManyVms {
            scan_class: class,
            ..host
        }
        .accesses()
        .collect());
    }
    let workloads: Vec<_> = args
        .traces
        .iter()
        .map(|path| workload::read(path))
        .collect::<Result<_, _>>()?;
    match args.starts {
        Some(starts) => workload::starts(&workloads, starts, args.seed),
        None => Ok(workloads.concat().concat()),
    }
}

const fn row(policy: PolicyKind, capacity_bytes: u64, simulated: &Simulated) -> Row {
    Row {
        policy: policy.name(),
        capacity_bytes,
        hits: simulated.all.hits,
        hit_bytes: simulated.all.hit_bytes,
        demand_hits: simulated.demand.hits,
        demand_hit_bytes: simulated.demand.hit_bytes,
        chunks_evicted: simulated.evicted,
    }
}

fn text(report: &Report) -> String {
    let heading = [
        "CAPACITY",
        "POLICY",
        "HITS",
        "HIT BYTES",
        "WAITED FOR",
        "EVICTED",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for row in &report.results {
        rows.push(vec![
            Size(row.capacity_bytes).to_string(),
            row.policy.to_owned(),
            percent(row.hits, report.accesses),
            percent(row.hit_bytes, report.bytes),
            percent(row.demand_hit_bytes, report.demand_bytes),
            row.chunks_evicted.to_string(),
        ]);
    }
    format!(
        "{} accesses to {}, of {} that differ\n\n{}",
        report.accesses,
        Size(report.bytes),
        Size(report.footprint_bytes),
        table(&rows)
    )
}
