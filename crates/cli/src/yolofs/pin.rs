//! `yolofs pin`: keeps in memory what starts need of the host's own files.

mod text;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use host::size::Size;
use pinning::talk::{PinStatus, Request, ask};
use pinning::{Method, Order, PinDir, ServeSettings, bytes_of, record, serve, status_of_nobody};
use recording::until::seconds;
use serde::Serialize;

use crate::exit::Outcome;
use crate::output::{FormatArg, complain, print};

/// Where the host's own programs and libraries are.
const ROOTS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/opt"];

/// Keep in memory what starts need of the host's own files
///
/// An engine or an emulator reads more of its own programs and libraries than of the image it starts. `record` finds
/// which pages a start touches; `serve` holds those of the profiles that are applied, and follows upgrades.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct PinArgs {
    /// Directory with the profiles
    #[arg(
        long,
        value_name = "DIR",
        env = "YOLOFS_PINS",
        default_value = "/var/lib/yolofs/pins",
        global = true
    )]
    pins: PathBuf,
    #[command(subcommand)]
    verb: PinVerb,
}

#[derive(Clone, Debug, Subcommand)]
enum PinVerb {
    /// Find which pages of the host's files a command touches; it is run twice
    ///
    /// The first run tells which files it uses; these are dropped from memory, and the second tells which pages. Where
    /// the kernel has no events for that (Linux 6.1 lacks them), it is run once, and all files of the directories are
    /// dropped before.
    Record {
        /// Name of the profile [default: that of the command]
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Directory with the host's own files
        #[arg(long, value_name = "DIR", default_values = ROOTS)]
        under: Vec<PathBuf>,
        /// Running process whose touches count, too, such as a daemon that the command asks
        #[arg(long, value_name = "PID")]
        with: Vec<u32>,
        /// End a command that has not ended by then: what it touched until then is kept
        #[arg(long = "for", value_name = "SECS", value_parser = seconds)]
        limit: Option<Duration>,
        /// Compare what is in memory before and after, even if the kernel can tell more
        #[arg(long)]
        before_after: bool,
        #[command(flatten)]
        format: FormatArg,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Have the pages of profiles held, now and when the node starts
    Apply {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Only tell how much that would be
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        format: FormatArg,
    },
    /// Show the profiles, and what is held
    Status {
        #[command(flatten)]
        format: FormatArg,
    },
    /// Have the pages of profiles given back
    Drop {
        #[arg(required_unless_present = "all", value_name = "NAME")]
        names: Vec<String>,
        /// All that are applied
        #[arg(long, conflicts_with = "names")]
        all: bool,
        /// Remove the profiles, too
        #[arg(long)]
        forget: bool,
        #[command(flatten)]
        format: FormatArg,
    },
    /// Hold the pages of the applied profiles, in the foreground
    Serve {
        /// Most bytes to hold
        #[arg(long, value_name = "SIZE", default_value = "256M")]
        budget: Size,
        /// Directory of the memory cgroup that is charged with them
        #[arg(long, value_name = "DIR")]
        cgroup: Option<PathBuf>,
    },
}

/// What `record` prints.
#[derive(Debug, Serialize)]
struct RecordedPins {
    name: String,
    method: Method,
    why: Option<String>,
    files: usize,
    bytes: u64,
    file_bytes: u64,
    lost_events: u64,
    files_elsewhere: usize,
}

/// What `apply --dry-run` prints.
#[derive(Debug, Serialize)]
struct PlannedPins {
    bytes: u64,
    budget_bytes: Option<u64>,
}

pub(super) fn run(args: &PinArgs, run_dir: &Path) -> anyhow::Result<Outcome> {
    let pins = PinDir::new(args.pins.clone());
    let run_dir = RunDir::open(run_dir)?.path().to_owned();
    match &args.verb {
        PinVerb::Record { .. } => return record_profile(&args.verb, &pins, run_dir),
        PinVerb::Apply {
            names,
            dry_run: true,
            format,
        } => {
            let profiles: Vec<_> = names
                .iter()
                .map(|name| pins.profile(name))
                .collect::<Result<_, _>>()?;
            let holder = ask(&run_dir, &Request::Status)?;
            let planned = PlannedPins {
                bytes: bytes_of(&profiles),
                budget_bytes: holder.map(|status| status.budget_bytes),
            };
            print(format.format(), &planned, text::planned)?;
        }
        PinVerb::Apply { names, format, .. } => {
            for name in names {
                pins.profile(name)?; // all or none
            }
            names.iter().try_for_each(|name| pins.apply(name))?;
            let Some(status) = ask(&run_dir, &Request::Refresh)? else {
                bail!(
                    "that is noted, but nobody holds pages: start `yolofs pin serve` or yolofs-pin.service"
                );
            };
            print(format.format(), &status, text::status)?;
        }
        PinVerb::Status { format } => {
            print(
                format.format(),
                &status(&run_dir, &pins, &Request::Status)?,
                text::status,
            )?;
        }
        PinVerb::Drop {
            names,
            all,
            forget,
            format,
        } => {
            let names = if *all { pins.applied()? } else { names.clone() };
            for name in &names {
                pins.drop_one(name)?;
                if *forget {
                    pins.forget(name)?;
                }
            }
            print(
                format.format(),
                &status(&run_dir, &pins, &Request::Refresh)?,
                text::status,
            )?;
        }
        PinVerb::Serve { budget, cgroup } => {
            let settings = ServeSettings {
                run_dir,
                pins,
                budget: budget.0,
                group: cgroup.clone(),
                manager: std::env::var_os("NOTIFY_SOCKET"),
            };
            serve(&settings, &Interrupt::install()?)?;
        }
    }
    Ok(Outcome::Done)
}

fn status(run_dir: &Path, pins: &PinDir, request: &Request) -> anyhow::Result<PinStatus> {
    ask(run_dir, request)?.map_or_else(|| status_of_nobody(pins), Ok)
}

fn record_profile(verb: &PinVerb, pins: &PinDir, run_dir: PathBuf) -> anyhow::Result<Outcome> {
    let PinVerb::Record {
        name,
        under,
        with,
        limit,
        before_after,
        format,
        command,
    } = verb
    else {
        bail!("pins are recorded by `yolofs pin record`");
    };
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let program = program.and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.clone().unwrap_or_else(|| program.to_owned());
    let order = Order {
        command: command.clone(),
        roots: under.clone(),
        with: with.clone(),
        limit: *limit,
        run_dir,
        method: before_after.then_some(Method::BeforeAfter),
    };
    let recorded = record(&order, &Interrupt::install()?).context("recording pins")?;
    if let Some(why) = &recorded.why {
        complain(&format!("yolofs: recorded less precisely: {why}"));
    }
    let profile = pins.keep(&name, &recorded.trace)?;
    let told = RecordedPins {
        bytes: profile.bytes(),
        file_bytes: profile.file_bytes(),
        files: profile.files.len(),
        name,
        method: recorded.method,
        why: recorded.why,
        lost_events: recorded.trace.lost,
        files_elsewhere: recorded.elsewhere,
    };
    print(format.format(), &told, text::recorded)?;
    Ok(Outcome::Done)
}
