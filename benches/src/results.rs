//! What a run of several parts measured: told part by part, and at the end beside what is asked for.

use std::path::Path;

use crate::aims::Aim;
use crate::machine::Machine;
use crate::micro::Series;
use crate::report::Report;

/// What was measured so far.
#[derive(Debug, Default)]
pub struct Results {
    series: Vec<Series>,
    aims: Vec<Aim>,
}

impl Results {
    /// Takes what a part measured, and tells it.
    pub fn add(
        &mut self,
        series: impl IntoIterator<Item = Series>,
        aims: impl IntoIterator<Item = Aim>,
    ) {
        for one in series {
            println!("{one}");
            self.series.push(one);
        }
        self.aims.extend(aims);
    }

    /// Tells what was reached, and writes everything to `path` if there is one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn conclude(
        self,
        machine: Machine,
        procedure: &'static str,
        path: Option<&Path>,
    ) -> anyhow::Result<()> {
        println!();
        for aim in &self.aims {
            println!("{aim}");
        }
        let Self { series, aims } = self;
        path.map_or(Ok(()), |path| {
            Report::new(machine, procedure, series, aims).write(path)
        })
    }
}
