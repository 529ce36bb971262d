//! `yolofs doctor`.

use std::path::PathBuf;

use diagnosis::{Containerd, Docker, Finding, Machine, Verdict};

use super::status::all_mounts;
use crate::exit::Outcome;
use crate::output::{FormatArg, count, print};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use host::rights::missing_for;
use host::run_dir::RunDir;

/// Look for what keeps yolofs from working, or from being fast, on this machine
///
/// Each check says what it found and how to cure it: the kernel, the store, the node, the mounts, and the
/// configurations of containerd and Docker, which are read as the engines read them. Nothing is changed.
/// Exits with 4 if something does not work.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// Look at the containerd with this configuration only
    #[arg(long, value_name = "FILE")]
    containerd_config: Option<PathBuf>,
    /// Look at the Docker with this configuration only
    #[arg(long, value_name = "FILE")]
    docker_config: Option<PathBuf>,
    /// Show also what is as it should be
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(
    args: &DoctorArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
) -> anyhow::Result<Outcome> {
    let mut findings = Machine::default().check();
    findings.push(diagnosis::store::check(&store.absolute()));
    findings.push(diagnosis::nodes::check());
    findings.extend(mounts(run_dir));
    findings.extend(engines(args));
    let worst = findings.iter().map(|finding| finding.verdict).max();
    print(args.format.format(), &findings, |all| text(all, args.all))?;
    Ok(match worst {
        Some(Verdict::Fault) => Outcome::Different,
        _ => Outcome::Done,
    })
}

/// A part that cannot be looked at is a finding, too: the others are still looked at.
fn mounts(run_dir: &RunDirArg) -> Vec<Finding> {
    // To look makes no directory.
    if !run_dir.run_dir.exists() {
        return diagnosis::mounts::check(&[]);
    }
    let mounts = RunDir::open(&run_dir.run_dir).and_then(|run_dir| all_mounts(&run_dir));
    match mounts {
        Ok(mounts) => diagnosis::mounts::check(&mounts),
        Err(error) => {
            let cure = match missing_for(&error) {
                Some(_) => "run this as root, or name another --run-dir",
                None => "systemctl restart yolofs-node, or name another --run-dir",
            };
            vec![Finding::fault("mounts", format!("{error:#}"), cure)]
        }
    }
}

fn engines(args: &DoctorArgs) -> Vec<Finding> {
    let unread = |check, error: anyhow::Error| {
        let cure = "correct the file; the engine would not start with it either";
        vec![Finding::fault(check, format!("{error:#}"), cure)]
    };
    let mut findings = match Containerd::find(args.containerd_config.as_deref()) {
        Ok(all) => all.iter().flat_map(Containerd::check).collect(),
        Err(error) => unread("containerd-config", error.context("looking at containerd")),
    };
    findings.extend(match Docker::find(args.docker_config.as_deref()) {
        Ok(docker) => docker.iter().flat_map(Docker::check).collect(),
        Err(error) => unread("docker-config", error.context("looking at Docker")),
    });
    findings
}

fn text(findings: &[Finding], all: bool) -> String {
    let mut text = String::new();
    let shown = findings
        .iter()
        .filter(|f| all || f.verdict != Verdict::Fine);
    for finding in shown {
        let word = match finding.verdict {
            Verdict::Fine => "fine",
            Verdict::Advice => "advice",
            Verdict::Fault => "FAULT",
        };
        text += &format!("{word:<7} {}: {}\n", finding.check, finding.what);
        if let Some(cure) = &finding.cure {
            text += &format!("        cure: {cure}\n");
        }
    }
    let number = |verdict| findings.iter().filter(|f| f.verdict == verdict).count() as u64;
    let (faults, advice) = (number(Verdict::Fault), number(Verdict::Advice));
    let checks = findings.len() as u64;
    text += &format!(
        "{}: {}, advice on {advice}",
        count(checks, "check"),
        count(faults, "fault")
    );
    text
}
