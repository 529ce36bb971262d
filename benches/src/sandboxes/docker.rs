//! `docker run` of the program that does nothing, by a dockerd of the bench's own on a socket of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// Debian's client, which is as old as Debian's dockerd. Another one may come before it in the path, and may refuse that.
const CLIENT: &str = "/usr/bin/docker";

/// How long a dockerd may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

const IMAGE: &str = "bench-noop";

/// A dockerd that has one image.
#[derive(Debug)]
pub(super) struct Docker {
    dir: PathBuf,
    daemon: Child,
}

impl Docker {
    /// Starts one in a new directory, with an image of `root`. `None` if Docker is not installed.
    pub(super) fn start(dir: PathBuf, root: &Path) -> anyhow::Result<Option<Self>> {
        if !Path::new(CLIENT).exists() {
            return Ok(None);
        }
        fs::create_dir(&dir)?;
        let log = File::create(dir.join("log"))?;
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(dir.join("root"))
            .arg("--exec-root")
            .arg(dir.join("exec"))
            .arg("--pidfile")
            .arg(dir.join("pid"))
            .arg(format!("--host=unix://{}", dir.join("sock").display()))
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        let mut daemon = match daemon {
            Ok(daemon) => daemon,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("starting dockerd"),
        };
        let deadline = Instant::now() + PATIENCE;
        let answers = |dir: &Path| {
            let asked = client(dir).arg("info").stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success())
        };
        while !answers(&dir) {
            if let Some(status) = daemon.try_wait()? {
                let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
                bail!("dockerd ended with {status}: {log}");
            }
            ensure!(Instant::now() < deadline, "dockerd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let docker = Self { dir, daemon };
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .context("starting tar")?;
        let tree = tar.stdout.take().context("tar has no output")?;
        let mut import = client(&docker.dir);
        let imported = import.args(["import", "-", IMAGE]).stdin(tree).status()?;
        ensure!(
            imported.success() && tar.wait()?.success(),
            "the image was not imported"
        );
        Ok(Some(docker))
    }

    /// Runs a container to its end, and removes it.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let run = ["run", "--rm", "--network=none", IMAGE, "/bin/noop"];
        let status = client(&self.dir).args(run).status()?;
        ensure!(status.success(), "docker run failed: {status}");
        Ok(())
    }
}

fn client(dir: &Path) -> Command {
    let mut command = Command::new(CLIENT);
    command
        .arg(format!("--host=unix://{}", dir.join("sock").display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl Drop for Docker {
    fn drop(&mut self) {
        let ended = Command::new("kill")
            .arg(self.daemon.id().to_string())
            .status();
        let deadline = Instant::now() + PATIENCE;
        while ended.is_ok() && Instant::now() < deadline {
            if let Ok(Some(_)) = self.daemon.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("bench-sandbox: dockerd does not end by itself");
        let _gone = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}
