//! Starting a worker, and waiting until it accepts requests.

use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use confine::Identity;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{User, geteuid};

use super::{Pool, Worker, images};
use crate::network::{NETWORK_ENV, NetworkWorker};
use crate::wire;
use crate::wire::{WorkerRequest, WorkerResponse};
use host::run_dir::process_start;
use mounting::confinement::ImageNeeds;
use node_api::spec::MountSpec;
use node_records::company::Company;
use node_records::instance::ProcessRef;

/// How long a worker may take until it listens.
const START: Duration = Duration::from_secs(30);

impl Pool {
    /// Makes sure that a program can be a worker that understands us.
    ///
    /// # Errors
    /// If it cannot.
    pub(crate) fn try_out(&self, program: &Path) -> anyhow::Result<()> {
        let worker = self.start(program, Company::Alone, None, None)?;
        let answer = worker.ask(&WorkerRequest::Status { id: None }, START);
        worker.kill();
        let _cause = worker.wait();
        let _gone = std::fs::remove_file(&worker.socket);
        match answer? {
            WorkerResponse::Status(_) => Ok(()),
            other => bail!("unexpected response: {other:?}"),
        }
    }

    /// Starts one, for a mount if it is known for which, or for an image with these needs.
    pub(super) fn start(
        &self,
        program: &Path,
        company: Company,
        mount: Option<&MountSpec>,
        images: Option<ImageNeeds>,
    ) -> anyhow::Result<Worker> {
        let network = mount.and_then(|spec| {
            let network = NetworkWorker::of(spec, self.user)?;
            Some((network, spec.nic.as_ref()?))
        });
        let network = network.map(|(network, nic)| {
            match network.give_cache(nic, self.user) {
                // Nobody asked for it: the worker does without.
                Err(error) if !nic.fill => log::warn!("nothing is kept of what comes: {error:#}"),
                given => given?,
            }
            network.variable()
        });
        let user = self.user;
        let user = user.map(|Identity { uid, gid }| format!("--user={uid}:{gid}"));
        let more = match &company {
            Company::Shared | Company::Alone => [user, None],
            // Who it becomes is said with the rest.
            Company::OnNetwork => [Some("--network".to_owned()), None],
            Company::OfImages(_) => [Some("--images".to_owned()), user],
        };
        let (images, rights) = self.image_settings(images)?;
        let mut command = Command::new(program);
        command
            .arg("--run-dir")
            .arg(&self.run_dir)
            .arg("worker")
            .args(more.into_iter().flatten())
            .envs(self.told.iter().cloned())
            .env_remove(NETWORK_ENV)
            .env_remove(images::NEEDS_ENV)
            .envs(network.transpose()?)
            .envs(images)
            .envs(home())
            // What was meant for the node alone.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .env_remove("NOTIFY_SOCKET")
            .env_remove(fdstore::KEEPER_PID)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // What is typed at the node's terminal is not for its workers.
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting a worker ({})", program.display()))?;
        let started = child
            .stdout
            .take()
            .context("a worker without standard output")
            .and_then(|stdout| await_word(stdout, Instant::now() + START))
            .and_then(|()| process_start(child.id()));
        match started {
            Ok(started) => {
                let pid = child.id();
                let process = ProcessRef { pid, started };
                let kind = (company, rights);
                let worker = Worker::new(process, &self.run_dir, kind, Some(child))?;
                if let Some(spec) = mount
                    && let Err(error) = worker.connect_for(spec)
                {
                    // It has its mount all the same: reading through the cache and the origin goes on.
                    log::warn!("worker {pid} connects by itself, if it may: {error:#}");
                }
                Ok(worker)
            }
            Err(error) => {
                let _killed = child.kill();
                let status = child.wait().context("waiting for a worker")?;
                Err(error.context(format!("starting a worker ({status})")))
            }
        }
    }
}

/// Returns the variable that names the home of this user, if it is missing: the logins of registries in it are also those
/// of workers, which become another user.
fn home() -> Option<(&'static str, PathBuf)> {
    const HOME: &str = "HOME";
    if std::env::var_os(HOME).is_some() {
        return None;
    }
    let user = User::from_uid(geteuid()).ok().flatten()?;
    Some((HOME, user.dir))
}

/// Waits until a worker says that it listens.
fn await_word(stdout: ChildStdout, deadline: Instant) -> anyhow::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let mut wait = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
    let patience = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    // Interrupted is as good as early: what follows waits, too.
    if poll(&mut wait, patience) == Ok(0) {
        bail!("it was not ready within {} s", START.as_secs());
    }
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .context("listening to a worker")?;
    if line.trim_end() != wire::READY {
        bail!("it ended before it listened");
    }
    Ok(())
}
