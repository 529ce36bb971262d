//! The fault harness: it does harm to real mounts, served by the real programs, while others read
//! from them, and then proves that nothing was lost.
//!
//! - A [`Scenario`] is one kind of harm. It runs as often, and with as many seeds, as asked for;
//!   the same seed does the same harm.
//! - A [`Workload`] reads what is mounted in every way that programs do: ranges of files, mapped
//!   files, names and attributes, programs that run. Each byte is compared with a copy of the
//!   source that nobody mounts ([`Truth`]), each failure is counted, each wait is measured.
//! - After each run an aftermath looks for what must not be left: mounts,
//!   processes, sleepers that cannot be woken.
//!
//! `scripts/soak.sh` runs it for minutes or hours, `docs/faults.md` says what must hold.

#![forbid(unsafe_code)]

mod base;
mod bench;
mod commands;
mod faulty;
mod guest;
mod guests;
mod histogram;
mod lab;
mod looker;
mod machine;
mod names;
mod node;
mod processes;
mod rng;
mod scenarios;
mod tally;
mod truth;
mod workload;

pub use base::Base;
pub use bench::{Bench, Scale, Scenario};
pub use guest::Guest;
pub use histogram::Histogram;
pub use looker::look_when_told;
pub use rng::Rng;
pub use scenarios::{SCENARIOS, jump_in_guest};
pub use tally::Tally;
pub use truth::Truth;
pub use workload::{Workload, map_until_told};
