//! Containers of containerd: started through `ctr`, watched and ended through its interface.

use std::process::Command;
use std::time::Duration;

use containerd_client::services::v1::snapshots::RemoveSnapshotRequest;
use containerd_client::services::v1::{
    DeleteContainerRequest, DeleteTaskRequest, GetContainerRequest, GetRequest, KillRequest,
};

use super::{Containerd, PLAIN_LABEL};
use crate::call::Follow;
use crate::error::EngineError;

/// How often a task that was killed is looked at, until it is gone.
const GONE_EVERY: Duration = Duration::from_millis(20);
/// How many times: 30 s in all.
const GONE_TRIES: u32 = 1500;
/// SIGKILL; the interface requires the number.
const SIGKILL: u32 = 9;

/// What to run.
#[derive(Clone, Debug)]
pub struct CtrRun<'a> {
    /// The image's name.
    pub reference: &'a str,
    /// What the container is to be called.
    pub id: &'a str,
    /// Options of `ctr run`, before the image.
    pub options: &'a [String],
    /// The command, in place of the image's own; empty is the image's.
    pub command: &'a [String],
}

/// What to execute in a container.
#[derive(Clone, Debug)]
pub struct Exec<'a> {
    /// The container.
    pub id: &'a str,
    /// What the process is to be called: another name each time.
    pub exec_id: &'a str,
    /// The command.
    pub command: &'a [String],
}

impl Containerd {
    /// Starts a container in the foreground of a client that is followed: its output is the
    /// container's, and so is its exit code. It runs on the plain directories of its layers, and on
    /// mounts over these.
    ///
    /// # Errors
    /// If the client cannot be started.
    pub fn run(&self, run: &CtrRun<'_>) -> Result<Follow, EngineError> {
        let mut client = self.ctr();
        client
            .args(["run", "--snapshotter", &self.snapshotter])
            .args(["--snapshotter-label", &format!("{PLAIN_LABEL}=true")])
            .args(run.options)
            .args([run.reference, run.id])
            .args(run.command);
        let doing = format!("starting a container of {}", run.reference);
        Follow::start(&doing, client)
    }

    /// Executes a command in a container, as its own user and in its own environment.
    ///
    /// # Errors
    /// If the client cannot be started.
    pub fn exec(&self, exec: &Exec<'_>) -> Result<Follow, EngineError> {
        let mut client = self.ctr();
        client
            .args(["tasks", "exec", "--exec-id", exec.exec_id, exec.id])
            .args(exec.command);
        Follow::start(&format!("executing a command in {}", exec.id), client)
    }

    fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(&self.address)
            .args(["--namespace", &self.namespace]);
        command
    }

    /// Returns the first process of a container, if it runs.
    ///
    /// # Errors
    /// If containerd does not respond.
    pub fn pid(&self, id: &str) -> Result<Option<u32>, EngineError> {
        let doing = format!("asking containerd for the container {id}");
        let answer = self.call(&doing, async |client| {
            let request = GetRequest {
                container_id: id.to_owned(),
                exec_id: String::new(),
            };
            client.tasks().get(self.request(request)).await
        })?;
        let process = answer.and_then(|answer| answer.process);
        Ok(process.map(|process| process.pid).filter(|pid| *pid != 0))
    }

    /// Kills the processes of a container, and waits until its root is unmounted. Succeeds if it is
    /// gone.
    ///
    /// # Errors
    /// If containerd fails.
    pub fn kill(&self, id: &str) -> Result<(), EngineError> {
        let doing = format!("stopping the container {id}");
        let killed = self.call(&doing, async |client| {
            let request = KillRequest {
                container_id: id.to_owned(),
                exec_id: String::new(),
                signal: SIGKILL,
                all: true,
            };
            client.tasks().kill(self.request(request)).await
        })?;
        if killed.is_none() {
            return Ok(());
        }
        for _ in 0..GONE_TRIES {
            // Whoever started the task deletes it when it has ended; so do we. It is an error as
            // long as it has not.
            let deleted = self.call(&doing, async |client| {
                let container_id = id.to_owned();
                let request = DeleteTaskRequest { container_id };
                client.tasks().delete(self.request(request)).await
            });
            if deleted.is_ok() {
                return Ok(());
            }
            std::thread::sleep(GONE_EVERY);
        }
        let after = GONE_EVERY * GONE_TRIES;
        Err(EngineError::TimedOut { doing, after })
    }

    /// Kills and removes a container with its data. Succeeds if it is gone.
    ///
    /// # Errors
    /// If containerd fails.
    pub fn remove(&self, id: &str) -> Result<(), EngineError> {
        self.kill(id)?;
        let doing = format!("removing the container {id}");
        let found = self.call(&doing, async |client| {
            let request = GetContainerRequest { id: id.to_owned() };
            client.containers().get(self.request(request)).await
        })?;
        if found.is_none() {
            return Ok(());
        }
        self.call(&doing, async |client| {
            let request = DeleteContainerRequest { id: id.to_owned() };
            client.containers().delete(self.request(request)).await
        })?;
        self.call(&doing, async |client| {
            let request = RemoveSnapshotRequest {
                snapshotter: self.snapshotter.clone(),
                key: id.to_owned(), // what `ctr run` calls it
            };
            client.snapshots().remove(self.request(request)).await
        })?;
        Ok(())
    }
}
