//! The commands.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap_complete::Shell;
use sandbox::{
    BaseSpec, Cause, Exit, ExitStatus, Limits, Network, Phase, Python, Request, ZygoteSpec,
};
use sandbox_handlers::{HandlerSpec, Runtime};
use sandbox_service::bodies::{
    AddPackages, Create, Created, Exec, Output, PackageSource, WAIT_MAX_MS,
};
use sandbox_service::client::Client;

use crate::args::{
    BaseCommand, Command, ExecArgs, HandlerCommand, NetworkArg, PackageCommand, PythonArgs,
    RunArgs, RuntimeArg, Sandbox, ZygoteCommand,
};
use crate::serve::{serve, socket};
use crate::show;
use crate::text::{Format, print, print_json, write_out};

/// The exit code of a command that failed, and of a program that was killed by the timeout: as `docker run` and
/// `timeout(1)` have them.
pub(crate) const FAILED: u8 = 125;
const LATE: u8 = 124;

/// Runs the command line.
pub(crate) fn run(args: &Sandbox) -> anyhow::Result<ExitCode> {
    let client = Client::at(socket(&args.run_dir));
    let format = match args.json {
        true => Format::Json,
        false => Format::Text,
    };
    match &args.command {
        Command::Serve(args_of) => serve(&args.run_dir, args_of)?,
        Command::Base(command) => base(&client, format, command)?,
        Command::Handler(command) => handler(&client, format, command)?,
        Command::Call { name, event } => {
            let event = serde_json::from_str(event).context("reading the event as JSON")?;
            let value = client.call_handler(name, &event)?;
            print_json(&value)?;
        }
        Command::Package(command) => package(&client, format, command)?,
        Command::Zygote(command) => zygote(&client, format, command)?,
        Command::Run(args) => return start(&client, format, args),
        Command::Exec(args) => return exec(&client, format, args),
        Command::Ps => print(format, &client.list()?, |views| show::sandboxes(views))?,
        Command::Logs(of) => {
            let seen = client.wait(&of.id, Duration::ZERO)?;
            match format {
                Format::Json => print_json(&seen)?,
                Format::Text => relay(&seen.output.unwrap_or_default())?,
            }
        }
        Command::Pause(of) => client.act(&of.id, "pause")?,
        Command::Resume(of) => client.act(&of.id, "resume")?,
        Command::Kill(of) => client.kill(&of.id)?,
        Command::Explain(of) => {
            let seen = client.wait(&of.id, Duration::ZERO)?;
            print(format, &seen.sandbox, show::explain)?;
        }
        Command::Stats => print(format, &client.stats()?, show::stats)?,
        Command::Evict(of) => client.evict(&of.id)?,
        Command::Completions { shell } => completions(*shell)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> anyhow::Result<()> {
    // Through memory: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), "sandbox", &mut script);
    write_out(std::str::from_utf8(&script).context("reading the completions")?)
}

fn base(client: &Client, format: Format, command: &BaseCommand) -> anyhow::Result<()> {
    match command {
        BaseCommand::Add { name, root, hide } => client.add_base(&BaseSpec {
            name: name.clone(),
            root: absolute(root)?,
            hide: hide.clone(),
        })?,
        BaseCommand::Ls => print(format, &client.bases()?, |bases| {
            let lines = bases
                .iter()
                .map(|base| format!("{}\t{}\n", base.name, base.root.display()));
            lines.collect()
        })?,
        BaseCommand::Rm { name } => client.remove_base(name)?,
    }
    Ok(())
}

fn package(client: &Client, format: Format, command: &PackageCommand) -> anyhow::Result<()> {
    match command {
        PackageCommand::Add {
            base,
            interpreter,
            index,
            from,
            build,
            pip,
            requirements,
        } => {
            let added = client.add_packages(&AddPackages {
                base: base.clone(),
                interpreter: interpreter.clone(),
                requirements: requirements.clone(),
                from: match from {
                    Some(dir) => PackageSource::Directory(absolute(dir)?),
                    None => PackageSource::Index(index.clone()),
                },
                build: build.clone(),
                pip: pip.as_deref().map(absolute).transpose()?,
            })?;
            print(format, &added, |added| added.packages.join("\n"))
        }
        PackageCommand::List => print(format, &client.packages()?, |all| show::packages(all)),
        PackageCommand::Remove { base, package } => Ok(client.remove_package(base, package)?),
    }
}

fn zygote(client: &Client, format: Format, command: &ZygoteCommand) -> anyhow::Result<()> {
    match command {
        ZygoteCommand::Add {
            base,
            python,
            module,
            memory,
        } => {
            let spec = ZygoteSpec {
                base: base.clone(),
                interpreter: python.interpreter.clone(),
                packages: python.package.iter().cloned().collect(),
                modules: module.clone(),
                store: python.store.as_deref().map(absolute).transpose()?,
                memory_bytes: memory << 20,
                learned: None,
            };
            let made = client.add_zygote(&spec)?;
            print(format, &made, |made| format!("{}\n", made.id))
        }
        ZygoteCommand::Ls => print(format, &client.zygotes()?, |views| show::zygotes(views)),
    }
}

fn handler(client: &Client, format: Format, command: &HandlerCommand) -> anyhow::Result<()> {
    match command {
        HandlerCommand::Add(args) => {
            let (runtime, interpreter) = match args.runtime {
                RuntimeArg::Python => (Runtime::Python, "/usr/bin/python3"),
                RuntimeArg::Node => (Runtime::Node, "/usr/bin/node"),
            };
            let interpreter = args.interpreter.as_deref().unwrap_or(interpreter);
            client.add_handler(&HandlerSpec {
                runtime,
                interpreter: interpreter.to_owned(),
                requires: args.require.clone(),
                environment: environment(&args.env)?,
                network: network(args.network),
                limits: Limits {
                    memory_bytes: args.memory << 20,
                    ..Limits::default()
                },
                instances_max: args.instances,
                queue_max: args.queue,
                timeout_ms: args.timeout.saturating_mul(1000),
                ..HandlerSpec::python(&args.name, &args.base, absolute(&args.code)?)
            })?;
        }
        HandlerCommand::Ls => print(format, &client.handlers()?, |all| show::handlers(all))?,
        HandlerCommand::Rm { name } => client.remove_handler(name)?,
    }
    Ok(())
}

fn environment(variables: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut environment = BTreeMap::new();
    for variable in variables {
        let Some((name, value)) = variable.split_once('=') else {
            anyhow::bail!("--env {variable}: this is no NAME=VALUE");
        };
        environment.insert(name.to_owned(), value.to_owned());
    }
    Ok(environment)
}

fn network(kind: NetworkArg) -> Network {
    match kind {
        NetworkArg::None => Network::None,
        NetworkArg::Veth => Network::Veth,
        NetworkArg::Host => Network::Host,
    }
}

fn request(args: &RunArgs) -> anyhow::Result<Request> {
    let PythonArgs {
        interpreter,
        package,
        store,
    } = &args.packages;
    let python = args.python.then(|| Python {
        interpreter: interpreter.clone(),
        packages: package.iter().cloned().collect(),
    });
    let dir = |dir: &Option<PathBuf>| dir.as_deref().map(absolute).transpose();
    Ok(Request {
        base: args.base.clone(),
        command: args.command.clone(),
        python,
        environment: environment(&args.env)?,
        code: dir(&args.code)?,
        packages: dir(store)?,
        scratch: dir(&args.scratch)?,
        network: network(args.network),
        limits: Limits {
            memory_bytes: args.memory << 20,
            processes: args.processes,
            cpu_millis: args.cpu,
            ..Limits::default()
        },
        timeout_ms: args.timeout.map(|seconds| seconds.saturating_mul(1000)),
    })
}

/// The daemon has a directory of its own, so paths are made absolute by ours.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("opening {}", path.display()))
}

fn start(client: &Client, format: Format, args: &RunArgs) -> anyhow::Result<ExitCode> {
    let wait_ms = if args.detach { 0 } else { WAIT_MAX_MS };
    let request = request(args)?;
    let requires = args.require.clone();
    let mut seen = client.create(&Create {
        request,
        wait_ms,
        requires,
    })?;
    if args.detach {
        print(format, &seen, |seen| format!("{}\n", seen.sandbox.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        if let Phase::Ended(exit) = seen.sandbox.phase {
            return tell_end(format, &seen, exit);
        }
        seen = client.wait(&seen.sandbox.id, Duration::from_millis(WAIT_MAX_MS))?;
    }
}

fn tell_end(format: Format, seen: &Created, exit: Exit) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => print_json(seen)?,
        Format::Text => relay(&seen.output.clone().unwrap_or_default())?,
    }
    if exit.cause == Some(Cause::Memory) {
        crate::text::complain("sandbox: it wanted more memory than it may have (--memory)");
    }
    Ok(match (exit.cause, exit.status) {
        (Some(Cause::Timeout), _) => ExitCode::from(LATE),
        (_, status) => code_of(status),
    })
}

fn exec(client: &Client, format: Format, args: &ExecArgs) -> anyhow::Result<ExitCode> {
    let exec = Exec {
        command: args.command.clone(),
        timeout_ms: args.timeout.saturating_mul(1000),
    };
    let executed = client.exec(&args.id, &exec)?;
    match format {
        Format::Json => print_json(&executed)?,
        Format::Text => relay(&executed.output)?,
    }
    Ok(executed.status.map_or(ExitCode::from(LATE), code_of))
}

/// Says of a program what a shell would.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
        ExitStatus::Unknown => i32::from(FAILED),
    };
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(FAILED))
}

/// Passes on what a program wrote.
fn relay(output: &Output) -> anyhow::Result<()> {
    crate::text::write_out(&output.stdout)?;
    let _unread = std::io::stderr().write_all(output.stderr.as_bytes());
    if output.dropped_bytes > 0 {
        let dropped = output.dropped_bytes;
        crate::text::complain(&format!(
            "sandbox: {dropped} more bytes of output were not kept"
        ));
    }
    Ok(())
}
