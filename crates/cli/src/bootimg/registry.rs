//! Which registry, and who asks: the flags, what `docker login` left, and the environment.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bootimg::Store;
use oci::Reference;
use oci::registry::{
    Credentials, DockerConfig, Known, Network, RegistryConfig, Transport, helper_answer,
    is_loopback,
};

use host::interrupt::Interrupt;
use host::progress::Bar;
use mounting::confinement::{Asks, Intake, Rights};

/// A helper may ask a person for a pass phrase.
const HELPER_DEADLINE: Duration = Duration::from_secs(120);
/// It has ended: what it printed is in the pipe.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of a password, or of what a helper prints.
const SECRET_MAX: u64 = 64 << 10;

/// The flags of the commands that talk to a registry.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// Use plain HTTP; the default for registries on the loopback address, unless --ca is given
    #[arg(long, conflicts_with = "ca")]
    plain_http: bool,
    /// Trust the authorities in this file (PEM), besides the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// User name [default: as stored by docker login]
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Also send the password to this host, if the registry names it for tokens;
    /// hosts of the registry's own domain need not be named
    #[arg(long, value_name = "HOST")]
    token_host: Vec<String>,
    /// Follow redirects of the registry into this network (10.2.0.0/16), though it is further inside than
    /// the registry itself
    #[arg(long, value_name = "NETWORK")]
    redirect_network: Vec<Network>,
}

impl RegistryArgs {
    /// Returns how to talk to the registry of a reference, and as whom. It may start a program that knows
    /// the login: who confines itself asks before.
    ///
    /// # Errors
    /// If the flags or what `docker login` left cannot be used.
    pub(crate) fn config(&self, reference: &Reference) -> anyhow::Result<RegistryConfig> {
        let registry = reference.registry();
        let plain = self.plain_http || (is_loopback(registry) && self.ca.is_none());
        let authority = self.ca.as_ref().map(|path| {
            fs::read(path).with_context(|| format!("reading the authorities in {}", path.display()))
        });
        Ok(RegistryConfig {
            transport: if plain {
                Transport::Plain
            } else {
                Transport::Tls
            },
            credentials: self.credentials(registry)?,
            token_hosts: self.token_host.clone(),
            redirect_networks: self.redirect_network.clone(),
            authorities: authority.transpose()?.into_iter().collect(),
            proxy: proxy_for(registry),
        })
    }

    /// Returns the same flags, for another process of ours. It gets the password as this one would have.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |flag: &str, value: &dyn AsRef<OsStr>| {
            arguments.extend([OsString::from(flag), value.as_ref().to_owned()]);
        };
        if let Some(ca) = &self.ca {
            add("--ca", ca);
        }
        if let Some(username) = &self.username {
            add("--username", username);
        }
        for host in &self.token_host {
            add("--token-host", host);
        }
        for network in &self.redirect_network {
            add("--redirect-network", &network.to_string());
        }
        let flags = [
            (self.plain_http, "--plain-http"),
            (self.password_stdin, "--password-stdin"),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        arguments.extend(flags.map(|(_, flag)| flag.into()));
        arguments
    }

    fn credentials(&self, registry: &str) -> anyhow::Result<Option<Credentials>> {
        let Some(username) = self.username.clone() else {
            return from_docker(registry)
                .with_context(|| format!("looking for the login of {registry}"));
        };
        let mut password = String::new();
        let input = io::stdin().take(SECRET_MAX).read_to_string(&mut password);
        input.context("reading the password from standard input")?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        ensure!(
            !password.is_empty(),
            "the password on standard input is empty"
        );
        Ok(Some(Credentials { username, password }))
    }
}

/// Leaves to a command that asks a registry that, and its store, which is there.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn confine(store: &Store) -> anyhow::Result<()> {
    let dir = store.dir().canonicalize();
    let intake = Intake {
        reads: Vec::new(),
        writes: vec![dir.with_context(|| format!("opening {}", store.dir().display()))?],
        clears: Vec::new(),
        asks: Asks::Registry,
        rights: Rights::Keeps,
    };
    intake.confine()
}

/// Returns what `docker login` left for a registry.
fn from_docker(registry: &str) -> anyhow::Result<Option<Credentials>> {
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

/// Returns the proxy for a registry, as programs agree to read it from the environment.
fn proxy_for(registry: &str) -> Option<String> {
    let variable = |names: [&str; 2]| names.iter().find_map(|name| env::var(name).ok());
    let proxy = variable(["https_proxy", "HTTPS_PROXY"]).filter(|proxy| !proxy.is_empty())?;
    let direct = variable(["no_proxy", "NO_PROXY"]).unwrap_or_default();
    let host = registry.split(':').next().unwrap_or(registry);
    let is_direct = direct
        .split(',')
        .map(str::trim)
        .any(|entry| covers(entry, host));
    (!is_direct).then_some(proxy)
}

/// `example.com` and `.example.com` mean that host and those below it; `*` all.
fn covers(entry: &str, host: &str) -> bool {
    let domain = entry.trim_start_matches('.');
    entry == "*"
        || host == domain
        || (!domain.is_empty()
            && host
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.')))
}

/// Returns a watch of a transfer that moves `bar` and stops at Ctrl-C.
pub(crate) fn transfer<'a>(
    bar: &'a Bar,
    interrupt: &'a Interrupt,
) -> impl FnMut(u64) -> ControlFlow<()> + 'a {
    move |done| {
        bar.set_position(done);
        if interrupt.asked() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_proxy() {
        for (entry, host) in [
            ("*", "a"),
            ("a.io", "a.io"),
            (".a.io", "b.a.io"),
            ("a.io", "b.a.io"),
        ] {
            assert!(covers(entry, host), "{entry} {host}");
        }
        for (entry, host) in [
            ("", "a.io"),
            ("a.io", "ba.io"),
            ("b.a.io", "a.io"),
            (".", "a.io"),
        ] {
            assert!(!covers(entry, host), "{entry} {host}");
        }
    }
}
