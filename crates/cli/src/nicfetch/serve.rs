//! `nicfetch serve`: the mirror, until it is asked to end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::Args;
use nicfetch::mirror::{Mirror, serve, serve_admin};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::config::Config;
use crate::exit::Outcome;
use crate::size::Size;

/// Mirror registries: fetch images once, and serve them to whoever may have them
///
/// Docker uses it with --registry-mirror, containerd with --hosts-dir or hosts.toml, skopeo and
/// podman with registries.conf: docs/nicfetch.md shows how. It ends on SIGTERM, when what it began
/// is answered.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  nicfetch serve --upstream https://registry-1.docker.io --listen 10.0.0.1:5050 --size 40G")]
pub(super) struct ServeArgs {
    /// File that says everything, in place of flags
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "listen", "admin", "store", "size", "hold_back", "tag_ttl"])]
    config: Option<PathBuf>,
    /// Registry to mirror, and what clients call it if that is not docker.io; may be given again.
    /// The first is for clients that do not say which
    #[arg(long, value_name = "[NAME=]URL", required_unless_present = "config")]
    upstream: Vec<String>,
    /// Where clients come [default: 127.0.0.1:5050]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the operator and Prometheus come; an address of this machine [default: 127.0.0.1:5051]
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Directory of the cache [default: /var/lib/nicfetch]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Most bytes that blobs may take: above it the least valuable go [default: 16G]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// The end of each blob that nobody gets before all of it is verified; more than the longest
    /// blob holds everything back [default: 4M]
    #[arg(long, value_name = "SIZE")]
    hold_back: Option<Size>,
    /// How long a tag is believed to point where it did [default: 60]
    #[arg(long, value_name = "SECS")]
    tag_ttl: Option<u64>,
}

impl ServeArgs {
    fn config(&self) -> anyhow::Result<Config> {
        if let Some(path) = &self.config {
            return Config::read(path);
        }
        let mut config = Config::of(&self.upstream);
        config.listen = self.listen.unwrap_or(config.listen);
        config.admin = self.admin.unwrap_or(config.admin);
        if let Some(store) = &self.store {
            config.store.clone_from(store);
        }
        if let Some(Size(bytes)) = self.size {
            config.set_size(bytes);
        }
        if let Some(Size(bytes)) = self.hold_back {
            config.set_hold_back(bytes);
        }
        if let Some(seconds) = self.tag_ttl {
            config.set_tag_ttl(seconds);
        }
        Ok(config)
    }
}

/// Serves until it is asked to end.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let config = args.config()?;
    ensure!(
        config.admin.ip().is_loopback(),
        "the admin address {} is not on loopback: whoever reaches it may remove what is cached",
        config.admin
    );
    let registries = config.registries()?;
    let dir = config.store.join("mirror");
    let mirror = Mirror::open(&dir, config.mirror(), registries).with_context(|| {
        let dir = config.store.display();
        format!("opening the cache in {dir} (choose another place with --store)")
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the threads of the server")?;
    runtime.block_on(serve_until_told(&config, mirror))?;
    // Fills go on from where they are with the next start.
    runtime.shutdown_background();
    Ok(Outcome::Done)
}

async fn serve_until_told(config: &Config, mirror: Arc<Mirror>) -> anyhow::Result<()> {
    let clients = listen(config.listen, "--listen").await?;
    let operator = listen(config.admin, "--admin").await?;
    // Whoever asked for any port is told which; others learn when it is ready.
    println!("clients {}", clients.local_addr()?);
    println!("admin {}", operator.local_addr()?);
    let mut ends = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let (close, closed) = watch::channel(false);
    let (close_admin, admin_closed) = watch::channel(false);
    let administering = tokio::spawn(serve_admin(Arc::clone(&mirror), operator, admin_closed));
    let serving = tokio::spawn(serve(
        Arc::clone(&mirror),
        clients,
        config.serving(),
        closed,
    ));
    tokio::select! {
        _ = ends.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for Ctrl-C")?,
    }
    mirror.drain();
    let _gone = close.send(true);
    serving.await.context("serving clients")?;
    // The operator can watch until the last client has its answer.
    let _gone = close_admin.send(true);
    administering.await.context("serving the operator")
}

async fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("listening on {address} (choose another with {flag})"))
}
