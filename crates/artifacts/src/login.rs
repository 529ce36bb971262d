//! Credentials for registries: from `docker login`, and its credential helpers.

use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oci::registry::{Credentials, DockerConfig, Known, helper_answer};

/// A helper may ask a person for a pass phrase.
const HELPER_DEADLINE: Duration = Duration::from_secs(120);
/// It has ended: what it printed is in the pipe.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of what a helper prints.
const SECRET_MAX: u64 = 64 << 10;

/// Returns the credentials of `docker login` for a registry. It may execute a credential helper: a process that
/// confines itself must call this before.
///
/// # Errors
/// If they cannot be used.
pub fn of_docker(registry: &str) -> anyhow::Result<Option<Credentials>> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    let dir = env::var_os("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(home);
    let Some(path) = dir.map(|dir| dir.join("config.json")) else {
        return Ok(None);
    };
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        bytes => bytes.with_context(|| format!("reading {}", path.display()))?,
    };
    let config = DockerConfig::decode(&bytes).with_context(|| path.display().to_string())?;
    match config.find(registry) {
        Known::Here(credentials) => Ok(Some(credentials)),
        Known::Helper { name, server } => ask_helper(&name, &server),
        Known::Nowhere => Ok(None),
    }
}

/// Asks a credential helper. One that knows nothing of the registry says so by failing.
fn ask_helper(name: &str, server: &str) -> anyhow::Result<Option<Credentials>> {
    let program = format!("docker-credential-{name}");
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (sender, answer) = sync_channel(1);
    let reader = std::thread::Builder::new().name("helper".to_owned());
    reader
        .spawn(move || {
            let mut text = Vec::new();
            let read = output.map(|output| output.take(SECRET_MAX).read_to_end(&mut text));
            // Nobody waits any more, or half an answer: that decodes to nothing.
            let _sent = (sender.send(text), read);
        })
        .context("starting a thread")?;
    // A helper that does not listen fails below.
    let _told = input.map(|mut input| input.write_all(server.as_bytes()));
    let is_good = ended_well(&mut child).with_context(|| program.clone())?;
    // What the helper started may live on and hold the pipe: it is not waited for.
    let answer = answer.recv_timeout(ANSWER_DEADLINE).unwrap_or_default();
    if !is_good {
        log::debug!("{program} knows nothing of {server}");
        return Ok(None);
    }
    Ok(Some(helper_answer(&answer).with_context(|| program)?))
}

fn ended_well(child: &mut Child) -> anyhow::Result<bool> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("waiting")? {
            return Ok(status.success());
        }
        if started.elapsed() > HELPER_DEADLINE {
            let _killed = child.kill();
            let _waited = child.wait();
            bail!("no answer within {} s", HELPER_DEADLINE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
