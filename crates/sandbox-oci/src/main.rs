//! The program `sandbox-oci`: `runc`'s command line for containers that are made here; it executes `runc` for others.

#![forbid(unsafe_code)]

mod args;
mod log;
mod own_copy;
mod runc;

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use sandbox_oci::container::{self, Creation, Execution, Running, Whom};
use sandbox_oci::{OciError, Result};
use serde_json::Value;

use args::{Args, Command, Format};
use log::Log;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // What we do not know, runc may; what is asked of us, we answer.
        Err(error) if error.use_stderr() => return runc::take_over(None, &error.to_string()),
        Err(error) => error.exit(),
    };
    let log = Log::new(args.log.clone(), args.log_format);
    match run(&args, &log) {
        Ok(code) => code,
        Err(error) => {
            log.error(&error.to_string());
            eprintln!("sandbox-oci: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, log: &Log) -> Result<ExitCode> {
    if let Some(id) = args.command.container()
        && !container::is_ours(&args.root, id)?
    {
        return Ok(runc::take_over(Some(log), ""));
    }
    let root = &args.root;
    match &args.command {
        Command::Create(create) => {
            let foreign = match (
                args.systemd_cgroup,
                create.preserve_fds > 0 || create.no_pivot || create.no_new_keyring,
            ) {
                (true, _) => Some("--systemd-cgroup"),
                (_, true) => Some("--preserve-fds, --no-pivot or --no-new-keyring"),
                _ => None,
            };
            if let Some(why) = foreign {
                return Ok(runc::take_over(Some(log), why));
            }
            own_copy::run_from_it()?;
            let creation = Creation {
                id: create.id.clone(),
                bundle: create.bundle.clone(),
                pid_file: create.pid_file.clone(),
                console_socket: create.console_socket.clone(),
            };
            match container::create(root, &creation) {
                Err(OciError::NotHonoured(reasons)) => {
                    return Ok(runc::take_over(Some(log), &reasons.join("; ")));
                }
                created => created?,
            }
        }
        Command::Start { id } => container::start(root, id)?,
        Command::State { id } => say(&container::state(root, id)?),
        Command::Kill { id, signal, all } => {
            let whom = if *all { Whom::All } else { Whom::First };
            container::kill(root, id, args::signal(signal)?, whom)?;
        }
        Command::Delete { id, force } => {
            let running = if *force {
                Running::IsEnded
            } else {
                Running::IsRefused
            };
            container::delete(root, id, running)?;
        }
        Command::Exec(exec) => {
            own_copy::run_from_it()?;
            let code = container::exec(root, &Execution::from(exec.clone()))?;
            return Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from));
        }
        Command::Pause { id } => container::pause(root, id)?,
        Command::Resume { id } => container::resume(root, id)?,
        Command::Ps { id, format } => processes(&container::processes(root, id)?, *format)?,
        Command::Update { id, resources } => container::update(root, id, &limits(resources)?)?,
        Command::List { format, quiet } => return list(args, *format, *quiet, log),
        Command::Features => return Ok(runc::take_over(None, "features")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists our containers. If there are others, `runc` lists those.
fn list(args: &Args, format: Format, quiet: bool, log: &Log) -> Result<ExitCode> {
    let listed = container::list(&args.root)?;
    let mut all = listed.ours;
    if listed.has_others {
        all.extend(runc::listed(&args.root, log));
    }
    match (quiet, format) {
        (true, _) => all
            .iter()
            .for_each(|state| println!("{}", text(&state["id"]))),
        (false, Format::Json) => println!("{}", Value::from(all)),
        (false, Format::Table) => {
            println!(
                "{:<24} {:>8} {:<8} {:<31} BUNDLE",
                "ID", "PID", "STATUS", "CREATED"
            );
            for state in &all {
                let (id, status) = (text(&state["id"]), text(&state["status"]));
                let (created, bundle) = (text(&state["created"]), text(&state["bundle"]));
                println!(
                    "{id:<24} {:>8} {status:<8} {created:<31} {bundle}",
                    state["pid"]
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn say(value: &Value) {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    // Who does not read it any more does not need it.
    let _unread = writeln!(io::stdout(), "{text}");
}

fn processes(pids: &[u32], format: Format) -> Result<()> {
    if format == Format::Json {
        say(&Value::from(pids.to_vec()));
        return Ok(());
    }
    let list: Vec<_> = pids.iter().map(u32::to_string).collect();
    let listed = std::process::Command::new("ps")
        .args(["-f", "-p", &list.join(",")])
        .status();
    listed
        .map(drop)
        .map_err(|error| OciError::Invalid(format!("running ps: {error}")))
}

fn limits(path: &str) -> Result<Value> {
    let text = match path {
        "-" => {
            let mut text = String::new();
            io::stdin()
                .take(1 << 20)
                .read_to_string(&mut text)
                .map(|_| text)
        }
        path => std::fs::read_to_string(path),
    };
    let text =
        text.map_err(|error| OciError::Invalid(format!("reading limits from {path}: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| OciError::Invalid(format!("reading limits from {path}: {error}")))
}
