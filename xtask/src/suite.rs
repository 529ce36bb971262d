//! Runs all tests, those of `cargo test --workspace --all-features`, so that the run ends and explains itself.
//!
//! libtest has no deadline: one test that hangs takes all that CI has, and nobody knows which it was. So here
//! a program that finishes no test for some minutes is killed, with all that it started; before, the run prints what
//! each of its threads waits for. What failed or did not finish is run once more at the end, alone. A test that passes
//! then is reported as flaky.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::workspace;

mod build;
mod family;
mod lanes;
mod program;
mod run;
mod transcript;
mod verdict;

use build::Selection;
use program::Program;
use run::Limits;
use verdict::{Sink, Tally};

/// Which tests to run, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only the tests of this package
    #[arg(long, short, value_name = "NAME")]
    package: Option<String>,
    /// Only this integration test
    #[arg(long, value_name = "NAME")]
    test: Option<String>,
    /// Build them and run none
    #[arg(long, conflicts_with_all = ["runs", "json"])]
    no_run: bool,
    /// How often to run them all, to look for flaky ones
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    runs: u32,
    /// How long a program may finish no test; the slowest test takes a minute on a machine that has nothing else to do
    #[arg(long, value_name = "SECONDS", default_value_t = 480)]
    stall: u64,
    /// How long one run may take, the build not included; it takes some 30 minutes
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    total: u64,
    /// Write who failed, who was flaky and how long each program took to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Builds and runs the tests.
///
/// # Errors
///
/// Fails if a test fails, or if too many are flaky; that has been printed then.
pub(crate) fn test(options: &Options) -> anyhow::Result<()> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let programs = build::build(&Selection {
        package: options.package.clone(),
        test: options.test.clone(),
    })?;
    if options.no_run {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))
            .context("catching signals")?;
    }
    let logs = workspace::root()?.join("target/suite");
    drop(fs::remove_dir_all(&logs)); // of the last time, if there are any
    let mut tally = Tally::default();
    let mut sink = Sink {
        logs: &logs,
        shown: &mut std::io::stdout(),
    };
    for _ in 0..options.runs {
        let limits = Limits {
            stall: Duration::from_secs(options.stall),
            end: Instant::now() + Duration::from_secs(options.total),
            interrupted: Arc::clone(&interrupted),
        };
        run_all(&programs, &limits, &mut tally, &mut sink)?;
    }
    if let Some(file) = &options.json {
        write_json(&tally, file)?;
    }
    tally.report(sink.shown)?;
    // Said already, and the sum is to be the last line.
    std::process::exit(i32::from(!tally.is_good()));
}

/// Runs all, and then alone, once more, what failed.
fn run_all(
    programs: &[Program],
    limits: &Limits,
    tally: &mut Tally,
    sink: &mut Sink<'_>,
) -> anyhow::Result<()> {
    let mut results = lanes::run_each(programs, limits, sink.logs, sink.shown)?;
    for (index, program) in programs.iter().enumerate() {
        if let Some(first) = results.remove(&index) {
            tally.add(program, &first, limits, sink)?;
        } else {
            let end = limits.reached().context("a program was left out")?;
            tally.left_out(program, end);
        }
    }
    Ok(())
}

fn write_json(tally: &Tally, file: &Path) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(&tally.json())?;
    fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))
}
