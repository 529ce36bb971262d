//! The project's own chores, run as `cargo xtask <chore>`.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use clap::{Parser, Subcommand};

mod cargo;
mod circles;
mod deps;
mod dist;
mod flags;
mod ladder;
mod links;
mod named;
mod pages;
mod quick;
mod size;
mod suite;
mod workspace;

/// The project's own chores
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Fail where a crate imports what it must not, escapes the workspace's lints, or is in no list of crates
    Layers,
    /// Fail where what comes into the build breaks a rule of deny.toml, or an advisory applies to it
    Deps(deps::Options),
    /// Show which modules import each other in circles
    Circles,
    /// Fail where a message of a library names a flag of the command line
    Flags,
    /// Run the quick loop: format, layers, sizes, lints, and the tests that need no root
    Ci,
    /// Fail where a link of a document leads nowhere, or a page is not in the book
    Links,
    /// Fail where a file has over 500 lines of code or a function over 80, and show the spread
    Size,
    /// Run all tests, those that need root included, so that none hangs and a flaky one is known
    Test(suite::Options),
    /// Make the packages: a .deb and a .rpm
    Dist(dist::Options),
    /// Write the man pages of the programs
    Man {
        /// Directory to write them to; made if it is not there
        #[arg(long, value_name = "DIR", default_value = "target/man")]
        out: PathBuf,
    },
    /// Write the shell completions of the programs
    Completions {
        /// Directory to write them to; made if it is not there
        #[arg(long, value_name = "DIR", default_value = "target/completions")]
        out: PathBuf,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().chore {
        Chore::Layers => {
            let packages = workspace::load()?;
            ladder::check(&packages)?;
            named::check(&workspace::root()?, &packages)?;
            circles::check(&packages)
        }
        Chore::Deps(options) => deps::check(&workspace::root()?, &options),
        Chore::Circles => circles::report(&workspace::load()?),
        Chore::Flags => flags::check(&workspace::load()?),
        Chore::Links => links::check(&workspace::root()?),
        Chore::Ci => quick::run(),
        Chore::Size => size::check(&workspace::root()?),
        Chore::Test(options) => suite::test(&options),
        Chore::Dist(options) => dist::run(&options),
        Chore::Man { out } => pages::man(&out),
        Chore::Completions { out } => pages::completions(&out),
    }
}
