//! The mirror and the block service, until a request to end.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::admin::{AdminDoor, AdminToken, BlockSide, Operated, serve_admin};
use anyhow::{Context as _, bail};
use blockservice::service::Limits;
use mirror::{Mirror, serve};
use serving::load::{Load, LoadWatch};
use serving::transport::Address;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::blocks::{BlockSettings, Blocks};
use crate::config::Config;
use crate::feed::{Feeder, Taken};
use crate::import_target::LocalTarget;
use crate::operator::AdminAddress;
use crate::place;
use host::admission::Admission;

/// Serves until it receives a request to end.
///
/// `announce` receives the addresses when all listeners are ready: one line for each, with its
/// clients. To be called before this process starts a thread, because it is confined here.
///
/// # Errors
/// If the configuration is invalid, a store cannot be opened, an address is not available, or
/// the kernel refuses to confine this process.
pub fn run(config: &Config, announce: &dyn Fn(&str)) -> anyhow::Result<()> {
    // Before anything is opened.
    let token = config.admin.guarded_by(config.token_file.as_deref())?;
    confine(config)?;
    let parts = Parts::open(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the threads of the server")?;
    runtime.block_on(serve_until_told(config, token, &parts, announce))?;
    // What is taken at the moment is taken up again with the next start.
    drop(parts);
    // Fills go on from where they are with the next start.
    runtime.shutdown_background();
    Ok(())
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
    blocks: BlockSettings,
    limits: Limits,
    _watch: Option<LoadWatch>,
    /// None if no blocks are served.
    chunks: Option<(LocalTarget, Feeder)>,
}

impl Parts {
    fn open(config: &Config) -> anyhow::Result<Self> {
        let (registries, blocks) = (config.registries()?, config.blocks()?);
        let opening = || {
            let dir = config.store.display();
            format!("opening the cache in {dir} (`store` names another place)")
        };
        let dir = config.store.join("mirror");
        let load = Arc::new(Load::default());
        rawio::private::keep(&dir).with_context(opening)?;
        let mirror = Mirror::open(&dir, config.mirror(&load)?, registries);
        let mirror = mirror.with_context(opening)?;
        let chunks = match &blocks.blocks {
            Some(_) => {
                let budgets = config.budgets()?;
                let here = LocalTarget(place::open(&config.store, budgets.chunk_bytes)?);
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
        let (Some(address), Some((LocalTarget(sources), _))) = (&self.blocks.blocks, &self.chunks)
        else {
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
        let blocks = blocks.map(|(blocks, (LocalTarget(sources), feeder))| {
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
    announce: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let clients = match config.mirrors() {
        true => Some(listen(config.listen).await?),
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
    announce(&told);
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

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("listening on {address} (`listen` names another address)"))
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
        (AdminAddress::Tcp(_), None) => bail!("`admin` at ADDRESS:PORT needs `token_file`"),
    };
    door.with_context(|| {
        format!("listening for the operator on {address} (`admin` names another place)")
    })
}
