//! Packages: a `.deb` and a `.rpm` with the programs, their manual pages, completions, units and defaults; or an archive
//! of static programs.

mod deb;
mod layout;
mod musl;
mod rpm;
mod scripts;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;

use crate::cargo::cargo;
use crate::{pages, workspace};
use layout::{Family, Layout};

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// For Debian 12 (bookworm), 13 (trixie), and Ubuntu
    Deb,
    /// For Fedora, RHEL and their like
    Rpm,
}

/// Which packages, of what.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Kinds of packages
    #[arg(long, value_name = "KIND", default_values = ["deb", "rpm"], value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Make an archive of programs that need nothing but a kernel instead, for a processor
    #[arg(long, value_name = "PROCESSOR", conflicts_with = "kinds", num_args = 0..=1, default_missing_value = "x86_64")]
    r#static: Option<musl::Processor>,
    /// Profile that static programs are built with
    #[arg(
        long,
        value_name = "NAME",
        default_value = "release",
        requires = "static"
    )]
    profile: String,
    /// Directory of programs that are built already; without it a release is built
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Number of the packaging of this version
    #[arg(long, value_name = "N", default_value_t = 1)]
    release: u32,
    /// Directory to write them to; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
}

impl Options {
    const fn version(&self) -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION"),
            release: self.release,
        }
    }
}

/// A package's name and version.
#[derive(Clone, Debug)]
struct Version {
    version: &'static str,
    release: u32,
}

/// Makes the packages, and prints where they are.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let root = workspace::root()?;
    if let Some(processor) = options.r#static {
        return run_static(options, processor, &root);
    }
    let programs = match &options.programs {
        Some(dir) => dir.clone(),
        None => build(&root)?,
    };
    let scratch = options.out.join("scratch");
    clear(&scratch)?;
    let (man, completions) = (scratch.join("man"), scratch.join("completions"));
    pages::man(&man)?;
    pages::completions(&completions)?;
    let packed = layout::PROGRAMS.into_iter().chain(layout::ENGINE_PROGRAMS);
    let stripped = strip(&programs, packed, &scratch.join("programs"), "strip")?;
    let version = options.version();
    for kind in &options.kinds {
        let family = match kind {
            Kind::Deb => Family::Debian,
            Kind::Rpm => Family::RedHat,
        };
        let layout = Layout::of(family, &root, &stripped, &man, &completions)?;
        let package = match kind {
            Kind::Deb => deb::make(&layout, &version, &scratch, &options.out)?,
            Kind::Rpm => rpm::make(&layout, &version, &scratch, &options.out)?,
        };
        println!("made {}", package.display());
    }
    clear(&scratch)
}

/// Makes an archive of static programs, and prints where it is.
fn run_static(options: &Options, processor: musl::Processor, root: &Path) -> anyhow::Result<()> {
    let programs = match &options.programs {
        Some(dir) => dir.clone(),
        None => musl::build(root, processor, &options.profile)?,
    };
    let scratch = options.out.join("scratch");
    clear(&scratch)?;
    let stripped = strip(&programs, layout::PROGRAMS, &scratch, processor.strip())?;
    let archive = musl::archive(&stripped, processor, &options.version(), &options.out)?;
    println!("made {}", archive.display());
    clear(&scratch)
}

/// Builds a release of the programs, and returns where they are.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let build = [
        "build",
        "--release",
        "-p",
        "cli",
        "-p",
        "sandbox-cli",
        "-p",
        "sandbox-oci",
        "--bins",
    ];
    call(cargo().args(build).current_dir(root))?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release"))
}

/// Copies the programs without what only a debugger uses.
fn strip(
    from: &Path,
    names: impl IntoIterator<Item = &'static str>,
    to: &Path,
    strip: &str,
) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    for name in names {
        let program = from.join(name);
        ensure!(program.exists(), "{} is not built", program.display());
        call(
            Command::new(strip)
                .arg("--strip-debug")
                .arg(program)
                .arg("-o")
                .arg(to.join(name)),
        )?;
    }
    Ok(to.to_owned())
}

fn clear(dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    }
    Ok(())
}

/// Runs a program that must succeed.
fn call(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("running {shown}"))?;
    ensure!(status.success(), "{shown} failed: {status}");
    Ok(())
}
