//! Who passed, who failed, and who could not decide.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::program::Program;
use super::run::{End, Limits, Ran, run};
use super::transcript::Counts;

/// How many tests may fail once and pass alone. The machine that decides is shared and slow, and there are well over
/// a thousand tests; but more than a few that fail together have a common cause, which is a defect.
pub(crate) const FLAKY_MAX: usize = 3;

/// A test that did not pass at once, or a program of which it is not known who did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) program: String,
    /// None: the whole program.
    pub(crate) test: Option<String>,
    pub(crate) why: String,
}

impl Fault {
    fn new(program: &Program, test: Option<&str>, why: &str) -> Self {
        Self {
            program: program.name.clone(),
            test: test.map(str::to_owned),
            why: why.to_owned(),
        }
    }

    fn json(&self) -> Value {
        json!({"program": self.program, "test": self.test, "why": self.why})
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let test = self.test.as_deref().unwrap_or("(the whole program)");
        write!(f, "{}: {test}: {}", self.program, self.why)
    }
}

/// The sum of all programs.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) skipped: u64,
    pub(crate) failed: Vec<Fault>,
    /// Failed, and passed when they were run alone.
    pub(crate) flaky: Vec<Fault>,
    /// How long each program took, its repetitions included.
    pub(crate) times: Vec<(String, Duration)>,
}

/// Where output goes.
pub(crate) struct Sink<'a> {
    /// The directory of the logs.
    pub(crate) logs: &'a Path,
    pub(crate) shown: &'a mut (dyn Write + Send),
}

impl Tally {
    /// Adds what became of a program, and runs once more what failed of it.
    pub(crate) fn add(
        &mut self,
        program: &Program,
        first: &Ran,
        limits: &Limits,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<()> {
        let mut took = first.took;
        let counts = first.transcript.counts;
        if first.succeeded() && (counts.is_some() || !first.transcript.is_libtest) {
            // A `main` of its own need not count.
            let counts = counts.unwrap_or_default();
            let none = counts == Counts::default() && !first.transcript.is_libtest;
            self.passed += if none { 1 } else { counts.passed };
            self.skipped += counts.skipped;
        } else if matches!(first.end, End::OutOfTime | End::Interrupted) {
            let why = why(first);
            self.failed.push(Fault::new(program, None, &why));
        } else if first.transcript.is_libtest {
            took += self.repeat_tests(program, first, limits, sink)?;
        } else {
            took += self.repeat_whole(program, first, limits, sink)?;
        }
        self.times.push((program.name.clone(), took));
        Ok(())
    }

    /// Says that a program was not run, since the run was over.
    pub(crate) fn left_out(&mut self, program: &Program, end: End) {
        self.failed.push(Fault::new(program, None, &ending(end)));
    }

    fn repeat_whole(
        &mut self,
        program: &Program,
        first: &Ran,
        limits: &Limits,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<Duration> {
        writeln!(sink.shown, "\n==> once more: {}", program.name)?;
        let second = run(program, &[], limits, sink.logs, sink.shown)?;
        let fault = Fault::new(program, None, &why(first));
        if second.succeeded() {
            let counts = second.transcript.counts.unwrap_or_default();
            self.passed += counts.passed.max(1);
            self.skipped += counts.skipped;
            self.flaky.push(fault);
        } else {
            self.failed.push(fault);
        }
        Ok(second.took)
    }

    /// Runs alone, once more, each test that failed, or that had not finished when the program ended.
    fn repeat_tests(
        &mut self,
        program: &Program,
        first: &Ran,
        limits: &Limits,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<Duration> {
        let transcript = &first.transcript;
        let mut unfinished = BTreeSet::new();
        if let Some(counts) = transcript.counts {
            self.passed += counts.passed;
            self.skipped += counts.skipped;
        } else {
            unfinished = unfinished_tests(program, first, limits, sink)?;
            self.passed += transcript.done.len() as u64;
        }
        let mut took = Duration::ZERO;
        for test in &transcript.failed {
            let passes = self.repeat(program, test, limits, sink, &mut took)?;
            let fault = Fault::new(program, Some(test), "it failed");
            let faults = if passes {
                &mut self.flaky
            } else {
                &mut self.failed
            };
            faults.push(fault);
        }
        let mut is_explained = false;
        for test in &unfinished {
            let passes = self.repeat(program, test, limits, sink, &mut took)?;
            let fault = Fault::new(program, Some(test), &why(first));
            if !passes {
                self.failed.push(fault);
            } else if transcript.slow.contains(test) {
                self.flaky.push(fault);
            } else {
                continue;
            }
            is_explained = true;
        }
        let fault = Fault::new(program, None, &why(first));
        if transcript.failed.is_empty() && unfinished.is_empty() {
            self.failed.push(fault); // nothing to run again, and yet it failed
        } else if transcript.counts.is_none() && !is_explained {
            self.flaky.push(fault); // somebody ended the program, and none does alone
        }
        Ok(took)
    }

    /// Runs one test alone, and counts it if it passes.
    fn repeat(
        &mut self,
        program: &Program,
        test: &str,
        limits: &Limits,
        sink: &mut Sink<'_>,
        took: &mut Duration,
    ) -> anyhow::Result<bool> {
        writeln!(
            sink.shown,
            "\n==> once more, alone: {} {test}",
            program.name
        )?;
        let alone = ["--exact", test, "--test-threads=1"];
        let second = run(program, &alone, limits, sink.logs, sink.shown)?;
        *took += second.took;
        let counts = second.transcript.counts.unwrap_or_default();
        let passes = second.succeeded() && counts.passed + counts.skipped == 1;
        if passes {
            self.passed += counts.passed;
            self.skipped += counts.skipped;
        }
        Ok(passes)
    }

    /// Whether all passed, or so many that the rest is bad luck.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty() && self.flaky.len() <= FLAKY_MAX
    }

    /// What is read by the next who looks for flaky tests.
    pub(crate) fn json(&self) -> Value {
        let faults = |faults: &[Fault]| faults.iter().map(Fault::json).collect::<Vec<_>>();
        let programs = self.times.iter();
        let programs =
            programs.map(|(name, took)| json!({"program": name, "ms": took.as_millis()}));
        json!({
            "passed": self.passed,
            "skipped": self.skipped,
            "failed": faults(&self.failed),
            "flaky": faults(&self.flaky),
            "programs": programs.collect::<Vec<_>>(),
        })
    }

    /// Prints what matters of a run; the line with the sum is the last.
    pub(crate) fn report(&self, shown: &mut dyn Write) -> anyhow::Result<()> {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        writeln!(shown, "\nslowest programs:")?;
        for (name, took) in times.into_iter().take(10) {
            writeln!(shown, "{:6.1} s  {name}", took.as_secs_f64())?;
        }
        for fault in &self.flaky {
            writeln!(shown, "FLAKY  {fault}; it passed alone")?;
        }
        for fault in &self.failed {
            writeln!(shown, "FAILED {fault}")?;
        }
        let mut failed = self.failed.len();
        if self.flaky.len() > FLAKY_MAX {
            writeln!(shown, "more than {FLAKY_MAX} flaky tests count as failed")?;
            failed += self.flaky.len();
        } else if !self.flaky.is_empty() {
            writeln!(
                shown,
                "a flaky test is a defect: mend it before the next one comes"
            )?;
        }
        let (passed, skipped) = (self.passed, self.skipped);
        writeln!(shown, "{passed} passed, {failed} failed, {skipped} skipped")?;
        Ok(shown.flush()?)
    }
}

fn why(ran: &Ran) -> String {
    ending(ran.end)
}

fn ending(end: End) -> String {
    match end {
        End::Exited(status) if status.success() => "it ended without a summary".to_owned(),
        End::Exited(status) => status.to_string(),
        End::Stalled => "no test finished for too long".to_owned(),
        End::OutOfTime => "the time of the whole run was over".to_owned(),
        End::Interrupted => "interrupted".to_owned(),
    }
}

/// Asks a program for its tests, and says which of them had not finished.
fn unfinished_tests(
    program: &Program,
    first: &Ran,
    limits: &Limits,
    sink: &mut Sink<'_>,
) -> anyhow::Result<BTreeSet<String>> {
    let arguments = ["--list", "--format", "terse"];
    let listed = run(program, &arguments, limits, sink.logs, &mut std::io::sink())?;
    let text = fs::read_to_string(&listed.log).context("reading the list of tests")?;
    let transcript = &first.transcript;
    let unfinished: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|&name| !transcript.done.contains(name) && !transcript.failed.contains(name))
        .map(str::to_owned)
        .collect();
    writeln!(sink.shown, "\n==> {}: {}", program.name, why(first))?;
    for test in &unfinished {
        let slow = if transcript.slow.contains(test) {
            ", over a minute at work"
        } else {
            ""
        };
        writeln!(sink.shown, "==> not finished{slow}: {test}")?;
    }
    Ok(unfinished)
}

#[cfg(test)]
mod tests;
