//! Runs the programs in three lanes, which run beside each other. The programs of a lane run one after the other:
//!
//! - those that need root, of the packages in [`MOUNTS`]. They mount, start engines and count pages of the page cache and
//!   requests of mounts, which another of their kind would disturb; and they mostly wait;
//! - those that need root, of other packages, and those in [`APART`]. What they mount and start is in namespaces of their
//!   own, or counted by nobody;
//! - those that only compute, and those whose whole work is in a virtual machine (`guest_`). They use what the first two
//!   leave of the processors, at a lower priority.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, anyhow};

use super::program::Program;
use super::run::{Limits, Ran, run};

/// Packages whose tests count what mounts and the page cache do.
const MOUNTS: [&str; 2] = ["cli", "yolofs"];

/// Tests of `cli` that count no page and no request of a mount, and drop no page of others. The first lane is the longest,
/// and the whole takes as long as it does.
const APART: [&str; 9] = [
    "cli test privileged_block_containerd",
    "cli test privileged_block_convert",
    "cli test privileged_block_ext4",
    "cli test privileged_block_node",
    "cli test privileged_mirror",
    "cli test privileged_nic_hostile",
    "cli test privileged_nicfetch_images",
    "cli test privileged_report",
    "cli test privileged_snapshotter",
];

/// What became of the programs, by their position in the list; those that are missing were not run.
pub(super) type Results = BTreeMap<usize, Ran>;

/// Runs each program once.
pub(super) fn run_each(
    programs: &[Program],
    limits: &Limits,
    logs: &Path,
    shown: &mut (dyn Write + Send),
) -> anyhow::Result<Results> {
    let stage = Stage {
        count: programs.len(),
        limits,
        logs,
        shown: Mutex::new(shown),
    };
    let numbered = programs.iter().enumerate();
    let (privileged, computing): (Vec<_>, Vec<_>) = numbered.partition(|(_, one)| one.needs_root());
    let (mounts, others): (Vec<_>, Vec<_>) = privileged
        .into_iter()
        .partition(|(_, one)| is_first_lane(one));
    thread::scope(|scope| {
        let others = scope.spawn(|| stage.run_quietly(&others, Program::clone));
        let computing = scope.spawn(|| stage.run_quietly(&computing, Program::at_lower_priority));
        let mut results = stage.run_live(&mounts)?;
        for lane in [others, computing] {
            results.append(&mut lane.join().map_err(|_| anyhow!("a lane panicked"))??);
        }
        Ok(results)
    })
}

/// Of those that need root.
fn is_first_lane(program: &Program) -> bool {
    MOUNTS.contains(&program.package()) && !APART.contains(&program.name.as_str())
}

/// What the lanes share.
struct Stage<'a> {
    count: usize,
    limits: &'a Limits,
    logs: &'a Path,
    shown: Mutex<&'a mut (dyn Write + Send)>,
}

impl Stage<'_> {
    /// Shows the output as it comes.
    fn run_live(&self, programs: &[(usize, &Program)]) -> anyhow::Result<Results> {
        self.run(programs, |program, number| {
            let mut shown = Shared(&self.shown);
            write!(shown, "{}", self.title(program, number))?;
            run(program, &[], self.limits, self.logs, &mut shown)
        })
    }

    /// Shows the output of each program in one piece, when it ends.
    fn run_quietly(
        &self,
        programs: &[(usize, &Program)],
        prepared: impl Fn(&Program) -> Program,
    ) -> anyhow::Result<Results> {
        self.run(programs, |program, number| {
            let mut output = self.title(program, number).into_bytes();
            let ran = run(&prepared(program), &[], self.limits, self.logs, &mut output);
            Shared(&self.shown).write_all(&output)?;
            ran
        })
    }

    fn run(
        &self,
        programs: &[(usize, &Program)],
        run: impl Fn(&Program, usize) -> anyhow::Result<Ran>,
    ) -> anyhow::Result<Results> {
        let mut results = Results::new();
        for (index, program) in programs {
            if self.limits.reached().is_some() {
                break;
            }
            let ran = run(program, index + 1).with_context(|| program.name.clone())?;
            results.insert(*index, ran);
        }
        Ok(results)
    }

    fn title(&self, program: &Program, number: usize) -> String {
        format!("\n==> {number} of {}: {}\n", self.count, program.name)
    }
}

/// Output that two lanes write, a piece at a time.
struct Shared<'a, 'b>(&'a Mutex<&'b mut (dyn Write + Send)>);

impl Write for Shared<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Output has no state that a panic could leave half changed.
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shown.flush()
    }
}

#[cfg(test)]
mod tests;
