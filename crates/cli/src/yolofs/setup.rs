//! `yolofs setup`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use diagnosis::containerd::{Options, Use};
use diagnosis::docker::{LayerStore, Layers};
use diagnosis::plan::{DEFAULT_RECORD, undo};
use diagnosis::{Containerd, Docker, Machine, Plan};

use crate::exit::Outcome;
use crate::output::{Format, FormatArg, print};

/// What is to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// The Docker of this machine; its layers stay where they are, or move from containerd to the snapshotter
    Docker,
    /// containerd: ctr, nerdctl and others ask for the snapshotter yolofs
    Containerd,
    /// containerd, with pods on the snapshotter yolofs
    Kubernetes,
}

/// Have a container engine of this machine use yolofs
///
/// Looks at what runs and how it is configured, and says which files it would write; writes them with --yes.
/// It writes files beside the engine's own where the engine reads such, starts and restarts nothing unless
/// told to, and takes everything back with --undo. Without an engine's name, it tells which there are.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SetupArgs {
    /// The engine
    #[arg(value_name = "NAME")]
    engine: Option<Engine>,
    /// Write the files
    #[arg(long, requires = "engine")]
    yes: bool,
    /// Run the commands that make it take effect, too
    #[arg(long, requires = "yes")]
    restart: bool,
    /// Take back what was written, and nothing that was changed since
    #[arg(long, conflicts_with_all = ["engine", "yes", "runtime_class", "in_place", "containerd_config", "docker_config"])]
    undo: bool,
    /// For pods of the RuntimeClass yolofs only, not for all
    #[arg(long, requires = "engine")]
    runtime_class: bool,
    /// Serve the layers of a Docker that keeps them in containerd where they are: its configuration stays as it is
    #[arg(long, requires = "engine")]
    in_place: bool,
    /// The configuration of containerd, if it is not that of the one that runs
    #[arg(long, value_name = "FILE")]
    containerd_config: Option<PathBuf>,
    /// The configuration of Docker, if it is not that of the one that runs
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,
    /// Socket of `yolofs snapshotter`
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/run/yolofs/snapshotter.sock"
    )]
    address: PathBuf,
    /// Directory of `yolofs snapshotter`
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/yolofs/snapshotter"
    )]
    root: PathBuf,
    /// Where it is written down what was changed
    #[arg(long, value_name = "FILE", default_value = DEFAULT_RECORD)]
    record: PathBuf,
    /// Where systemd's own files are
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &SetupArgs) -> anyhow::Result<Outcome> {
    if args.undo {
        return take_back(args);
    }
    let Some(engine) = args.engine else {
        print(args.format.format(), &seen(args)?, |plan| {
            lines("sees", &plan.sees) + &lines("then", &plan.then)
        })?;
        return Ok(Outcome::Done);
    };
    ensure!(
        !args.runtime_class || engine == Engine::Kubernetes,
        "--runtime-class is for kubernetes"
    );
    ensure!(
        !args.in_place || engine == Engine::Docker,
        "--in-place is for docker"
    );
    let layers = match args.in_place {
        true => Layers::Stay,
        false => Layers::Move,
    };
    let mut plan = Plan::default();
    plan.saw(format!("Linux {}", Machine::default().kernel()));
    let options = Options {
        used: match engine {
            Engine::Kubernetes if args.runtime_class => Use::RuntimeHandler,
            Engine::Kubernetes => Use::Pods,
            Engine::Docker | Engine::Containerd => Use::OnRequest,
        },
        address: args.address.clone(),
        root: args.root.clone(),
    };
    let mut containerd = None;
    if engine == Engine::Docker {
        let docker = Docker::find(args.docker_config.as_deref())?;
        let docker =
            docker.context("there is no Docker: neither does dockerd run, nor is it installed")?;
        let moves = docker.store() != LayerStore::Classic && layers == Layers::Move;
        if moves && docker.containerd().is_some() {
            containerd = Some(the_containerd(args, docker.containerd())?);
        }
        if let Some(containerd) = &containerd {
            plan.join(containerd.plan(&options)?);
        }
        let etc = args.record.parent().unwrap_or(Path::new("/etc/yolofs"));
        plan.join(docker.plan(layers, etc, &args.units)?);
    } else {
        let found = the_containerd(args, None)?;
        plan.join(found.plan(&options)?);
        containerd = Some(found);
    }
    if args.format.format() == Format::Text || !args.yes {
        print(args.format.format(), &plan, |plan| text(plan, args.yes))?;
    }
    if !args.yes {
        return Ok(Outcome::Done);
    }
    plan.apply(&args.record, || match &mut containerd {
        Some(containerd) => containerd.confirm(&options),
        None => Ok(()),
    })?;
    if args.format.format() == Format::Json {
        print(Format::Json, &plan, |_| String::new())?;
    }
    if args.restart {
        plan.then.iter().try_for_each(|command| obey(command))?;
    }
    Ok(Outcome::Done)
}

/// Tells which engines there are.
fn seen(args: &SetupArgs) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
    plan.saw(format!("Linux {}", Machine::default().kernel()));
    for containerd in Containerd::find(args.containerd_config.as_deref())? {
        plan.saw(containerd.name());
        plan.then("yolofs setup containerd    # or kubernetes");
    }
    if let Some(docker) = Docker::find(args.docker_config.as_deref())? {
        plan.saw(docker.name());
        plan.then("yolofs setup docker");
    }
    Ok(plan)
}

/// Finds the one containerd that is meant.
fn the_containerd(args: &SetupArgs, socket: Option<&Path>) -> anyhow::Result<Containerd> {
    let mut found = Containerd::find(args.containerd_config.as_deref())?;
    if let Some(socket) = socket
        && found.iter().any(|one| one.socket() == socket)
    {
        found.retain(|one| one.socket() == socket);
    }
    match found.len() {
        0 => bail!("there is no containerd: neither does it run, nor is it installed"),
        1 => found.pop().context("there is one"),
        _ => {
            let names: Vec<_> = found.iter().map(Containerd::name).collect();
            bail!(
                "several run: {}; name the configuration of one with --containerd-config",
                names.join(", ")
            )
        }
    }
}

fn take_back(args: &SetupArgs) -> anyhow::Result<Outcome> {
    let undone = undo(&args.record)?;
    print(args.format.format(), &undone, |undone| {
        let mut text = String::new();
        for path in &undone.restored {
            text += &format!("as it was: {}\n", path.display());
        }
        for path in &undone.kept {
            text += &format!(
                "left alone, because somebody changed it since: {}\n",
                path.display()
            );
        }
        if text.is_empty() {
            text += "there is nothing to take back";
        } else {
            text += "restart the engine for it to take effect";
        }
        text
    })?;
    Ok(if undone.kept.is_empty() {
        Outcome::Done
    } else {
        Outcome::Different
    })
}

/// Runs a command of a plan; what follows its `#` is for people.
fn obey(command: &str) -> anyhow::Result<()> {
    let words = command.split('#').next().unwrap_or_default();
    let mut words = words.split_whitespace();
    let program = words.next().context("an empty command")?;
    let status = Command::new(program).args(words).status();
    let status = status.with_context(|| format!("running {command}"))?;
    ensure!(status.success(), "{command} failed: {status}");
    Ok(())
}

fn text(plan: &Plan, written: bool) -> String {
    let mut text = lines("sees", &plan.sees);
    let verb = if written { "writes" } else { "would write" };
    for change in &plan.changes {
        let kind = if change.before.is_some() {
            ", changed"
        } else {
            ""
        };
        text += &format!("{verb} {}{kind}: {}\n", change.path.display(), change.why);
        for line in change.lines() {
            text += &format!("    {line}\n");
        }
    }
    text += &lines("note", &plan.notes);
    if plan.changes.is_empty() {
        text += "all files are as they should be\n";
    } else if !written {
        text += "nothing is changed without --yes\n";
    }
    text + &lines("then", &plan.then)
}

fn lines(word: &str, all: &[String]) -> String {
    let line = |one: &String| format!("{word:<7} {one}\n");
    all.iter().map(line).collect()
}
