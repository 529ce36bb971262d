//! Credentials for registries: from `docker login`, and its credential helpers.

use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::unistd::{Uid, User};
use oci::registry::{Credentials, DockerConfig, Known, helper_answer};

/// A helper may ask a person for a pass phrase.
const HELPER_DEADLINE: Duration = Duration::from_secs(120);
/// It has ended: what it printed is in the pipe.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of what a helper prints.
const SECRET_MAX: u64 = 64 << 10;

/// What a file of logins says of a registry.
#[derive(Debug)]
pub struct FoundLogin {
    /// The file that was looked in, whether it is there or not; `None` if the user has no home.
    pub file: Option<PathBuf>,
    /// What it says.
    pub known: Known,
}

/// Looks for a registry in a file as `docker login` writes it, or else in that of this process's user. Executes no
/// program.
///
/// # Errors
/// If the file is there, and cannot be read or is no such file.
pub fn look_up(registry: &str, file: Option<&Path>) -> anyhow::Result<FoundLogin> {
    let file = file.map_or_else(default_file, |file| Some(file.to_owned()));
    let Some(path) = file else {
        let known = Known::Nowhere;
        return Ok(FoundLogin { file: None, known });
    };
    let known = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Known::Nowhere,
        bytes => {
            let bytes = bytes.with_context(|| format!("reading {}", path.display()))?;
            let config =
                DockerConfig::decode(&bytes).with_context(|| path.display().to_string())?;
            config.find(registry)
        }
    };
    let file = Some(path);
    Ok(FoundLogin { file, known })
}

/// Returns where `docker login` leaves the logins of this process's user. systemd gives services of root no `HOME`.
fn default_file() -> Option<PathBuf> {
    let home = || {
        let home = env::var_os("HOME").map(PathBuf::from);
        let of_user = || User::from_uid(Uid::effective()).ok().flatten();
        home.or_else(|| of_user().map(|user| user.dir))
            .map(|home| home.join(".docker"))
    };
    let dir = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    dir.or_else(home).map(|dir| dir.join("config.json"))
}

/// Returns the credentials of `docker login` for a registry. It may execute a credential helper: a process that
/// confines itself must call this before.
///
/// # Errors
/// If they cannot be used.
pub fn of_docker(registry: &str) -> anyhow::Result<Option<Credentials>> {
    match look_up(registry, None)?.known {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_is_looked_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("logins");
        let known = |registry: &str| look_up(registry, Some(&file)).map(|found| found.known);
        assert_eq!(known("a.io").unwrap(), Known::Nowhere);
        fs::write(
            &file,
            r#"{"auths":{"a.io":{"auth":"bWU6cHc="}},"credHelpers":{"b.io":"x"}}"#,
        )
        .unwrap();
        assert!(matches!(known("a.io").unwrap(), Known::Here(login) if login.username == "me"));
        assert!(matches!(known("b.io").unwrap(), Known::Helper { .. }));
        assert_eq!(known("c.a.io").unwrap(), Known::Nowhere);
        fs::write(&file, "7").unwrap();
        assert!(known("a.io").is_err());
    }
}
