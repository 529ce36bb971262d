//! `soak`: runs scenarios for a time, or so many times, and says what it found.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use clap::Parser;
use e2e::{
    Base, Bench, Guest, Rng, SCENARIOS, Scale, Scenario, Tally, jump_in_guest, look_when_told,
    map_until_told,
};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};

/// Do harm to real mounts while others read from them, and prove that nothing was lost.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Args {
    /// Go on for so many hours
    #[arg(long, conflicts_with_all = ["minutes", "runs"])]
    hours: Option<f64>,
    /// Go on for so many minutes
    #[arg(long, conflicts_with = "runs")]
    minutes: Option<f64>,
    /// Run each scenario so many times [default: 1]
    #[arg(long)]
    runs: Option<u64>,
    /// Run this scenario alone; may be given several times
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// Do what was done with this seed [default: one of the clock's]
    #[arg(long)]
    seed: Option<u64>,
    /// How many seconds the harm of one run goes on
    #[arg(long, default_value_t = 5)]
    length: u64,
    /// How many mounts there are in the scenarios with many [default: 20 for each second of
    /// --length, 200 at most]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=2048))]
    mounts: Option<u64>,
    /// Have these read, too, wherever nothing may fail; they take some seconds to start
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    readers: Vec<Guest>,
    /// Name the scenarios and what they do
    #[arg(long)]
    list: bool,
}

static END: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Nothing was wrong.
const SOUND: u8 = 0;
/// A run failed.
const FAULTS: u8 = 4;
/// Nothing was wrong, but not all was done that was asked for.
const INTERRUPTED: u8 = 130;

fn run() -> anyhow::Result<u8> {
    let words: Vec<_> = std::env::args_os().collect();
    match words.get(1).and_then(|word| word.to_str()) {
        Some("__map") => return map(&words[2..]).map(|()| SOUND),
        Some("__look") => return look(&words[2..]).map(|()| SOUND),
        Some("__jump") => return jump(&words[2..]).map(|()| SOUND),
        _ => {}
    }
    let args = Args::parse();
    if args.list {
        for scenario in SCENARIOS {
            let asked = if scenario.asked {
                " (only if named)"
            } else {
                ""
            };
            println!("{:<22} {}{asked}", scenario.name, scenario.what);
        }
        return Ok(SOUND);
    }
    let scenarios = choose(&args.only)?;
    ensure!(
        nix::unistd::geteuid().is_root(),
        "this mounts file systems: run it as root"
    );
    keep_mounts_apart().context("making a mount namespace")?;
    catch_interrupts()?;
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let seed = args.seed.unwrap_or(clock);
    println!("seed {seed}");
    let base = Base::new(&args.readers)?;
    let scale = Scale {
        length: Duration::from_secs(args.length),
        mounts: args.mounts,
    };
    let hours = args
        .hours
        .or_else(|| args.minutes.map(|minutes| minutes / 60.0));
    let end = hours.map(|hours| Instant::now() + Duration::from_secs_f64(hours * 3600.0));
    let mut soak = Soak {
        rng: Rng::new(seed),
        totals: vec![(0, Tally::default(), 0); scenarios.len()],
        failed: 0,
    };
    let rounds = if end.is_some() {
        u64::MAX
    } else {
        args.runs.unwrap_or(1)
    };
    'soak: for round in 0..rounds {
        for (place, scenario) in scenarios.iter().enumerate() {
            if END.load(Relaxed) || end.is_some_and(|end| Instant::now() >= end) {
                break 'soak;
            }
            // A seed that was given is that of the first run, so that a failure can be repeated.
            let seed = match (round, args.seed) {
                (0, Some(seed)) => seed,
                _ => soak.rng.number(),
            };
            soak.run(place, scenario, &base, seed, scale)?;
        }
    }
    soak.summary(&scenarios);
    Ok(match soak.failed {
        0 if END.load(Relaxed) => INTERRUPTED,
        0 => SOUND,
        _ => FAULTS,
    })
}

/// What has been found so far.
struct Soak {
    rng: Rng,
    /// Runs, what readers saw, and harms, for each scenario.
    totals: Vec<(u64, Tally, u64)>,
    failed: u64,
}

impl Soak {
    fn run(
        &mut self,
        place: usize,
        scenario: &Scenario,
        base: &Base,
        seed: u64,
        scale: Scale,
    ) -> anyhow::Result<()> {
        let finding = Bench::run(scenario, base, seed, scale)?;
        let verdict = if finding.fault.is_some() {
            "FAILED"
        } else {
            "ok"
        };
        println!(
            "{verdict:<6} {:<18} {:>5.1} s, {} harms; {}",
            scenario.name,
            finding.took.as_secs_f64(),
            finding.harms,
            finding.tally
        );
        for figure in &finding.figures {
            println!("      {figure}");
        }
        if let Some(fault) = &finding.fault {
            self.failed += 1;
            println!("      {fault:#}");
            println!("      again: soak --only {} --seed {seed}", scenario.name);
        }
        let (runs, tally, harms) = &mut self.totals[place];
        *runs += 1;
        *harms += finding.harms;
        tally.add(&finding.tally);
        Ok(())
    }

    fn summary(&self, scenarios: &[Scenario]) {
        println!("\nall runs together");
        for (scenario, (runs, tally, harms)) in scenarios.iter().zip(&self.totals) {
            if *runs > 0 {
                println!("{:<18} {runs} runs, {harms} harms; {tally}", scenario.name);
            }
        }
        println!("{} runs failed", self.failed);
    }
}

fn choose(only: &[String]) -> anyhow::Result<Vec<Scenario>> {
    if only.is_empty() {
        let all = SCENARIOS.iter().filter(|scenario| !scenario.asked);
        return Ok(all.copied().collect());
    }
    let find = |name: &String| {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == name);
        found
            .copied()
            .with_context(|| format!("there is no scenario {name}: see --list"))
    };
    only.iter().map(find).collect()
}

/// Gives this process and all it starts a mount namespace of their own. Whoever makes another one on
/// this machine meanwhile, such as an engine that starts a container, would keep a copy of our
/// mounts in it, and with it their workers. What is mounted outside comes in, nothing gets out.
fn keep_mounts_apart() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Shared within, as it is on machines with systemd.
    for how in [MsFlags::MS_SLAVE, MsFlags::MS_SHARED] {
        let none = None::<&str>;
        mount(none, "/", none, how | MsFlags::MS_REC, none)?;
    }
    Ok(())
}

/// Has Ctrl-C end the soak after the run that is going on, so that nothing is left behind.
fn catch_interrupts() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("holding signals back")?;
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            eprintln!("{signal}: ending after this run");
            END.store(true, Relaxed);
        }
    });
    Ok(())
}

/// The process that reads through mappings: see the library.
fn map(words: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let [root, pristine, seed] = words else {
        bail!("__map ROOT PRISTINE SEED");
    };
    let seed = seed.to_str().context("the seed is no text")?.parse()?;
    let tally = map_until_told(&PathBuf::from(root), &PathBuf::from(pristine), seed)?;
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}

/// The process that looks at a file in a virtual machine: see the library.
fn look(words: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let [file] = words else {
        bail!("__look FILE");
    };
    look_when_told(file.as_ref())
}

/// What runs in a virtual machine whose clock jumps: see the library.
fn jump(words: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let [seed, seconds] = words else {
        bail!("__jump SEED SECONDS");
    };
    let number = |word: &std::ffi::OsString| -> anyhow::Result<u64> {
        Ok(word.to_str().context("not a number")?.parse()?)
    };
    jump_in_guest(number(seed)?, Duration::from_secs(number(seconds)?))
}
