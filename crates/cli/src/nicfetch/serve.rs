//! `nicfetch serve`: the mirror and the block service, until they are asked to end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use blockservice::service::Limits;
use clap::Args;
use mirror::{Mirror, serve};
use nicfetch::admin::{AdminDoor, AdminToken, BlockSide, Operated, serve_admin};
use serving::load::{Load, LoadWatch};
use serving::transport::Address;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::blocks::{Blocks, BlocksArgs};
use super::config::Config;
use super::feed::{Feeder, Taken};
use super::operator::AdminAddress;
use super::place;
use super::shelf::Here;
use crate::exit::Outcome;
use crate::output::write_out;
use host::admission::Admission;
use host::size::Size;

/// Mirror registries, and serve blocks to mounts of yolofs: what one machine fetched, all have
///
/// Docker uses the mirror with --registry-mirror, containerd with --hosts-dir or hosts.toml, skopeo
/// and podman with registries.conf: docs/nicfetch.md shows how. With --blocks, mounts of yolofs read
/// imported sources from here (yolofs mount nic:NAME --nic ADDR). It ends on SIGTERM, when what it
/// began is answered.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nicfetch serve --upstream https://registry-1.docker.io --listen 10.0.0.1:5050 --size 40G
  nicfetch serve --blocks 10.0.0.1:5052 --blocks-access /etc/nicfetch/machines")]
pub(super) struct ServeArgs {
    /// File that says everything, in place of flags
    #[arg(long, value_name = "FILE", conflicts_with_all = ["upstream", "listen", "admin", "token_file", "store", "size", "hold_back", "tag_ttl", "blocks"])]
    config: Option<PathBuf>,
    /// Registry to mirror, and what clients call it if that is not docker.io; may be given again.
    /// The first is for clients that do not say which
    #[arg(long, value_name = "[NAME=]URL", required_unless_present_any = ["config", "blocks"])]
    upstream: Vec<String>,
    /// Where clients come [default: 127.0.0.1:5050]
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the operator comes: unix:PATH, for root and the user that runs this, or an address on
    /// loopback and a port, for whoever has the token [default: unix:/run/nicfetch/admin.sock]
    #[arg(long, value_name = "ADDR")]
    admin: Option<AdminAddress>,
    /// File with the token that the operator and Prometheus show at ADDRESS:PORT
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Directory of the cache [default: /var/lib/nicfetch]
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Most bytes that blobs and chunks may take: above it the least valuable go [default: 16G]
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// The end of each blob that nobody gets before all of it is verified; more than the longest
    /// blob holds everything back [default: 4M]
    #[arg(long, value_name = "SIZE")]
    hold_back: Option<Size>,
    /// How long a tag is believed to point where it did [default: 60]
    #[arg(long, value_name = "SECS")]
    tag_ttl: Option<u64>,
    #[command(flatten)]
    blocks: BlocksArgs,
}

impl ServeArgs {
    fn config(&self) -> anyhow::Result<Config> {
        if let Some(path) = &self.config {
            return Config::read(path);
        }
        let mut config = Config::of(&self.upstream, &self.blocks);
        config.listen = self.listen.unwrap_or(config.listen);
        config.admin = self.admin.clone().unwrap_or(config.admin);
        config.token_file.clone_from(&self.token_file);
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
    // Before anything is opened.
    let token = config.admin.guarded_by(config.token_file.as_deref())?;
    confine(&config)?;
    let parts = Parts::open(&config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the threads of the server")?;
    runtime.block_on(serve_until_told(&config, token, &parts))?;
    // What is taken at the moment is taken up again with the next start.
    drop(parts);
    // Fills go on from where they are with the next start.
    runtime.shutdown_background();
    Ok(Outcome::Done)
}

/// Leaves this process its cache, its sockets and its ports.
fn confine(config: &Config) -> anyhow::Result<()> {
    let blocks = config.blocks()?.blocks;
    let mut writes = vec![config.store.clone()];
    let mut ports = Vec::new();
    if config.mirrors() {
        ports.push(config.listen.port());
    }
    let mut beside = |socket: &Path| {
        let dir = socket.parent().filter(|dir| !dir.as_os_str().is_empty());
        writes.push(dir.unwrap_or(Path::new(".")).to_owned());
    };
    match &config.admin {
        AdminAddress::Unix(path) => beside(path),
        AdminAddress::Tcp(address) => ports.push(address.port()),
    }
    match &blocks {
        Some(Address::Unix(path)) => beside(path),
        Some(Address::Tcp(address)) => {
            let port = address
                .rsplit_once(':')
                .map(|(_, port)| port.parse::<u16>());
            ports.extend(port.and_then(Result::ok));
        }
        Some(Address::Vsock { .. }) | None => {}
    }
    mounting::confinement::nicfetch(writes, ports)
}

/// What is served, opened.
struct Parts {
    mirror: Arc<Mirror>,
    blocks: BlocksArgs,
    limits: Limits,
    _watch: Option<LoadWatch>,
    /// None if no blocks are served.
    chunks: Option<(Here, Feeder)>,
}

impl Parts {
    fn open(config: &Config) -> anyhow::Result<Self> {
        let (registries, blocks) = (config.registries()?, config.blocks()?);
        let opening = || {
            let dir = config.store.display();
            format!("opening the cache in {dir} (choose another place with --store)")
        };
        let dir = config.store.join("mirror");
        let load = Arc::new(Load::default());
        rawio::private::keep(&dir).with_context(opening)?;
        let mirror = Mirror::open(&dir, config.mirror(&load)?, registries);
        let mirror = mirror.with_context(opening)?;
        let chunks = match &blocks.blocks {
            Some(_) => {
                let budgets = config.budgets()?;
                let here = Here(place::open(&config.store, budgets.chunk_bytes)?);
                let limited = here.0.catalog().limit_boots(budgets.boot_bytes);
                limited.context("removing boot images for which there is no room")?;
                let taken = match blocks.blocks_from_pulls {
                    true => Taken::WhenPulled,
                    false => Taken::WhenAsked,
                };
                let dir = config.store.join("feed");
                let feeder = Feeder::start(
                    Arc::clone(&mirror),
                    Arc::clone(&load),
                    here.clone(),
                    dir,
                    taken,
                )?;
                Some((here, feeder))
            }
            None => None,
        };
        Ok(Self {
            mirror,
            blocks,
            limits: config.limits.blocks(&load)?,
            _watch: config.limits.watch(&load)?,
            chunks,
        })
    }

    /// Listens for those who want blocks, if there are any to be had.
    async fn listen_for_blocks(&self) -> anyhow::Result<Option<Blocks>> {
        let (Some(address), Some((Here(sources), _))) = (&self.blocks.blocks, &self.chunks) else {
            return Ok(None);
        };
        let (store, catalog) = (Arc::clone(sources.store()), Arc::clone(sources.catalog()));
        let blocks = self
            .blocks
            .listen(address, store, catalog, self.limits.clone());
        let blocks = blocks.await?;
        Ok(Some(blocks))
    }

    /// Returns what the operator looks after.
    fn operated(&self, blocks: Option<&Blocks>) -> Operated {
        let blocks = blocks.zip(self.chunks.as_ref());
        let blocks = blocks.map(|(blocks, (Here(sources), feeder))| {
            BlockSide::new(Arc::clone(sources), blocks.service().clone(), feeder.feed())
        });
        Operated {
            mirror: Arc::clone(&self.mirror),
            blocks,
        }
    }
}

async fn serve_until_told(
    config: &Config,
    token: Option<String>,
    parts: &Parts,
) -> anyhow::Result<()> {
    let clients = match config.mirrors() {
        true => Some(listen(config.listen, "--listen").await?),
        false => None,
    };
    let operator = admit_operator(&config.admin, token).await?;
    let blocks = parts.listen_for_blocks().await?;
    // Whoever asked for any port is told which; others learn when it is ready.
    let mut told = String::new();
    if let Some(clients) = &clients {
        told.push_str(&format!("clients {}\n", clients.local_addr()?));
    }
    told.push_str(&format!("admin {}\n", operator.address()?));
    if let Some(blocks) = &blocks {
        told.push_str(&format!("blocks {}\n", blocks.address()?));
    }
    if let Err(error) = write_out(told.as_bytes()) {
        log::debug!("nobody is told the addresses: {error:#}");
    }
    let mut ends = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mirror = &parts.mirror;
    let (close, closed) = watch::channel(false);
    let (close_admin, admin_closed) = watch::channel(false);
    let administering = tokio::spawn(serve_admin(
        parts.operated(blocks.as_ref()),
        operator,
        admin_closed,
    ));
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    if let Some(clients) = clients {
        let clients = serve(
            Arc::clone(mirror),
            clients,
            config.serving()?,
            closed.clone(),
        );
        serving.push(tokio::spawn(clients));
    }
    if let Some(blocks) = blocks {
        serving.push(tokio::spawn(blocks.serve(closed)));
    }
    tokio::select! {
        _ = ends.recv() => {}
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for Ctrl-C")?,
    }
    mirror.drain();
    let _gone = close.send(true);
    for serving in serving {
        serving.await.context("serving clients")?;
    }
    // The operator can watch until the last client has its answer.
    let _gone = close_admin.send(true);
    administering.await.context("serving the operator")
}

async fn listen(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("listening on {address} (choose another with {flag})"))
}

/// Listens for the operator: in the file system for the users who may ask any process of ours, and at
/// a port for who has the token.
async fn admit_operator(
    address: &AdminAddress,
    token: Option<String>,
) -> anyhow::Result<AdminDoor> {
    let door = match (address, token) {
        (AdminAddress::Unix(path), _) => AdminDoor::unix(path, Admission::own().users()).await,
        (AdminAddress::Tcp(address), Some(token)) => {
            AdminDoor::tcp(*address, AdminToken::new(&token)).await
        }
        (AdminAddress::Tcp(_), None) => bail!("there is no token for the operator"),
    };
    door.with_context(|| {
        format!("listening for the operator on {address} (choose another place with --admin)")
    })
}
