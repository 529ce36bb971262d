//! Containers: started, watched, stopped.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::{Docker, LOOK_UP, parse};
use crate::call::{Follow, call};
use crate::error::EngineError;

/// How long Docker may take to start a container: on a contended disk that takes minutes.
const START: Duration = Duration::from_secs(300);
/// What removing a container may take beyond the time it has to end by itself.
const REMOVE: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// The image: its ID, so that a name that moves meanwhile changes nothing.
    pub image: String,
    /// Labels of the container, by which [`Docker::labelled`] finds it.
    pub labels: BTreeMap<String, String>,
    /// Options of `docker run`, before the image.
    pub options: Vec<String>,
    /// The command, in place of the image's own; empty is the image's.
    pub command: Vec<String>,
}

/// How a container's health check sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It has no health check.
    None,
    /// No check has succeeded yet.
    Starting,
    /// The last check succeeded.
    Healthy,
    /// The last checks failed.
    Unhealthy,
}

/// A container, as it was at the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Its ID: 64 hexadecimal digits.
    pub id: String,
    /// Whether its first process lives.
    pub is_running: bool,
    /// The exit code of the first process, if it has ended.
    pub exit_code: i64,
    /// The first process on the host, or 0.
    pub pid: u32,
    /// The result of its health check.
    pub health: Health,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The upper directory of its root, and the lower ones from the top down.
    pub graph: Vec<PathBuf>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContainerAnswer {
    id: String,
    state: State,
    #[serde(default)]
    network_settings: NetworkSettings,
    #[serde(default)]
    graph_driver: GraphDriver,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    running: bool,
    exit_code: i64,
    pid: u32,
    #[serde(default)]
    health: Option<HealthAnswer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthAnswer {
    status: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkSettings {
    networks: Option<BTreeMap<String, Network>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Network {
    #[serde(rename = "IPAddress")]
    ip_address: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct GraphDriver {
    data: Option<BTreeMap<String, String>>,
}

impl Docker {
    /// Starts a container and returns its ID.
    ///
    /// # Errors
    /// If Docker does not start it. Remains of it may exist; [`labelled`](Self::labelled)
    /// finds them.
    pub fn run(&self, request: &RunRequest) -> Result<String, EngineError> {
        let doing = format!("starting a container of {}", request.image);
        let mut args = vec!["run".to_owned(), "--detach".to_owned()];
        for (name, value) in &request.labels {
            args.extend(["--label".to_owned(), format!("{name}={value}")]);
        }
        args.extend_from_slice(&request.options);
        args.push(request.image.clone());
        args.extend_from_slice(&request.command);
        let stdout = self.ask(&doing, args, START)?.success()?;
        // Warnings are on standard error; the ID is all that is here.
        let id = parse::lines(&stdout).pop().unwrap_or_default();
        if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(id);
        }
        let why = "this is not the ID of a container".to_owned();
        Err(EngineError::Answer { doing, why })
    }

    /// Returns a container, or `None` if it is gone.
    ///
    /// # Errors
    /// If Docker does not respond.
    pub fn container(&self, id: &str) -> Result<Option<Container>, EngineError> {
        let doing = format!("asking Docker for the container {id}");
        let args = ["container", "inspect", "--format", "{{json .}}", "--", id];
        let answer = self.ask(&doing, args, LOOK_UP)?;
        let missing = answer
            .stderr
            .to_ascii_lowercase()
            .contains("no such container");
        if !answer.is_success() && missing {
            return Ok(None);
        }
        container(&doing, &answer.success()?).map(Some)
    }

    /// Follows the output of a container from its beginning.
    ///
    /// # Errors
    /// If the client cannot be started.
    pub fn logs(&self, id: &str) -> Result<Follow, EngineError> {
        let client = self.client(["container", "logs", "--follow", "--", id]);
        Follow::start(
            &format!("following the output of the container {id}"),
            client,
        )
    }

    /// Returns the IDs of all containers with a label.
    ///
    /// # Errors
    /// If Docker does not respond.
    pub fn labelled(&self, name: &str, value: &str) -> Result<Vec<String>, EngineError> {
        let filter = format!("label={name}={value}");
        let args = ["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter];
        let answer = self.ask("asking Docker for containers", args, LOOK_UP)?;
        Ok(parse::lines(&answer.success()?))
    }

    /// Stops a container: it is asked to end, and killed after `grace`. Succeeds if it is
    /// gone.
    ///
    /// # Errors
    /// If Docker fails.
    pub fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let doing = format!("stopping the container {id}");
        let secs = grace.as_secs().to_string();
        let args = ["stop", "--time", &secs, "--", id];
        self.undo(&doing, args.as_slice(), REMOVE + grace)
    }

    /// Kills and removes a container with its anonymous volumes. Succeeds if it is gone.
    ///
    /// # Errors
    /// If Docker fails.
    pub fn remove(&self, id: &str) -> Result<(), EngineError> {
        let doing = format!("removing the container {id}");
        let args = ["rm", "--force", "--volumes", "--", id];
        self.undo(&doing, args.as_slice(), REMOVE)
    }

    fn undo(&self, doing: &str, args: &[&str], patience: Duration) -> Result<(), EngineError> {
        let answer = call(doing, self.client(args), patience)?;
        let complaint = answer.stderr.to_ascii_lowercase();
        // With `--rm`, or another `rm` at the same time, somebody is at it already.
        let gone = ["no such container", "is already in progress"];
        if gone.iter().any(|words| complaint.contains(words)) {
            return Ok(());
        }
        answer.success().map(drop)
    }
}

fn container(doing: &str, stdout: &[u8]) -> Result<Container, EngineError> {
    let answer: ContainerAnswer = parse::json(doing, stdout)?;
    let health = answer.state.health.map(|health| health.status);
    let networks = answer.network_settings.networks.unwrap_or_default();
    let graph = answer.graph_driver.data.unwrap_or_default();
    let dirs = ["UpperDir", "LowerDir"].map(|name| graph.get(name).map_or("", String::as_str));
    Ok(Container {
        id: answer.id,
        is_running: answer.state.running,
        exit_code: answer.state.exit_code,
        pid: answer.state.pid,
        health: match health.as_deref() {
            None | Some("none" | "") => Health::None,
            Some("healthy") => Health::Healthy,
            Some("unhealthy") => Health::Unhealthy,
            Some(_) => Health::Starting,
        },
        addresses: networks
            .values()
            .filter_map(|network| network.ip_address.parse().ok())
            .collect(),
        graph: dirs
            .into_iter()
            .flat_map(|dirs| dirs.split(':'))
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_understood() {
        let json = r#"{"Id":"ab","State":{"Running":true,"ExitCode":0,"Pid":7,
            "Health":{"Status":"healthy"}},"NetworkSettings":{"Networks":{"none":{"IPAddress":""},
            "bridge":{"IPAddress":"172.17.0.2"}}},
            "GraphDriver":{"Data":{"UpperDir":"/u","LowerDir":"/i:/2:/1"}}}"#;
        let seen = container("asking", json.as_bytes()).unwrap();
        assert!(seen.is_running);
        assert_eq!((seen.pid, seen.health), (7, Health::Healthy));
        assert_eq!(seen.addresses, [IpAddr::from([172, 17, 0, 2])]);
        assert_eq!(seen.graph, ["/u", "/i", "/2", "/1"].map(PathBuf::from));
        let json = r#"{"Id":"ab","State":{"Running":false,"ExitCode":3,"Pid":0},
            "NetworkSettings":{"Networks":null},"GraphDriver":{"Data":null}}"#;
        let seen = container("asking", json.as_bytes()).unwrap();
        assert_eq!((seen.exit_code, seen.health), (3, Health::None));
        assert!(seen.graph.is_empty());
    }
}
