//! A program that does nothing, started by all that can start it, in turns.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::ensure;

use super::{Figure, Stage, made_and_gone, milliseconds};

/// Rounds of the slow ones: each takes some fifty milliseconds, and their spread is small beside that.
const SLOW_ROUNDS: u32 = 500;

/// Measures a no-op, made and gone.
///
/// # Errors
/// If one cannot be started.
pub fn noop(stage: &Stage, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let path = stage.noop_path();
    let [mut plain, mut sandbox] = [const { Vec::new() }; 2];
    let others = stage.others()?.into_iter();
    let mut others: Vec<_> = others.map(|other| (other, Vec::new())).collect();
    for round in 0..rounds {
        let began = Instant::now();
        let status = Command::new(&path).stdin(Stdio::null()).status()?;
        plain.push(milliseconds(began.elapsed()));
        ensure!(status.success(), "the program ended with {status}");
        sandbox.push(made_and_gone(stage, stage.noop_request())?[1]);
        if round < SLOW_ROUNDS {
            for (other, times) in &mut others {
                let began = Instant::now();
                other.run()?;
                times.push(milliseconds(began.elapsed()));
            }
        }
    }
    let mut figures = vec![
        Figure::new("no-op, a plain process", "ms", plain),
        Figure::new("no-op, a sandbox made and gone", "ms", sandbox),
    ];
    for (other, times) in others {
        figures.push(Figure::new(format!("no-op, {}", other.name()), "ms", times));
    }
    Ok(figures)
}
