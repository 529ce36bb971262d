//! Debian's docker-registry: the upstream, the pull-through proxy that nicfetch is measured
//! against, and what ranges of a blob are read from.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::http::Connection;
use crate::process::{Guard, run_ok, wait_for};

/// It comes up within a second.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// Hashing a file.
const HASH_DEADLINE: Duration = Duration::from_secs(60);

/// A registry that runs until it is dropped.
#[derive(Debug)]
pub struct Registry {
    process: Guard,
    address: SocketAddr,
}

impl Registry {
    /// Starts one that listens at `address` and keeps everything below `dir`; with `upstream`, a
    /// URL, it is a pull-through proxy of it. `command` begins with what has to run before it, and
    /// is empty otherwise.
    ///
    /// # Errors
    /// If it is not installed, or does not come up; its log is in `dir`.
    pub fn start(
        mut command: Command,
        dir: &Path,
        address: SocketAddr,
        upstream: Option<&str>,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let config = dir.join("config.yml");
        let mut text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: {address}\n",
            dir.join("data").display()
        );
        if let Some(url) = upstream {
            text += &format!("proxy:\n  remoteurl: {url}\n");
        }
        fs::write(&config, text).context("writing a registry's configuration")?;
        let log = File::create(dir.join("log")).context("making a registry's log")?;
        command.arg("serve").arg(config).stdin(Stdio::null());
        command
            .stdout(log.try_clone().context("sharing a log")?)
            .stderr(log);
        let mut registry = Self {
            process: Guard::spawn(&mut command)?,
            address,
        };
        registry.wait_up(dir)?;
        Ok(registry)
    }

    /// Starts one on loopback, at a port that is free.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_anywhere(dir: &Path) -> anyhow::Result<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").context("looking for a port")?;
        let address = free.local_addr().context("looking for a port")?;
        drop(free);
        Self::start(Command::new("docker-registry"), dir, address, None)
    }

    fn wait_up(&mut self, dir: &Path) -> anyhow::Result<()> {
        let address = self.address;
        wait_for("answer of docker-registry", START_DEADLINE, || {
            if let Some(status) = self.process.ended()? {
                let log = dir.join("log");
                bail!("docker-registry ended ({status}): see {}", log.display());
            }
            Ok(TcpStream::connect(address).is_ok().then_some(()))
        })
    }

    /// Returns where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Gives it a file as a blob, and returns the blob's path.
    ///
    /// # Errors
    /// If it refuses.
    pub fn keep_blob(&self, file: &Path) -> anyhow::Result<String> {
        let mut hash = Command::new("sha256sum");
        hash.arg(file);
        let output = run_ok(hash, HASH_DEADLINE)?.output;
        let digest = output.split(' ').next().unwrap_or_default().to_owned();
        let mut connection = Connection::open(self.address)?;
        let uploads = "/v2/bench/blobs/uploads/";
        let began = connection.request("POST", uploads, "Content-Length: 0\r\n", &[])?;
        let to = began.headers.get("location");
        let to = to.context("docker-registry does not say where to upload")?;
        let (_, to) = to.split_once("/v2/").context("it is no address")?;
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let headers = format!(
            "Content-Type: application/octet-stream\r\nContent-Length: {}\r\n",
            bytes.len()
        );
        let path = format!("/v2/{to}&digest=sha256:{digest}");
        let done = connection.request("PUT", &path, &headers, &bytes)?;
        ensure!(
            done.status == 201,
            "docker-registry answers an upload with {}",
            done.status
        );
        Ok(format!("/v2/bench/blobs/sha256:{digest}"))
    }
}
